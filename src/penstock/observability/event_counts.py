"""Events as figures: what the hook of a store, of rules and of a shedder is told."""

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
"""How many servers, and how many words of our own, have labels."""


MAX_TEXTS = 10_000


class Happenings:
    """Counts events, from whatever thread they come."""

    def __init__(self, tally: Tally, rules: Bounded) -> None:
        self._tally, self._rules = tally, rules
        self.servers, self._words = Bounded(MAX_SERVERS), Bounded(MAX_WORDS)
        self._texts: dict[tuple[str, ...], str] = {}  # labels of decisions, as they are written
        self._shedding: Shedding | None = None
        self._ways: dict[type, Callable[[Any], None]] = {
            BreakerChanged: self._breaker,
            Decided: self._decided,
            Degraded: self._degraded,
            LayerFailed: self._fault,
            LimitScaled: self._scaled,
            RulesLoaded: self._loaded,
            RulesRefused: self._refused,
            Shedding: self._shed,
            SignalFailed: self._signal,
        }

    def note(self, event: object) -> None:
        """Count it, if it is one that is counted."""
        way = self._ways.get(type(event))
        if way is not None:
            way(event)

    def now(self) -> Values:
        """How things are since the last event."""
        shedding = self._shedding
        if shedding is None:
            return {}
        return {series.SHED_LEVEL.name: {"": shedding.level}, series.SHED_PRESSURE.name: {"": shedding.pressure}}

    def _add(self, of: series.Series, amount: int, *labels: str) -> None:
        text = self._texts.get(labels)
        if text is None:
            text = of.labelled(*labels)
            if of is series.DECISIONS and len(self._texts) < MAX_TEXTS:  # the only ones that are told all the time
                self._texts[labels] = text
        self._tally.add(of, text, amount)

    def _breaker(self, event: BreakerChanged) -> None:
        self._add(series.BREAKER_CHANGES, 1, self.servers.of(event.place), event.state)

    def _decided(self, event: Decided) -> None:
        rule = self._rules.of(event.rule) if event.rule else NONE
        self._add(series.DECISIONS, 1, rule, event.algorithm or NONE, event.source, event.outcome, event.reason)
        for shadow in event.would_refuse:
            self._add(series.SHADOW, 1, self._rules.of(shadow))

    def _degraded(self, event: Degraded) -> None:
        self._add(series.DEGRADED, event.answers, event.source)

    def _fault(self, event: LayerFailed) -> None:
        self._add(series.FAULTS, 1, self._words.of(event.what))

    def _scaled(self, event: LimitScaled) -> None:
        self._add(series.SCALINGS, 1)

    def _loaded(self, event: RulesLoaded) -> None:
        self._add(series.RULES_LOADS, 1, "loaded")

    def _refused(self, event: RulesRefused) -> None:
        self._add(series.RULES_LOADS, 1, "refused")

    def _shed(self, event: Shedding) -> None:
        self._shedding = event
        self._add(series.SHED_CHANGES, 1, "up" if event.level > event.was else "down")

    def _signal(self, event: SignalFailed) -> None:
        self._add(series.SIGNAL_FAILURES, 1, self._words.of(event.signal))
