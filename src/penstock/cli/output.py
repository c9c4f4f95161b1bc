"""The output of commands: text, or one JSON object for scripts; and their exit codes.

| exit code | meaning |
|---|---|
| 0 | success; the request may pass |
| 1 | faults were found |
| 2 | wrong usage |
| 3 | the request is refused |
| 4 | the service or the store is unavailable |

Results go to standard output, errors to standard error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.model import Explanation

GOOD, FAULTY, NOT_UNDERSTOOD, REFUSED, UNANSWERED = range(5)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
_ENTRIES: Any = typer.Argument(
    metavar="ENTRY=VALUE...", help="The descriptor of the request: path=/search ip=192.0.2.1."
)
Entries = Annotated[list[str], _ENTRIES]
SomeEntries = Annotated[list[str] | None, _ENTRIES]


def descriptor(entries: list[str]) -> dict[str, str]:
    """Parse entries into a descriptor."""
    found = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{entry!r}: expected ENTRY=VALUE, such as path=/v1/orders")
        found[name] = value
    return found


def fail(why: str, code: int) -> NoReturn:
    """Print the reason to standard error, and exit with this code."""
    typer.echo(f"penstock: {why}", err=True)
    raise typer.Exit(code)


def console() -> Console:
    return Console(highlight=False, soft_wrap=True, markup=False)


def say(*words: str | Text | Table) -> None:
    """Print, without interpreting markup."""
    for one in words:
        console().print(Text(one) if isinstance(one, str) else one)


def say_json(value: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2))


def table(*columns: str) -> Table:
    """Return a table without borders. A column whose name ends in a dot is aligned to the right."""
    made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column.rstrip("."), justify="right" if column.endswith(".") else "left", no_wrap=True)
    return made


def plain(explanation: Explanation) -> dict[str, object]:
    """Return an explanation as JSON values."""
    rules = [
        rule._asdict()
        | {"quotas": [str(quota) for quota in rule.quotas], "counters": [str(counter) for counter in rule.counters]}
        for rule in explanation.rules
    ]
    return explanation._asdict() | {"rules": rules}


def seconds(number: float) -> str:
    """Return a duration in its natural unit; a dash for none."""
    if not number:
        return "–"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if number >= 2 * size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g} s"
