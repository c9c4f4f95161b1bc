"""Counts the events that stores, rules and shedders send to their hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.events import (
    BreakerChanged,
    Decided,
    Degraded,
    LayerFailed,
    LimitScaled,
    RulesLoaded,
    RulesRefused,
    Shedding,
    SignalFailed,
)
from penstock.observability import series
from penstock.observability.series import NONE
from penstock.observability.tally import Bounded, Tally, Values

MAX_SERVERS = 256
MAX_WORDS = 64
"""How many servers, and how many components and signals, have labels of their own."""

MAX_TEXTS = 10_000


class EventCounts:
    """Counts events, from any thread."""

    def __init__(self, tally: Tally, rules: Bounded) -> None:
        self._tally, self._rules = tally, rules
        self.servers, self._words = Bounded(MAX_SERVERS), Bounded(MAX_WORDS)
        self._texts: dict[tuple[str, ...], str] = {}  # labels of decisions, as they are written
        self._shedding: Shedding | None = None
        add, words = self._add, self._words
        self._handlers: dict[type, Callable[[Any], None]] = {
            BreakerChanged: self._breaker,
            Decided: self._decided,
            Degraded: lambda event: add(series.DEGRADED, event.answers, event.source),
            LayerFailed: lambda event: add(series.FAULTS, 1, words.of(event.what)),
            LimitScaled: lambda _: add(series.SCALINGS, 1),
            RulesLoaded: lambda _: add(series.RULES_LOADS, 1, "loaded"),
            RulesRefused: lambda _: add(series.RULES_LOADS, 1, "refused"),
            Shedding: self._shed,
            SignalFailed: lambda event: add(series.SIGNAL_FAILURES, 1, words.of(event.signal)),
        }

    def count(self, event: object) -> None:
        """Count an event, if its kind is counted."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def now(self) -> Values:
        """Return the gauges that follow from the latest events."""
        shedding = self._shedding
        if shedding is None:
            return {}
        return {series.SHED_LEVEL.name: {"": shedding.level}, series.SHED_PRESSURE.name: {"": shedding.pressure}}

    def _add(self, of: series.Series, amount: int, *labels: str) -> None:
        text = self._texts.get(labels)
        if text is None:
            text = of.labelled(*labels)
            if of is series.DECISIONS and len(self._texts) < MAX_TEXTS:  # only decisions are frequent
                self._texts[labels] = text
        self._tally.add(of, text, amount)

    def _breaker(self, event: BreakerChanged) -> None:
        self._add(series.BREAKER_CHANGES, 1, self.servers.of(event.place), event.state)

    def _decided(self, event: Decided) -> None:
        rule = self._rules.of(event.rule) if event.rule else NONE
        self._add(series.DECISIONS, 1, rule, event.algorithm or NONE, event.source, event.outcome, event.reason)
        for shadow in event.would_refuse:
            self._add(series.SHADOW, 1, self._rules.of(shadow))

    def _shed(self, event: Shedding) -> None:
        self._shedding = event
        self._add(series.SHED_CHANGES, 1, "up" if event.level > event.was else "down")
