"""`penstock top`: the live figures of a running service, from its `/metrics` and `/readyz`.

    penstock top [--url URL] [--interval SECONDS] [--once] [--json]

The figures cover all workers. `--once` prints one frame and exits, for scripts.
"""

from __future__ import annotations

import json
from contextlib import suppress
from threading import Event
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from penstock.cli.figures import Frame, Latency, Look, frame, read
from penstock.cli.output import UNANSWERED, console, fail, seconds, table
from penstock.cli.target import Target, with_target
from penstock.client.http import ApiReply, ApiRequest, Lost
from penstock.client.store import ServiceCalls
from penstock.clock import monotonic
from penstock.observability import series

MAX_ROWS = 20


@with_target
def top(
    target: Target,
    interval: Annotated[float, typer.Option(help="Seconds between two frames.", min=0.1, max=3_600)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per frame, each on a line.")] = False,
) -> None:
    """Show a running service: decisions and refusals per second and rule, latencies, breakers, rules.

    Ends on Ctrl-C. Exits with 4 if the service is unavailable.
    """
    with target.service() as service, suppress(KeyboardInterrupt):
        before = look(service)
        if once or as_json:
            _print_frames(service, before, interval, once=once, as_json=as_json)
        else:
            _show_frames(service, before, interval)


def _print_frames(service: ServiceCalls, before: Look, interval: float, *, once: bool, as_json: bool) -> None:
    while True:
        before, shown = _next(service, before, interval)
        _print(shown, as_json=as_json)
        if once:
            return


def _show_frames(service: ServiceCalls, before: Look, interval: float) -> None:
    screen = console()
    with Live(Text("…"), console=screen, auto_refresh=False, screen=screen.is_terminal) as live:
        while True:
            before, shown = _next(service, before, interval)
            live.update(rendered(shown, service.address.place), refresh=True)


def _next(service: ServiceCalls, before: Look, interval: float) -> tuple[Look, Frame]:
    Event().wait(interval)
    after = look(service)
    return after, frame(before, after)


def look(service: ServiceCalls) -> Look:
    """Read the metrics and the status of a service."""
    place = service.address.place
    heard = service.ask([ApiRequest(b"/metrics", None, True), ApiRequest(b"/readyz", None, True)])
    metrics, ready = (_replied(one, place) for one in heard)
    if metrics.status != 200:
        hint = " (expected a token in PENSTOCK_TOKEN)" if metrics.status in (401, 403) else ""
        fail(f"service at {place}: /metrics answers {metrics.status}{hint}", UNANSWERED)
    try:
        health: Any = json.loads(ready.body)
    except ValueError:
        health = None
    if not isinstance(health, dict):
        health = {}
    degraded = tuple(str(why) for why in health.get("degraded") or ())
    return Look(monotonic(), read(metrics.body.decode()), str(health.get("status", ready.status)), degraded)


def _replied(heard: ApiReply | Lost, place: str) -> ApiReply:
    if isinstance(heard, Lost):
        fail(f"service at {place}: {heard.why}", UNANSWERED)
    return heard


def _print(shown: Frame, *, as_json: bool) -> None:
    if as_json:
        plain = shown._asdict()
        plain |= {"rows": [row._asdict() for row in shown.rows]}
        plain |= {"requests": shown.requests._asdict(), "store": shown.store._asdict()}
        typer.echo(json.dumps(plain))
    else:
        console().print(rendered(shown))


def rendered(shown: Frame, place: str = "") -> Group:
    """Render a frame."""
    state = Text.assemble((shown.status or "unknown", "green" if shown.status == "ready" else "bold yellow"))
    head = Text.assemble(
        ("penstock", "bold"), f" {place}  " if place else "  ", state,
        f"  workers {shown.workers:.0f}  connections {shown.connections:.0f}",
    )  # fmt: skip
    rules = f"rules {shown.version or 'none'}, in force for {seconds(shown.age)}"
    breakers = ", ".join(f"{number} {name}" for name, number in sorted(shown.breakers.items())) or "none"
    rates = Text.assemble(
        (_rate(shown.decisions), "bold"), " decisions/s  ",
        (_rate(shown.refused), "bold red" if shown.refused else "bold"), " refused/s  ",
        (_rate(shown.degraded_answers), "bold yellow" if shown.degraded_answers else "bold"), " degraded/s",
    )  # fmt: skip
    times = f"answers {_latency(shown.requests)}   store {_latency(shown.store)}   breakers {breakers}"
    rows = table("rule", "decisions/s.", "refused/s.", "refused.", "degraded/s.", "shadow/s.")
    for row in shown.rows[:MAX_ROWS]:
        share = f"{100 * row.refused / row.decisions:.1f} %" if row.decisions else "–"
        rows.add_row(
            Text("no rule" if row.rule == series.NONE else row.rule),
            _rate(row.decisions),
            _rate(row.refused),
            share,
            _rate(row.degraded),
            _rate(row.would_refuse),
        )
    left = len(shown.rows) - MAX_ROWS
    more = [Text(f"and {left} more")] if left > 0 else []
    warnings = [Text(f"degraded: {why}", "yellow") for why in shown.degraded]
    return Group(head, Text(rules), *warnings, Text(), rates, Text(times), Text(), rows, *more)


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == 0 else f"{per_second:.1f}"


def _latency(latency: Latency) -> str:
    return f"p50 {_milliseconds(latency.half)}, p99 {_milliseconds(latency.most)}"


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1_000:.2f} ms"
