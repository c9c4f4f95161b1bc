"""Tests of applications and of stores.

For an application, without any extra:

- `limits_off()`: nothing in this process is limited while it lasts.
- `assert_allowed`, `assert_refused`: check a verdict, and show the counters if it is another.
- `penstock.testing.pytest_plugin`: fixtures, which pytest finds by itself.

For a store, with `penstock[testing]`:

- `StoreConformance`, `AsyncStoreConformance`: pytest classes to subclass; see `penstock.testing.conformance`.
- `Oracle`: the brute-force model they compare a store with, for tests of your own.
- `CallHistory`, `outcome_of`: whether what callers saw could have been decided by an exact limiter.

All are imported when first used.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.conformance import AsyncStoreConformance, HistoryConformance, StoreConformance
    from penstock.testing.helpers import assert_allowed, assert_refused
    from penstock.testing.history import CallHistory, outcome_of
    from penstock.testing.oracle import Oracle
    from penstock.testing.switch import limits_off

__all__ = [
    "AsyncStoreConformance",
    "CallHistory",
    "HistoryConformance",
    "Oracle",
    "StoreConformance",
    "assert_allowed",
    "assert_refused",
    "limits_off",
    "outcome_of",
]

_HOMES = {
    "conformance": ("AsyncStoreConformance", "HistoryConformance", "StoreConformance"),
    "helpers": ("assert_allowed", "assert_refused"),
    "history": ("CallHistory", "outcome_of"),
    "oracle": ("Oracle",),
    "switch": ("limits_off",),
}

if sys.modules.get("pytest"):  # before they are imported, so that a failing assert in the kit shows its values
    sys.modules["pytest"].register_assert_rewrite(
        *(f"penstock.testing.{module}" for module in ("agreement", "examples", "kit", "machine", "promises"))
    )


def __getattr__(name: str) -> object:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
