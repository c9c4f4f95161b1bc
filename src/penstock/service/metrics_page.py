"""The handler of `GET /metrics`: the figures of all workers, in either of Prometheus's formats."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from penstock.observability import exposition
from penstock.observability.metrics import Metrics
from penstock.observability.tally import Snapshot
from penstock.service.wire.calls import Call, Head

log = logging.getLogger("penstock.observability")

_HEADS = {
    False: Head(200, [(b"content-type", exposition.TEXT)]),
    True: Head(200, [(b"content-type", exposition.OPENMETRICS)]),
}
_WRONG_METHOD = Head(405, [(b"allow", b"GET, HEAD"), (b"content-type", b"text/plain; charset=utf-8")])
_BROKEN = Head(500, [(b"content-type", b"text/plain; charset=utf-8")])


class MetricsPage:
    """Answers scrapes. Those that come while one is being answered get the same answer."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._scrapes: list[Call] = []

    def handle(self, calls: list[Call]) -> None:
        under_way = bool(self._scrapes)
        for call in calls:
            if call.method in (b"GET", b"HEAD"):
                self._scrapes.append(call)
            else:
                call.answer(_WRONG_METHOD, b"expected GET or HEAD\n")
        if self._scrapes and not under_way:
            asyncio.wrap_future(self._metrics.collect()).add_done_callback(self._render)

    def _render(self, collected: asyncio.Future[list[Snapshot]]) -> None:
        try:
            snapshots = collected.result()
        except (Exception, asyncio.CancelledError) as error:
            self._fail(error)
            return
        forms = {_wants_openmetrics(call) for call in self._scrapes}
        texts = {form: list[str]() for form in forms}
        self._go_on([(texts[form], exposition.lines(snapshots, openmetrics=form)) for form in forms], texts)

    def _go_on(self, work: list[tuple[list[str], Iterator[list[str]]]], texts: dict[bool, list[str]]) -> None:
        """Write some lines, and schedule the rest: decisions are made in between."""
        into, steps = work[-1]
        try:
            step = next(steps, None)
        except Exception as error:
            self._fail(error)
            return
        if step is None:
            work.pop()
        else:
            into += step
        if work:
            asyncio.get_running_loop().call_soon(self._go_on, work, texts)
        else:
            self._answer({form: exposition.joined(lines) for form, lines in texts.items()})

    def _fail(self, error: BaseException) -> None:
        """Fail all scrapes. Half of the figures would look as if counters had started over."""
        log.warning("the figures could not be read: %s", type(error).__name__)
        scrapes, self._scrapes = self._scrapes, []
        for call in scrapes:
            call.answer(_BROKEN, b"the figures could not be read\n")

    def _answer(self, bodies: dict[bool, bytes]) -> None:
        scrapes, self._scrapes = self._scrapes, []
        for call in scrapes:
            form = _wants_openmetrics(call)
            if form not in bodies:  # it came later, and wants the other form
                form = not form
            call.answer(_HEADS[form], bodies[form])


def _wants_openmetrics(call: Call) -> bool:
    return b"openmetrics" in (call.header(b"accept") or b"")
