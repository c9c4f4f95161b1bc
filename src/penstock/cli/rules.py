"""`penstock rules`: check a file of rules, and print the schema of such files.

    penstock rules check FILE [--json]      0: sound, 1: faults, each a line `file:line: path: value: what is wrong`
    penstock rules schema                   the JSON Schema, for editors

Results go to standard output, so that scripts can read them; `--json` makes them one JSON object.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from penstock.errors import Fault, InvalidRules
from penstock.rules import schema as schemas
from penstock.rules.model import RuleFile
from penstock.rules.parsing import content, parse, version

SOUND, FAULTY = 0, 1

app = typer.Typer(help="Work with files of rules.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="A file of rules, such as penstock.yaml.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")]


@app.command()
def check(file: File, as_json: Json = False) -> None:
    """Read a file of rules and say everything that is wrong with it, or that it is sound. Exits with 1 on faults."""
    try:
        text = content(file)
        rules = parse(text, file.name)
    except InvalidRules as error:
        _say_faults(error.faults, as_json=as_json)
        raise typer.Exit(FAULTY) from None
    _say_sound(file.name, rules, version(text), as_json=as_json)


@app.command()
def schema() -> None:
    """Print the JSON Schema of files of rules."""
    typer.echo(schemas.text(), nl=False)


def _say_faults(faults: tuple[Fault, ...], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"sound": False, "faults": [fault._asdict() for fault in faults]}, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    for fault in faults:
        where, _, what = str(fault).partition(": ")
        console.print(Text.assemble((where, "bold"), ": ", what))
    console.print(Text(f"{len(faults)} {'fault' if len(faults) == 1 else 'faults'}", "bold red"))


def _say_sound(name: str, rules: RuleFile, named: str, *, as_json: bool) -> None:
    counts = {"rules": len(rules.rules), "overrides": len(rules.overrides)}
    if as_json:
        typer.echo(json.dumps({"sound": True, **counts, "version": named}, indent=2))
        return
    words = ", ".join(f"{number} {what if number != 1 else what[:-1]}" for what, number in counts.items())
    Console(highlight=False, soft_wrap=True).print(Text.assemble((name, "bold"), f": sound, {words}, version {named}"))
