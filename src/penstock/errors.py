"""Every exception that Penstock raises.

    PenstockError
    ├── InvalidInput (ValueError)      the caller's mistake: nothing was decided, nothing changed
    │   ├── InvalidQuota               a quota that cannot be read, or cannot be enforced
    │   ├── InvalidKey                 a key that is empty, too long, or not text
    │   ├── InvalidCost                a cost that is not a whole number in range
    │   │   └── CostExceedsLimit       a cost that can never fit: waiting would not help
    │   ├── InvalidRequest             asks that contradict each other
    │   ├── InvalidReceipt             a refund of something that was never charged
    │   ├── InvalidOption              a setting that is unknown or out of range
    │   └── InvalidRules               rules that cannot be read, or contradict each other; lists all mistakes
    ├── RateLimited                    a refusal, raised only by helpers whose documentation says so
    └── StoreError                     the store could not answer

Most calls return a refusal as a value (`Verdict`), because a refusal is an ordinary answer.

A message names the thing, the value and what was expected. Keys are identities, so no message quotes one.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from functools import partial
from traceback import format_tb, walk_tb
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.model import Verdict


def shown(value: object) -> str:
    """Return `value` as messages quote it: short, and never raising, as printing an integer of 5,000 digits would."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"{'-' if value < 0 else ''}10^30 or more"
    try:
        text = repr(value)
    except Exception:  # the value holds such an integer, or has a broken __repr__
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def fault(error: BaseException) -> str:
    """Return the type and traceback of an internal error for logs, without its message, which may quote a key."""
    return f"{type(error).__name__}\n{''.join(format_tb(error.__traceback__))}"


def is_from_signal_handler(error: BaseException) -> bool:
    """Return whether a signal handler raised `error`, as soft time limits of task queues do.

    Such an error ends what the process was doing, whatever that was. So it is never handled as a failure of Penstock's
    own, also where it derives from `Exception`. It is known by its traceback, which has the frame of an installed
    handler.
    """
    frames = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
    return not frames.isdisjoint(map(_handler_code, range(1, signal.NSIG)))


def _handler_code(number: int) -> CodeType | None:
    """Return the code of the Python function that handles a signal, if there is one."""
    handler: object = signal.getsignal(number)
    while isinstance(handler, partial):
        handler = handler.func
    if callable(handler) and not hasattr(handler, "__code__"):  # an object; methods have the code of their function
        handler = type(handler).__call__
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None


class PenstockError(Exception):
    """The base of all errors that Penstock raises on purpose."""


class InvalidInput(PenstockError, ValueError):
    """An argument that is not valid."""


class InvalidQuota(InvalidInput):
    """A quota that cannot be read, or cannot be enforced exactly."""


class InvalidKey(InvalidInput):
    """A key that is empty, too long, or not text."""


class InvalidCost(InvalidInput):
    """A cost that is not a whole number in range."""


class CostExceedsLimit(InvalidCost):
    """A cost that can never be admitted, however long the caller waits: `cost` units, where at most `most` fit."""

    def __init__(self, message: str, cost: int = 0, most: int = 0) -> None:
        super().__init__(message)
        self.cost = cost
        self.most = most


class InvalidRequest(InvalidInput):
    """A request whose asks contradict each other."""


class InvalidReceipt(InvalidInput):
    """A receipt or verdict that charged nothing that could be refunded."""


class InvalidOption(InvalidInput):
    """A setting that is unknown or out of range."""


class Fault(NamedTuple):
    """One mistake in a file: its place, the value there, the problem, and what was expected.

    `line` is 0 for a mistake of the whole file. `path`, `value` and `problem` may be empty.
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
    """Rules that cannot be read, or contradict each other; `faults` lists all mistakes, one a line."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))

    def __reduce__(self) -> tuple[type[InvalidRules], tuple[tuple[Fault, ...]]]:
        return (InvalidRules, (self.faults,))


class RateLimited(PenstockError):
    """The request was refused; `verdict` says by which quota, and when to retry."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        by = "refused because the store cannot answer" if verdict.source == "closed" else f"refused by {verdict.quota}"
        super().__init__(f"{by}: retry after {verdict.retry_after:.3f} s")

    def __reduce__(self) -> tuple[type[RateLimited], tuple[Verdict]]:
        return (RateLimited, (self.verdict,))


class StoreError(PenstockError):
    """The store could not answer.

    `transient`: whether a retry may succeed. `charged`: whether the call may have taken effect all the same, "no" or
    "unknown".
    """

    def __init__(self, message: str, *, transient: bool, charged: str = "no") -> None:
        super().__init__(message)
        self.transient = transient
        self.charged = charged

    def to_raise(self, charged: str) -> StoreError:
        """Return a copy for one caller, because an error that is raised repeatedly collects traceback frames."""
        return StoreError(str(self), transient=self.transient, charged=charged)

    def __reduce__(self) -> tuple[object, tuple[str, bool, str]]:
        return (_store_error, (str(self), self.transient, self.charged))


def _store_error(message: str, transient: bool, charged: str) -> StoreError:
    return StoreError(message, transient=transient, charged=charged)
