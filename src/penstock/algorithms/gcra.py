"""GCRA, the generic cell rate algorithm: a bucket that keeps only its theoretical arrival time.

Promise: at most burst + rate·t units in every span of length t. State: see `bucket`.
"""

from penstock.algorithms.bucket import bind as bind
