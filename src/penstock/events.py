"""Events as plain records, and the hook that receives them.

A hook is any function of one argument. It is called in the middle of a decision, in the thread or event loop that makes
it, so it should be quick: count, append, pass on. Exceptions that it raises are logged, at most once in ten seconds for
each kind of event, and have no other effect.

    def hook(event):
        if isinstance(event, BreakerChanged):
            alert(f"{event.place}: {event.state}")

    limiter = Limiter("redis://...", hook=hook)
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple, Protocol

from penstock.clock import monotonic
from penstock.errors import is_from_signal_handler

log = logging.getLogger("penstock.events")

LOG_EVERY = 10.0
"""Seconds between two log lines about hooks that fail on one kind of event."""


class Hook(Protocol):
    """A receiver of events."""

    def __call__(self, event: Any, /) -> None:
        """Receive one event, a record of this module."""


class BreakerChanged(NamedTuple):
    """The circuit breaker of a server changed its state: "closed", "open" or "half-open"."""

    place: str
    was: str
    state: str
    why: str


class Degraded(NamedTuple):
    """Operations that were answered without the store: `answers` of them, by "local", "open" or "closed"."""

    source: str
    answers: int
    why: str


class LayerFailed(NamedTuple):
    """An internal error: the component, and the type of the error. Requests were answered all the same."""

    what: str
    error: str


class Shedding(NamedTuple):
    """A shedder changed its level; `pressure` and `why` are the pressure and the signal that caused it."""

    was: int
    level: int
    pressure: float
    why: str


class LimitScaled(NamedTuple):
    """A limit was scaled: the previous quota and the current one, as text."""

    was: str
    quota: str


class SignalFailed(NamedTuple):
    """Reading a signal failed, so it counts as no pressure. Sent once, until the signal works again."""

    signal: str
    error: str


class RulesLoaded(NamedTuple):
    """The rules of a file came into force; `version` identifies its content."""

    file: str
    version: str


class RulesRefused(NamedTuple):
    """A file of rules was refused, and the previous rules stay in force.

    `faults` is the number of mistakes, `why` the first of them. `version` identifies the content; it is empty if the
    file could not be read.
    """

    file: str
    version: str
    faults: int
    why: str


class Decided(NamedTuple):
    """A request that was decided by rules.

    - `rule`: the id of the rule that refused, or else of the tightest; empty if no rule applies.
    - `outcome`: "allowed" or "refused"; `reason`, if refused: "rate", "too_close" (a min_interval), "concurrency",
      "shed", "blocked", or "degraded" (the store could not answer, and the rule is closed then).
    - `would_refuse`: the ids of rules in shadow mode that would have refused.
    - `source`: what answered, "store" or a substitute for it; `version`: the version of the rules.
    - `algorithm`: that of the quota that refused, or else of the tightest; empty if no counter was asked.
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
    """Ignore an event: the default hook."""


def tell(hook: Hook, event: Any) -> None:
    """Call `hook` with an event, and log what it raises."""
    try:
        hook(event)
    except Exception as error:
        if is_from_signal_handler(error):
            raise
        now, kind = monotonic(), type(event).__name__
        if now - _logged_at.get(kind, -LOG_EVERY) >= LOG_EVERY:  # during an outage every answer is an event
            _logged_at[kind] = now
            log.exception("a hook failed on %s", kind)


_logged_at: dict[str, float] = {}  # by kind of event
