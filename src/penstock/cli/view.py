"""The live view of `penstock serve`: a few lines that are drawn anew every second, or nothing where nobody looks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.figures import Figures, Looks
from penstock.clock import monotonic
from penstock.observability.shared import Shared
from penstock.service.app import Service

EVERY = 1.0
MOST_RULES = 8


def drawn(figures: Figures) -> Group:
    """The view as rich shows it."""
    line = Text.assemble(
        (f"{figures.requests:,.0f}", "bold"),
        " requests/s   ",
        (f"{figures.allowed:,.0f}", "bold green"),
        " allowed/s   ",
        (f"{figures.refused:,.0f}", "bold red" if figures.refused else "bold"),
        f" refused/s   p50 {_ms(figures.p50)}   p99 {_ms(figures.p99)}   {figures.connections} connections",
    )
    if figures.workers > 1:
        line.append(f"   {figures.workers} workers")
    parts: list[Any] = [line]
    parts += [Text(f"degraded: {why}", "yellow") for why in figures.degraded]
    if figures.rules:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        table.add_column("rule")
        table.add_column("allowed/s", justify="right")
        table.add_column("refused/s", justify="right")
        for rule in figures.rules[:MOST_RULES]:
            table.add_row(Text(rule.name), f"{rule.allowed:,.0f}", f"{rule.refused:,.0f}")
        if len(figures.rules) > MOST_RULES:
            table.add_row(Text(f"and {len(figures.rules) - MOST_RULES} more", "dim"), "", "")
        parts.append(table)
    return Group(*parts)


def _ms(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:.2f} ms"


def is_gone(live: Live) -> bool:
    """Whether the terminal of a view was closed. That comes as SIGHUP, too, and does not mean a reload."""
    try:
        return not os.isatty(live.console.file.fileno())
    except OSError:
        return True


class NoView:
    """Draws nothing."""

    def ready(self, service: Service) -> None: ...

    def abandoned(self) -> bool:
        return False

    def close(self) -> None: ...


class InProcessView:
    """The view of the one worker that runs in this process; drawn on its event loop, once a second."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._looks = Looks()

    def ready(self, service: Service) -> None:
        self._live.start()
        self._draw(service)

    def abandoned(self) -> bool:
        return is_gone(self._live)

    def close(self) -> None:
        with suppress(OSError):  # a terminal that is gone
            self._live.stop()

    def _draw(self, service: Service) -> None:
        figures = self._looks.look([service.metrics.snapshot()], monotonic())
        with suppress(OSError):
            self._live.update(drawn(figures), refresh=True)
        asyncio.get_running_loop().call_later(EVERY, self._draw, service)


class WorkersView:
    """The view of several workers, drawn by their supervisor from the figures that they pool."""

    def __init__(self, console: Console, figures: Path) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._figures = Shared(figures, "view")
        self._looks = Looks()

    def heard(self, worker: int, message: Mapping[str, Any]) -> None: ...

    def tick(self) -> None:
        with suppress(OSError):  # a terminal that is gone, or a disk in trouble: no reason to end workers
            if not self._live.is_started:
                self._live.start()
            self._live.update(drawn(self._looks.look(self._figures.read(), monotonic())), refresh=True)

    def abandoned(self) -> bool:
        return is_gone(self._live)

    def close(self) -> None:
        with suppress(OSError):
            if self._live.is_started:
                self._live.stop()
        self._figures.close()
