"""`penstock rules`: check rules files, explain requests by them, print their schema, convert from Envoy.

penstock rules check FILE [--json]      0: valid, 1: faults, a line each: `file:line: path: value: what is wrong`
penstock rules explain FILE ENTRY=VALUE... [--store URL] [--json]      which rules apply to a request, and why
penstock rules schema                   the JSON Schema, for editors
penstock rules convert FOLDER           the rules of an envoyproxy/ratelimit configuration
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from penstock.cli.output import FAULTY, Entries, Json, descriptor, plain, say, say_json
from penstock.enforcer import Enforcer
from penstock.errors import Fault, InvalidOption, InvalidRules, StoreError
from penstock.limiter import Limiter
from penstock.rules import schema as schemas
from penstock.rules.model import RuleFile
from penstock.rules.parser import content, parse
from penstock.rules.ruleset import RuleSet
from penstock.service.envoy.config_files import Options, read
from penstock.service.envoy.config_source import read_files
from penstock.service.envoy.convert import convert as conversion

MEMORY = "memory://"

app = typer.Typer(help="Work with rules files.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="A rules file, such as penstock.yaml.", show_default=False)]


@app.command()
def check(file: File, as_json: Json = False) -> None:
    """Check a rules file and report all of its faults. Exits with 1 if it has any."""
    try:
        text = content(file)
        rules = parse(text, file.name)
    except InvalidRules as error:
        _say_faults(error.faults, as_json=as_json)
        raise typer.Exit(FAULTY) from None
    _say_sound(file.name, rules, RuleSet(rules).version, as_json=as_json)


@app.command()
def explain(
    file: File,
    entries: Entries,
    store: Annotated[str, typer.Option(help="The store with the counters, such as redis://host.")] = MEMORY,
    as_json: Json = False,
) -> None:
    """Explain which rules apply to a request, why the others do not, and show its counters. Charges nothing.

    The answer does not repeat the values of entries, because they may be identities.
    """
    try:
        rules = RuleSet(parse(content(file), file.name))
    except InvalidRules as error:
        _say_faults(error.faults, as_json=as_json)
        raise typer.Exit(FAULTY) from None
    entered = descriptor(entries)
    try:
        with Limiter(store, on_failure=None if store == MEMORY else "raise") as limiter:
            explanation = Enforcer(rules, limiter).explain(entered)
    except (InvalidOption, StoreError) as error:
        raise typer.BadParameter(str(error), param_hint="--store") from None
    if as_json:
        say_json(plain(explanation))
    else:
        say(str(explanation))


@app.command()
def schema() -> None:
    """Print the JSON Schema of rules files."""
    typer.echo(schemas.text(), nl=False)


@app.command()
def convert(
    folder: Annotated[
        Path, typer.Argument(help="The configuration folder of envoyproxy/ratelimit.", show_default=False)
    ],
    merge_domains: Annotated[bool, typer.Option(help="Merge files that have the same domain.")] = False,
) -> None:
    """Convert a configuration of envoyproxy/ratelimit to rules.

    What rules cannot express is reported on standard error, a line each. Exits with 1 if the configuration has faults.
    """
    try:
        config = read(read_files(folder), Options(merge_domains=merge_domains))
    except InvalidRules as error:
        _say_faults(error.faults, as_json=False)
        raise typer.Exit(FAULTY) from None
    except OSError as error:
        raise typer.BadParameter(f"cannot be read: {error.strerror}", param_hint="FOLDER") from None
    converted = conversion(config)
    typer.echo(converted.text, nl=False)
    for note in converted.notes:
        typer.echo(note, err=True)


def _say_faults(faults: tuple[Fault, ...], *, as_json: bool) -> None:
    if as_json:
        say_json({"sound": False, "faults": [fault._asdict() for fault in faults]})
        return
    for fault in faults:
        where, _, what = str(fault).partition(": ")
        say(Text.assemble((where, "bold"), ": ", what))
    say(Text(f"{len(faults)} {'fault' if len(faults) == 1 else 'faults'}", "bold red"))


def _say_sound(name: str, rules: RuleFile, named: str, *, as_json: bool) -> None:
    counts = {"rules": len(rules.rules), "overrides": len(rules.overrides)}
    if as_json:
        say_json({"sound": True, **counts, "version": named})
        return
    words = ", ".join(f"{number} {what if number != 1 else what[:-1]}" for what, number in counts.items())
    say(Text.assemble((name, "bold"), f": sound, {words}, version {named}"))
