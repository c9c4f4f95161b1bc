"""`penstock doctor`: check everything that a service depends on, and name a remedy for each finding.

    penstock doctor [--config FILE] [--store URL] [--rules FILE] [--secret FILE]... [--url URL] [--json]

It changes nothing. It exits with 1 if there is a problem; notes and warnings alone exit with 0.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from penstock.cli import facts
from penstock.cli.findings import Finding, Level, worst
from penstock.cli.output import FAULTY, NOT_UNDERSTOOD, Json, fail, say, say_json
from penstock.cli.target import Target, with_target
from penstock.client.address import DEFAULT_URL
from penstock.errors import InvalidOption
from penstock.service.settings import Settings, load

STYLES: dict[Level, str] = {"fine": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}


@with_target
def doctor(
    target: Target,
    config: Annotated[
        Path | None, typer.Option(help="The TOML file of the service's settings; also PENSTOCK_CONFIG.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="The store, instead of that of the settings.", metavar="URL")
    ] = None,
    rules: Annotated[Path | None, typer.Option(help="The rules file, instead of that of the settings.")] = None,
    secret: Annotated[
        list[Path] | None, typer.Option(help="A file that other users must not read. May be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check store, clock, rules, packages, files and service. Exits with 1 if there is a problem.

    The checks follow from the settings that `penstock serve` would have here: the same variables, the same file.
    """
    logging.getLogger("penstock").addHandler(logging.NullHandler())  # its warnings are among the findings
    try:
        settings = load({"store": store, "rules": rules and str(rules)}, os.environ, config)
    except InvalidOption as error:
        fail(str(error), NOT_UNDERSTOOD)
    found = facts.packages()
    if settings.rules.exists() or settings.origin("rules") != "default":
        found += facts.rules(settings.rules)
    found += facts.files(*_files(settings, [*(secret or []), target.client_key, config]))
    found += facts.store(settings.store)
    with target.service() as service:
        found += facts.service(service, expected=target.url != DEFAULT_URL)
    _say(found, as_json=as_json)
    if worst(found) == "problem":
        raise typer.Exit(FAULTY)


def _files(settings: Settings, named: list[Path | None]) -> tuple[list[Path], list[Path]]:
    """Return the files that other users must not change, and those that they must not read."""
    secrets = [settings.tls_key, settings.keys, *named]
    return [settings.rules] if settings.rules.exists() else [], [path for path in secrets if path is not None]


def _say(found: list[Finding], *, as_json: bool) -> None:
    if as_json:
        say_json({"worst": worst(found), "findings": [finding._asdict() for finding in found]})
        return
    width = max(len(level) for level in STYLES)
    for about, level, says, advice in found:
        line = Text.assemble((f"{level:<{width}}  ", STYLES[level]), (about, "bold"), ": ", says)
        if advice:
            line.append(f"\n{'':<{width}}  → {advice}")
        say(line)
    counts = {level: sum(finding.level == level for finding in found) for level in ("problem", "warning")}
    words = [f"{number} {level}{'' if number == 1 else 's'}" for level, number in counts.items()]
    say(Text(", ".join(words), "bold"))
