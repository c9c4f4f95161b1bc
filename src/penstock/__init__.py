"""Penstock decides, for every request, whether it may pass now.

>>> from penstock import Limiter
>>> limiter = Limiter()
>>> bool(limiter.acquire("alice", "100/minute"))
True

The public names are imported when one of them is first used. So the pytest plugin, which is in this package, costs a
test run nothing that does not use it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def __getattr__(name: str) -> object:
    if not name.startswith("__"):  # all at once, so that `penstock.errors` is there after `import penstock` too
        for module in ("clock", "errors", "model", "quota", "limiter"):
            known = vars(import_module(f"penstock.{module}"))
            globals().update({public: known[public] for public in __all__ if public in known})
    try:
        return globals()[name]
    except KeyError:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}") from None
