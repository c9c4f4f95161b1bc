"""The live view of `penstock serve`: a few lines that are redrawn every second in a terminal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.figures import Frame, Look, frame, look_at
from penstock.clock import monotonic
from penstock.observability import series
from penstock.observability.shared import Shared
from penstock.observability.tally import Snapshot
from penstock.service.app import Service

EVERY = 1.0
MOST_RULES = 8


def drawn(shown: Frame) -> Group:
    """Render the figures."""
    line = Text.assemble(
        (f"{shown.calls:,.0f}", "bold"),
        " requests/s   ",
        (f"{shown.decisions - shown.refused:,.0f}", "bold green"),
        " allowed/s   ",
        (f"{shown.refused:,.0f}", "bold red" if shown.refused else "bold"),
        f" refused/s   p50 {_ms(shown.requests.half)}   p99 {_ms(shown.requests.most)}",
        f"   {shown.connections:.0f} connections",
    )
    if shown.workers > 1:
        line.append(f"   {shown.workers:.0f} workers")
    parts: list[Any] = [line]
    parts += [Text(f"degraded: {why}", "yellow") for why in shown.degraded]
    if shown.degraded_answers:
        parts.append(Text(f"degraded: {shown.degraded_answers:.0f} answers/s without the store", "yellow"))
    rules = [row for row in shown.rows if row.decisions]
    if rules:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        table.add_column("rule")
        table.add_column("allowed/s", justify="right")
        table.add_column("refused/s", justify="right")
        for row in rules[:MOST_RULES]:
            name = "no rule" if row.rule == series.NONE else row.rule
            table.add_row(Text(name), f"{row.decisions - row.refused:,.0f}", f"{row.refused:,.0f}")
        if len(rules) > MOST_RULES:
            table.add_row(Text(f"and {len(rules) - MOST_RULES} more", "dim"), "", "")
        parts.append(table)
    return Group(*parts)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1_000:.2f} ms"


class NoView:
    """Draws nothing."""

    def ready(self, service: Service) -> None: ...

    def abandoned(self) -> bool:
        return False

    def close(self) -> None: ...


class _LiveView:
    """A view in a terminal."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._before = Look(0.0, {})

    def draw(self, snapshots: Sequence[Snapshot]) -> None:
        after = look_at(snapshots, monotonic())
        before, self._before = self._before, after
        with suppress(OSError):  # the terminal was closed
            if not self._live.is_started:
                self._live.start()
            self._live.update(drawn(frame(before, after)), refresh=True)

    def abandoned(self) -> bool:
        """Return whether the terminal was closed. That, too, sends SIGHUP, which then must not mean a reload."""
        try:
            return not os.isatty(self._live.console.file.fileno())
        except OSError:
            return True

    def close(self) -> None:
        with suppress(OSError):
            if self._live.is_started:
                self._live.stop()


class InProcessView(_LiveView):
    """The view of a single worker, drawn on its event loop."""

    def ready(self, service: Service) -> None:
        self.draw([service.metrics.snapshot()])
        asyncio.get_running_loop().call_later(EVERY, self.ready, service)


class WorkersView(_LiveView):
    """The view of several workers, drawn by their supervisor from the figures that they pool."""

    def __init__(self, console: Console, figures: Path) -> None:
        super().__init__(console)
        self._figures = Shared(figures, "view")

    def heard(self, worker: int, message: Mapping[str, Any]) -> None: ...

    def tick(self) -> None:
        with suppress(OSError):  # a failing disk must not end the supervisor
            self.draw(self._figures.read())

    def close(self) -> None:
        super().close()
        self._figures.close()
