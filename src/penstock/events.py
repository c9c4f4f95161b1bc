"""What happened, as plain records, and the hook that is told of it.

A hook is any function of one argument. It is told in the middle of a decision, in whichever thread or event loop makes
it, so it should be quick: count, append, pass on. What it raises is logged, now and then, and goes no further.

    def hook(event):
        if isinstance(event, BreakerChanged):
            alert(f"{event.place}: {event.state}")

    limiter = Limiter("redis://...", hook=hook)
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple, Protocol

from penstock.clock import monotonic

log = logging.getLogger("penstock.events")

LOG_EVERY = 10.0
"""Seconds between two complaints about hooks that fail, on one kind of event."""


class Hook(Protocol):
    """Whoever wants to know what happened."""

    def __call__(self, event: Any, /) -> None:
        """Told of one event, a record of this module."""


class BreakerChanged(NamedTuple):
    """The breaker of a server changed from one state to another: "closed", "open", "half-open"."""

    place: str
    was: str
    state: str
    why: str


class Degraded(NamedTuple):
    """Operations that the store did not answer, and how they were answered: "local", "open" or "closed"."""

    source: str
    answers: int
    why: str


class LayerFailed(NamedTuple):
    """A fault of Penstock's own: what failed, with which kind of error. Requests were answered all the same."""

    what: str
    error: str


class Shedding(NamedTuple):
    """A shedder sheds more or less than before: its levels, the pressure it saw, and the signal that said so."""

    was: int
    level: int
    pressure: float
    why: str


class LimitScaled(NamedTuple):
    """A limit was scaled: the quota that held before, and the one that holds now, as text."""

    was: str
    quota: str


class SignalFailed(NamedTuple):
    """A signal raised, or returned what is no pressure, and so counts as none. Told once, until it works again."""

    signal: str
    error: str


class RulesLoaded(NamedTuple):
    """The rules of a file are in force; `version` names its content."""

    file: str
    version: str


class RulesRefused(NamedTuple):
    """A file of rules cannot be used, and the rules before it stay in force.

    `why` is the first of so many `faults`; `version` names the content, and is empty if it could not be read.
    """

    file: str
    version: str
    faults: int
    why: str


class Decided(NamedTuple):
    """A request that rules decided on; one event for each.

    - `rule`: the id of the rule that refused, or else of the tightest; empty if none applies.
    - `outcome`: "allowed" or "refused"; `reason`, if refused: "rate", "too_close" (a min_interval), "concurrency",
      "shed", "blocked", or "degraded" (the store could not answer, and the rule is closed then).
    - `would_refuse`: the ids of rules in shadow mode that would have refused.
    - `source`: who answered, "store" or what stood in for it; `version`: of the rules.
    - `algorithm`: of the quota that refused, or else is the tightest; empty if no counter was asked.
    """

    rule: str
    outcome: str
    reason: str
    would_refuse: tuple[str, ...]
    cost: int
    source: str
    version: str
    algorithm: str = ""


def nobody(event: Any) -> None:
    """The hook of those who do not want to know."""


def tell(hook: Hook, event: Any) -> None:
    """Tell `hook` of an event, whatever it thinks of it."""
    try:
        hook(event)
    except Exception:
        now, kind = monotonic(), type(event).__name__
        if now - _logged_at.get(kind, -LOG_EVERY) >= LOG_EVERY:  # during an outage every answer is an event
            _logged_at[kind] = now
            log.exception("a hook failed on %s", kind)


_logged_at: dict[str, float] = {}  # by kind of event
