"""Token bucket: holds up to `burst` units and refills at `limit` per `period`, lazily.

Promise: at most burst + rate·t units in every span of length t. GCRA counts the units that are owed where this
counts the tokens that are left; the decisions are the same. State: see `bucket`.
"""

from penstock.algorithms.bucket import bind as bind
