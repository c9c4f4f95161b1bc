"""What `check` and `peek` have in common: what they print of a verdict, and with which code they end."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.cli.output import GOOD, REFUSED, say, say_json, seconds, table
from penstock.client import Ruling
from penstock.model import Verdict

Cost = Annotated[int, typer.Option(help="The units that the request costs.", min=0)]
KeyParts = Annotated[
    list[str] | None, typer.Option("--key", help="Whose counter, without rules; repeated for a key of several parts.")
]
QuotaText = Annotated[str | None, typer.Option("--quota", help='The quota of that key, such as "100/minute".')]


def by_key(entries: list[str], key: list[str] | None, quota: str | None) -> tuple[tuple[str, ...], str] | None:
    """Key and quota, if it is these that were typed in, and not entries."""
    if entries and not key and quota is None:
        return None
    if entries or not key or quota is None:
        raise typer.BadParameter("expected ENTRY=VALUE..., or --key and --quota")
    return tuple(key), quota


def answer(verdict: Verdict, *, as_json: bool) -> None:
    """Print what was decided, and end the command."""
    if as_json:
        say_json(_plain(verdict))
    else:
        _say(verdict)
    raise typer.Exit(GOOD if verdict else REFUSED)


def _plain(verdict: Verdict) -> dict[str, Any]:
    ruling = verdict if isinstance(verdict, Ruling) else None
    plain: dict[str, Any] = {"allowed": verdict.allowed, "retry_after": verdict.retry_after, "delay": verdict.delay}
    plain |= {"source": verdict.source, "degraded": verdict.degraded}
    if ruling is not None:
        plain |= {"rule": ruling.rule, "reason": ruling.reason, "status": ruling.status, "version": ruling.version}
        plain |= {"message": ruling.message, "would_refuse": ruling.would_refuse, "headers": dict(ruling.headers)}
    names = _rules(verdict)
    decisions = [
        {
            "rule": rule,
            "quota": str(one.quota),
            "cost": one.cost,
            "allowed": one.allowed,
            "remaining": one.remaining,
            "retry_after": one.retry_after,
            "reset_after": one.reset_after,
            "advisory": one.advisory,
        }
        for one, rule in zip(verdict.decisions, names, strict=True)
    ]
    return plain | {"decisions": decisions}


def _rules(verdict: Verdict) -> tuple[str, ...]:
    return verdict.owners if isinstance(verdict, Ruling) else ("",) * len(verdict.decisions)


def _say(verdict: Verdict) -> None:
    line = Text("allowed", "bold green") if verdict else Text("refused", "bold red")
    line.append(_why(verdict), "")
    say(line)
    if not verdict.decisions:
        return
    rows = table("rule", "quota", "answer", "left.", "retry after.", "reset after.")
    for one, rule in zip(verdict.decisions, _rules(verdict), strict=True):
        mode = " (shadow)" if one.advisory else ""
        says = ("passes" if one.allowed else "refuses") + mode
        waits = seconds(one.retry_after), seconds(one.reset_after)
        rows.add_row(Text(rule or "–"), Text(str(one.quota)), says, f"{one.remaining:,}", *waits)
    say(rows)


def _why(verdict: Verdict) -> str:
    """In a few words, what follows `allowed` or `refused`."""
    words = ""
    if isinstance(verdict, Ruling):
        words += (
            f" by {verdict.rule}" if verdict.rule else ": no rule applies" if verdict and not verdict.degraded else ""
        )
        words += f" ({verdict.reason})" if verdict.reason else ""
    if not verdict:
        words += f": retry after {seconds(verdict.retry_after)}"
    if verdict.delay:
        words += f": start after {seconds(verdict.delay)}"
    return words + (f", decided without the store ({verdict.source})" if verdict.degraded else "")
