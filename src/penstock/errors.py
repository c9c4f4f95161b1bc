"""Every exception Penstock raises.

    PenstockError
    ├── InvalidInput (ValueError)      the caller's fault: nothing was decided, nothing changed
    │   ├── InvalidQuota               a quota that cannot be read, or cannot be kept
    │   ├── InvalidKey                 a key that is empty, too long, or not text
    │   ├── InvalidCost                a cost that is not a whole number in range
    │   │   └── CostExceedsLimit       a cost that can never fit: waiting would not help
    │   ├── InvalidRequest             asks that contradict each other
    │   ├── InvalidReceipt             something to give back that was never charged
    │   ├── InvalidOption              a setting that is unknown or out of range
    │   └── InvalidRules               rules that cannot be read, or contradict each other: all faults at once
    ├── RateLimited                    raised only by helpers whose name or documentation says so
    └── StoreError                     the store could not answer

A refusal is an answer, so it is a value (`Verdict`), not an exception.

Messages name the thing, the value and what was expected. Keys are identities, so no message ever quotes one.
"""

from __future__ import annotations

from collections.abc import Iterable
from traceback import format_tb
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.model import Verdict


def shown(value: object) -> str:
    """`value` as messages quote it: never long, and never failing, as printing an integer of 5,000 digits would."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"{'-' if value < 0 else ''}10^30 or more"
    try:
        text = repr(value)
    except Exception:  # it holds such an integer, or cannot be printed at all
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def fault(error: BaseException) -> str:
    """A fault of our own as logs tell it: its kind and its place, not what it says, which may quote a key."""
    return f"{type(error).__name__}\n{''.join(format_tb(error.__traceback__))}"


class PenstockError(Exception):
    """The root of all errors raised on purpose by Penstock."""


class InvalidInput(PenstockError, ValueError):
    """The caller passed something that has no meaning."""


class InvalidQuota(InvalidInput):
    """A quota that cannot be read or cannot be kept exactly."""


class InvalidKey(InvalidInput):
    """A key that is empty, too long, or not text."""


class InvalidCost(InvalidInput):
    """A cost that is not a whole number in range."""


class CostExceedsLimit(InvalidCost):
    """A cost that can never be admitted, however long the caller waits: `cost` units where at most `most` could be."""

    def __init__(self, message: str, cost: int = 0, most: int = 0) -> None:
        super().__init__(message)
        self.cost = cost
        self.most = most


class InvalidRequest(InvalidInput):
    """A request whose asks contradict each other."""


class InvalidReceipt(InvalidInput):
    """There is nothing that this receipt or verdict could give back."""


class InvalidOption(InvalidInput):
    """A setting that is unknown or out of range."""


class Fault(NamedTuple):
    """One mistake in a file: where it is, what stands there, what is wrong with it, and what was expected.

    `line` is 0 where the whole file is meant; `path`, `value` and `problem` are empty where there is nothing to say.
    """

    file: str
    line: int
    path: str
    value: str
    problem: str
    expected: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        says = f"{self.problem} (expected {self.expected})" if self.problem else f"expected {self.expected}"
        return ": ".join(part for part in (where, self.path, self.value, says) if part)


class InvalidRules(InvalidInput):
    """Rules that cannot be read, or contradict each other; `faults` lists everything that is wrong, a line each."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))

    def __reduce__(self) -> tuple[type[InvalidRules], tuple[tuple[Fault, ...]]]:
        return (InvalidRules, (self.faults,))


class RateLimited(PenstockError):
    """The request was refused; `verdict` says by what and for how long."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        by = "refused because the store cannot answer" if verdict.source == "closed" else f"refused by {verdict.quota}"
        super().__init__(f"{by}: retry after {verdict.retry_after:.3f} s")

    def __reduce__(self) -> tuple[type[RateLimited], tuple[Verdict]]:
        return (RateLimited, (self.verdict,))


class StoreError(PenstockError):
    """The store could not answer.

    `transient` tells whether the same call may succeed later; `charged` whether it may have taken effect all the same:
    "no" or "unknown".
    """

    def __init__(self, message: str, *, transient: bool, charged: str = "no") -> None:
        super().__init__(message)
        self.transient = transient
        self.charged = charged

    def to_raise(self, charged: str) -> StoreError:
        """A copy for one caller: raised again and again, an error would collect the frames of all who met it."""
        return StoreError(str(self), transient=self.transient, charged=charged)

    def __reduce__(self) -> tuple[object, tuple[str, bool, str]]:
        return (_store_error, (str(self), self.transient, self.charged))


def _store_error(message: str, transient: bool, charged: str) -> StoreError:
    return StoreError(message, transient=transient, charged=charged)
