"""`penstock doctor`: look at everything that a service rests on, and say what to do about what is found.

    penstock doctor [--store URL] [--rules FILE] [--secret FILE]... [--url URL] [--json]

It changes nothing. It ends with 0 if nothing is wrong, 1 if there is a problem; notes and warnings alone end with 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from penstock.cli import examining
from penstock.cli.connecting import (
    DEFAULT_URL,
    FAULTY,
    TIMEOUT,
    Ca,
    Certificate,
    Json,
    Key,
    Url,
    address,
    console,
    say_json,
)
from penstock.cli.findings import Finding, Level, worst
from penstock.client.service import Service

STYLES: dict[Level, str] = {"fine": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}


def doctor(
    store: Annotated[
        str | None,
        typer.Option(envvar="PENSTOCK_STORE", help="The store to look at, such as redis://host.", metavar="URL"),
    ] = None,
    rules: Annotated[Path | None, typer.Option(envvar="PENSTOCK_RULES", help="The file of rules to look at.")] = None,
    secret: Annotated[
        list[Path] | None,
        typer.Option(help="A file that nobody else may read: a key of TLS, API keys. May be repeated."),
    ] = None,
    url: Url = DEFAULT_URL,
    ca: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Look at store, clock, rules, packages, files and service, and say what to do. Exits with 1 if there is a problem.

    What is not named is not looked at, except packages and the service at its usual place.
    """
    found = examining.packages()
    secrets = [*(secret or []), *([key] if key else [])]
    if rules is not None:
        found += examining.rules(rules)
    found += examining.files([rules] if rules and rules.exists() else [], secrets)
    if store is not None:
        found += examining.store(store)
    asked = Service(address(url, ca, certificate, key), TIMEOUT)
    try:
        found += examining.service(asked, expected=url != DEFAULT_URL)
    finally:
        asked.close()
    _say(found, as_json=as_json)
    if worst(found) == "problem":
        raise typer.Exit(FAULTY)


def _say(found: list[Finding], *, as_json: bool) -> None:
    if as_json:
        say_json({"worst": worst(found), "findings": [finding._asdict() for finding in found]})
        return
    width = max(len(level) for level in STYLES)
    for about, level, says, advice in found:
        line = Text.assemble((f"{level:<{width}}  ", STYLES[level]), (about, "bold"), ": ", says)
        if advice:
            line.append(f"\n{'':<{width}}  → {advice}", "dim" if level == "note" else "")
        console().print(line)
    counts = {level: sum(finding.level == level for finding in found) for level in ("problem", "warning")}
    words = [f"{number} {level}{'' if number == 1 else 's'}" for level, number in counts.items()]
    console().print(Text(", ".join(words), "bold"))
