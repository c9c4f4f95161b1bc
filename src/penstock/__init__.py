"""Penstock decides, for every request, whether it may pass now.

>>> from penstock import Limiter
>>> limiter = Limiter()
>>> bool(limiter.acquire("alice", "100/minute"))
True
"""

from penstock.clock import ManualClock
from penstock.errors import InvalidInput, PenstockError, RateLimited, StoreError
from penstock.limiter import AsyncLimiter, Limiter
from penstock.model import Amended, Decision, Receipt, Verdict
from penstock.quota import Quota

__all__ = [
    "Amended",
    "AsyncLimiter",
    "Decision",
    "InvalidInput",
    "Limiter",
    "ManualClock",
    "PenstockError",
    "Quota",
    "RateLimited",
    "Receipt",
    "StoreError",
    "Verdict",
]
