"""The commands that send a request to a running service.

    penstock check path=/search ip=192.0.2.1 [--cost N] [--id ID] [--json]       charge it, if it is allowed
    penstock acquire alice=100/minute acme="1000/hour cost 5" [--id ID] [--json] without rules, all or none
    penstock peek path=/search ip=192.0.2.1 [--cost N] [--json]                  decide without a charge
    penstock reset path=/search ip=192.0.2.1 [--json]                            clear its counters
    penstock explain path=/search ip=192.0.2.1 [--json]                          which rules apply, and why

`peek` and `reset` also take `--key alice --quota 100/minute`, without rules. The commands exit with 0; `check`,
`acquire` and `peek` with 3 if the request is refused; all with 4 if the service is unavailable.
"""

from __future__ import annotations

import re
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

Cost = Annotated[int, typer.Option(help="The cost of the request in units.", min=0)]
KeyParts = Annotated[
    list[str] | None,
    typer.Option("--key", help="The key of a counter, without rules. Repeat it for a key of several parts."),
]
Counters = Annotated[
    list[str],
    typer.Argument(metavar="KEY=QUOTA...", help='Keys and their quotas: alice=100/minute, acme="1000/hour cost 5".'),
]
RequestId = Annotated[
    str | None, typer.Option("--id", help="The idempotency key: a repeated request with it is charged once.")
]
QuotaText = Annotated[str | None, typer.Option("--quota", help='The quota of that key, such as "100/minute".')]


def by_key(entries: list[str], key: list[str] | None, quota: str | None) -> tuple[tuple[str, ...], str] | None:
    """Return key and quota if they were given instead of entries."""
    if entries and not key and quota is None:
        return None
    if entries or not key or quota is None:
        raise typer.BadParameter("expected ENTRY=VALUE..., or --key and --quota")
    return tuple(key), quota


def answer(verdict: Verdict, *, as_json: bool) -> None:
    """Print the verdict and exit."""
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
    """Return what follows `allowed` or `refused`: rule, reason and times."""
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


@with_target
def check(
    target: Target,
    entries: Entries,
    cost: Cost = 1,
    id: RequestId = None,
    as_json: Json = False,
) -> None:
    """Check a request with a running service, and charge it if it is allowed. Exits with 0: allowed, 3: refused."""
    entered = descriptor(entries)
    with target.client() as client:
        ruling = client.check(entered, cost, id=id)
    answer(ruling, as_json=as_json)


@with_target
def acquire(target: Target, counters: Counters, id: RequestId = None, as_json: Json = False) -> None:
    """Charge keys by quotas of their own, without rules: all of them or none. Exits with 0: allowed, 3: refused."""
    requests = [_request(counter) for counter in counters]
    with target.client() as client:
        verdict = client.acquire_all(requests, id=id)
    answer(verdict, as_json=as_json)


def _request(counter: str) -> tuple[str, str, int]:
    """Parse KEY=QUOTA, which may end in the cost. A key may contain an equals sign; a quota cannot."""
    key, _, text = counter.rpartition("=")
    quota, cost = re.fullmatch(r"(.*?)(?: cost (\d+))?", text, re.DOTALL).groups()  # type: ignore[union-attr]
    if not key or not quota:
        raise typer.BadParameter(f"{counter!r}: expected KEY=QUOTA, such as alice=100/minute")
    return key, quota, int(cost or 1)


@with_target
def explain(target: Target, entries: Entries, cost: Cost = 1, as_json: Json = False) -> None:
    """Explain which rules of a running service apply to a request, why the others do not, and show its counters.

    Charges nothing. The answer does not repeat the values of entries, because they may be identities.
    """
    entered = descriptor(entries)
    with target.client() as client:
        explanation = client.explain(entered, cost)
    if as_json:
        say_json(plain(explanation))
    else:
        say(str(explanation))


@with_target
def peek(
    target: Target,
    entries: SomeEntries = None,
    key: KeyParts = None,
    quota: QuotaText = None,
    cost: Cost = 1,
    as_json: Json = False,
) -> None:
    """Decide a request without charging it. Exits with 0: it would be allowed, 3: it would be refused."""
    named = by_key(entries or [], key, quota)
    entered = descriptor(entries or [])
    with target.client() as client:
        verdict = client.peek(descriptor=entered, cost=cost) if named is None else client.peek(*named, cost)
    answer(verdict, as_json=as_json)


@with_target
def reset(
    target: Target,
    entries: SomeEntries = None,
    key: KeyParts = None,
    quota: QuotaText = None,
    as_json: Json = False,
) -> None:
    """Clear the counters of a request, or of a key and quota, in a running service."""
    named = by_key(entries or [], key, quota)
    entered = descriptor(entries or [])
    with target.client() as client:
        if named is None:
            client.reset(descriptor=entered)
        else:
            client.reset(*named)
    if as_json:
        say_json({"reset": True})
    else:
        say("reset")
