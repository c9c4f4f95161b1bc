"""What `check` and `peek` have in common: what they print of a verdict, and with which code they end."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from penstock.cli.output import (
    GOOD,
    REFUSED,
    Entries,
    Json,
    SomeEntries,
    descriptor,
    plain,
    say,
    say_json,
    seconds,
    table,
)
from penstock.cli.target import Target, with_target
from penstock.client import ServiceRuling
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
    ruling = verdict if isinstance(verdict, ServiceRuling) else None
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
    return verdict.owners if isinstance(verdict, ServiceRuling) else ("",) * len(verdict.decisions)


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
    if isinstance(verdict, ServiceRuling):
        words += (
            f" by {verdict.rule}" if verdict.rule else ": no rule applies" if verdict and not verdict.degraded else ""
        )
        words += f" ({verdict.reason})" if verdict.reason else ""
    if not verdict:
        words += f": retry after {seconds(verdict.retry_after)}"
    if verdict.delay:
        words += f": start after {seconds(verdict.delay)}"
    return words + (f", decided without the store ({verdict.source})" if verdict.degraded else "")


# ---------------------------------------------------------------- check


# `penstock check`: ask a running service about a request, and charge it.
#
#     penstock check path=/search ip=192.0.2.1 [--cost N] [--id ID] [--json]
#
# Ends with 0 if the request may pass, 3 if it is refused, 4 if the service could not answer.


@with_target
def check(
    target: Target,
    entries: Entries,
    cost: Cost = 1,
    id: Annotated[
        str | None, typer.Option(help="What makes a repeated request recognisable: it is charged once.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Ask a running service about a request, and charge it if it may pass. Exits with 0: allowed, 3: refused."""
    asked = descriptor(entries)
    with target.client() as client:
        ruling = client.check(asked, cost, id=id)
    answer(ruling, as_json=as_json)


# ---------------------------------------------------------------- explain


# `penstock explain`: what the rules of a running service make of a request, and why.
#
#     penstock explain path=/search ip=192.0.2.1 [--json]
#
# It charges nothing. `penstock rules explain` does the same with a file of rules. Ends with 0, or 4 if the service
# could not answer.


@with_target
def explain(target: Target, entries: Entries, cost: Cost = 1, as_json: Json = False) -> None:
    """Say which rules of a running service apply to a request, why the others do not, and how its counters stand.

    Charges nothing. Values are not repeated in the answer, because they may be identities.
    """
    asked = descriptor(entries)
    with target.client() as client:
        explanation = client.explain(asked, cost)
    if as_json:
        say_json(plain(explanation))
    else:
        say(str(explanation))


# ---------------------------------------------------------------- peek


# `penstock peek`: what a running service would answer, charging nothing.
#
#     penstock peek path=/search ip=192.0.2.1 [--cost N] [--json]          by its rules
#     penstock peek --key alice --quota 100/minute [--cost N] [--json]     by key and quota
#
# Ends with 0 if the request would pass, 3 if it would be refused, 4 if the service could not answer.


@with_target
def peek(
    target: Target,
    entries: SomeEntries = None,
    key: KeyParts = None,
    quota: QuotaText = None,
    cost: Cost = 1,
    as_json: Json = False,
) -> None:
    """Ask what a request would be answered, charging nothing. Exits with 0: it would pass, 3: it would not."""
    named = by_key(entries or [], key, quota)
    asked = descriptor(entries or [])
    with target.client() as client:
        verdict = client.peek(asked, cost=cost) if named is None else client.peek(*named, cost)
    answer(verdict, as_json=as_json)


# ---------------------------------------------------------------- reset


# `penstock reset`: have a running service forget what was used.
#
#     penstock reset path=/search ip=192.0.2.1 [--json]           all that such requests are counted by
#     penstock reset --key alice --quota 100/minute [--json]      one key's use of a quota
#
# Ends with 0 if it was forgotten, 4 if the service could not answer.


@with_target
def reset(
    target: Target,
    entries: SomeEntries = None,
    key: KeyParts = None,
    quota: QuotaText = None,
    as_json: Json = False,
) -> None:
    """Have a running service forget what was used: by such requests, or by a key of a quota."""
    named = by_key(entries or [], key, quota)
    asked = descriptor(entries or [])
    with target.client() as client:
        if named is None:
            client.reset(asked)
        else:
            client.reset(*named)
    if as_json:
        say_json({"reset": True})
    else:
        say("forgotten")
