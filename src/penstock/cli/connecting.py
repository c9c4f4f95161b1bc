"""What commands that ask a running service have in common: whom they ask, and how they end.

| exit code | meaning |
|---|---|
| 0 | all is well; the request may pass |
| 1 | what was looked at has faults |
| 2 | the command was not understood |
| 3 | the request is refused |
| 4 | the service, or the store, could not answer |
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.client.address import DEFAULT_URL, Address, Tls
from penstock.client.exchange import Heard, Lost
from penstock.client.replies import Reply
from penstock.errors import InvalidInput, StoreError

GOOD, FAULTY, NOT_UNDERSTOOD, REFUSED, UNANSWERED = range(5)
TOKEN = "PENSTOCK_TOKEN"  # noqa: S105  the name of the variable
TIMEOUT = 5.0

Url = Annotated[str, typer.Option("--url", envvar="PENSTOCK_URL", help="Where the service is. Its token is taken "
                                  f"from the variable {TOKEN}.", metavar="URL")]  # fmt: skip
Ca = Annotated[Path | None, typer.Option(envvar="PENSTOCK_CA", help="Who signs the service's certificate (PEM).")]
Certificate = Annotated[
    Path | None,
    typer.Option(envvar="PENSTOCK_CERTIFICATE", help="What to show of ourselves; the key may be in it (PEM)."),
]
Key = Annotated[Path | None, typer.Option(envvar="PENSTOCK_KEY", help="The key of that certificate (PEM).")]
Timeout = Annotated[float, typer.Option(help="Seconds that the service may take.", min=0.001, max=3_600)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")]
Entries = Annotated[
    list[str], typer.Argument(metavar="ENTRY=VALUE...", help="What is known of the request.", show_default=False)
]
Cost = Annotated[int, typer.Option(help="The units that the request costs.", min=0)]


def address(url: str, ca: Path | None, certificate: Path | None, key: Path | None) -> Address:
    """Where to ask; a token comes from the environment alone, because everybody on a machine sees its flags."""
    tls = Tls(ca, certificate, key) if ca or certificate or key else None
    try:
        return Address(url, os.environ.get(TOKEN) or None, tls)
    except InvalidInput as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None


def descriptor(entries: list[str]) -> dict[str, str]:
    """Entries as they are typed in."""
    found = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{entry!r}: expected ENTRY=VALUE, such as path=/v1/orders")
        found[name] = value
    return found


@contextmanager
def asking() -> Iterator[None]:
    """What goes wrong on the way ends the command, with a line that says so."""
    try:
        yield
    except StoreError as error:
        fail(str(error), UNANSWERED)
    except InvalidInput as error:
        fail(str(error), NOT_UNDERSTOOD)


def replied(heard: Heard, place: str) -> Reply:
    """The reply, if there is one."""
    if isinstance(heard, Lost):
        fail(f"service at {place}: {heard.why}", UNANSWERED)
    return heard


def fail(why: str, code: int) -> NoReturn:
    """Say why on standard error, and end."""
    typer.echo(f"penstock: {why}", err=True)
    raise typer.Exit(code)


def say(words: str | Text) -> None:
    """Print words; nothing in them is taken for markup."""
    console().print(Text(words) if isinstance(words, str) else words)


def say_json(value: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2))


def console() -> Console:
    return Console(highlight=False, soft_wrap=True, markup=False)


def table(*columns: str, title: str | None = None) -> Table:
    """One with a head and nothing else around it; numbers are in columns whose name ends in a dot."""
    made = Table(box=None, title=title, title_justify="left", header_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(column.rstrip("."), justify="right" if column.endswith(".") else "left")
    return made


__all__ = ["DEFAULT_URL"]
