"""`penstock keys`: show the counters of a request.

    penstock keys show path=/search ip=192.0.2.1 [--json]                            from a running service
    penstock keys show user=alice --rules penstock.yaml --store redis://host         from a store, by a rules file

Charges nothing. Exits with 0, or 4 if the service or the store is unavailable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from penstock.cli.output import FAULTY, UNANSWERED, Entries, Json, descriptor, fail, say, say_json, seconds, table
from penstock.cli.target import Target, with_target
from penstock.errors import InvalidOption, InvalidRules, StoreError
from penstock.model import Explanation, Inspection

app = typer.Typer(help="Show the counters of requests.", no_args_is_help=True)

Rows = list[tuple[str, str, Inspection]]


@app.callback()
def keys() -> None:
    """Show the counters of requests."""


@with_target
def show(
    target: Target,
    entries: Entries,
    rules: Annotated[Path | None, typer.Option(help="A rules file, to read a store without a service.")] = None,
    store: Annotated[str | None, typer.Option(help="The store to read, such as redis://host.", metavar="URL")] = None,
    as_json: Json = False,
) -> None:
    """Show each counter that a request with these entries is charged to, per rule. Charges nothing."""
    entered = descriptor(entries)
    if (rules is None) != (store is None):
        raise typer.BadParameter("expected --rules and --store together, or neither")
    if rules is not None and store is not None:
        explanation = _in_store(entered, rules, store)
    else:
        with target.client() as client:
            explanation = client.explain(entered)
    _say(explanation, as_json=as_json)


app.command()(show)


def _in_store(entered: dict[str, str], file: Path, url: str) -> Explanation:
    from penstock.enforcer import Enforcer
    from penstock.limiter import Limiter
    from penstock.rules.parser import content, parse
    from penstock.rules.ruleset import RuleSet

    try:
        rules = RuleSet(parse(content(file), file.name))
        with Limiter(url, on_failure="raise") as limiter:
            return Enforcer(rules, limiter).explain(entered)
    except InvalidRules as error:
        fail(str(error), FAULTY)
    except InvalidOption as error:
        raise typer.BadParameter(str(error), param_hint="--store") from None
    except StoreError as error:
        fail(str(error), UNANSWERED)


def rows_of(explanation: Explanation) -> Rows:
    """Return every counter, with its rule and the mode of the rule."""
    return [(one.rule, one.mode, counter) for one in explanation.rules for counter in one.counters]


def _say(explanation: Explanation, *, as_json: bool) -> None:
    rows = rows_of(explanation)
    if as_json:
        counters = [
            {"rule": rule, "mode": mode}
            | counter._asdict()
            | {"quota": str(counter.quota), "algorithm": counter.algorithm}
            for rule, mode, counter in rows
        ]
        say_json({"version": explanation.version, "outcome": explanation.outcome, "counters": counters})
        return
    say(f"rules {explanation.version}: {explanation.outcome}")
    if not rows:
        return
    shown = table("rule", "mode", "quota", "used.", "left.", "of.", "refused for.", "reset after.")
    for rule, mode, one in rows:
        waits = seconds(one.blocked_for), seconds(one.reset_after)
        counts = f"{one.used:,}", f"{one.remaining:,}", f"{one.capacity:,}"
        shown.add_row(Text(rule), mode, Text(str(one.quota)), *counts, *waits)
    say(shown)
