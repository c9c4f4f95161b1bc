"""Verdicts to count, and calls that note how they were answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from penstock import Limiter, ManualClock
from penstock.enforcer import Enforcer
from penstock.service.wire.calls import Call, Head, Header, Peer
from penstock.stores.memory.store import MemoryStore
from tests.unit.rules.support import rule_set


def enforcer(clock: ManualClock, *rules: dict[str, Any]) -> Enforcer:
    return Enforcer(rule_set(*rules), Limiter(MemoryStore(clock=clock), clock=clock))


class Scrape(Call):
    """A call of `/metrics`."""

    __slots__ = ("answer_body", "done", "status", "type")

    def __init__(self, method: bytes = b"GET", headers: Sequence[Header] = ()) -> None:
        self.method, self.path, self.query = method, b"/metrics", b""
        self.headers, self.body, self.peer, self.expires = headers, b"", Peer(), None
        self.status, self.answer_body, self.type = 0, b"", b""
        self.done = asyncio.Event()

    @property
    def gone(self) -> bool:
        return False

    def answer(self, head: Head, body: bytes = b"", extra: Sequence[Header] = ()) -> None:
        assert not self.status, "answered twice"
        self.status, self.answer_body, self.type = head.status, body, dict(head.headers)[b"content-type"]
        self.done.set()


Labels = frozenset[tuple[str, str]]


class Samples:
    """What a scrape says, by name and labels."""

    def __init__(self, text: bytes, *, openmetrics: bool = False) -> None:
        parse = parse_openmetrics if openmetrics else parse_text
        self.families: list[Metric] = list(parse(text.decode()))
        self.values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def of(self, name: str, **labels: str) -> float | None:
        """The one value with exactly these labels."""
        return self.values.get((name, frozenset(labels.items())))

    def total(self, name: str, **labels: str) -> float:
        """The sum of all values with at least these labels."""
        wanted = set(labels.items())
        return sum(value for (found, having), value in self.values.items() if found == name and wanted <= having)

    def labels(self, name: str, label: str) -> set[str]:
        return {dict(having)[label] for found, having in self.values if found == name}
