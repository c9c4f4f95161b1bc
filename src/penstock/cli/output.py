"""How commands end and what they print: words for people, one JSON object for scripts.

| exit code | meaning |
|---|---|
| 0 | all is well; the request may pass |
| 1 | what was looked at has faults |
| 2 | the command was not understood |
| 3 | the request is refused |
| 4 | the service, or the store, could not answer |

Results go to standard output, what went wrong to standard error.
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

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")]
_WHAT: Any = typer.Argument(metavar="ENTRY=VALUE...", help="What is known of the request: path=/search ip=192.0.2.1.")
Entries = Annotated[list[str], _WHAT]
SomeEntries = Annotated[list[str] | None, _WHAT]


def descriptor(entries: list[str]) -> dict[str, str]:
    """Entries as they are typed in."""
    found = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{entry!r}: expected ENTRY=VALUE, such as path=/v1/orders")
        found[name] = value
    return found


def fail(why: str, code: int) -> NoReturn:
    """Say why on standard error, and end."""
    typer.echo(f"penstock: {why}", err=True)
    raise typer.Exit(code)


def console() -> Console:
    return Console(highlight=False, soft_wrap=True, markup=False)


def say(*words: str | Text | Table) -> None:
    """Print; nothing in it is taken for markup."""
    for one in words:
        console().print(Text(one) if isinstance(one, str) else one)


def say_json(value: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2))


def table(*columns: str) -> Table:
    """One with a head and nothing else around it; a name that ends in a dot is that of a column of numbers."""
    made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column.rstrip("."), justify="right" if column.endswith(".") else "left", no_wrap=True)
    return made


def plain(explanation: Explanation) -> dict[str, object]:
    """An explanation as JSON can carry it."""
    rules = [
        rule._asdict()
        | {"quotas": [str(quota) for quota in rule.quotas], "counters": [str(counter) for counter in rule.counters]}
        for rule in explanation.rules
    ]
    return explanation._asdict() | {"rules": rules}


def seconds(number: float) -> str:
    """A span of time as people read it; nothing where there is none."""
    if not number:
        return "–"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if number >= 2 * size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g} s"
