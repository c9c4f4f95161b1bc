"""Token bucket: holds up to `burst` units and refills at `limit` per `period`, lazily.

Promise: at most burst + rate·t units in every span of length t. This is GCRA seen from the tokens that are left instead
of those that are owed: the same numbers, decision for decision. State: see `bucket`.
"""

from penstock.algorithms.bucket import bind as bind
