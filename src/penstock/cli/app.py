"""The Typer app behind the entry point `penstock`."""

from __future__ import annotations

import typer

from penstock.cli import keys, rules
from penstock.cli.doctor import doctor
from penstock.cli.requests import acquire, check, explain, peek, reset
from penstock.cli.serve import serve
from penstock.cli.top import top

app = typer.Typer(
    name="penstock",
    help="Decide, for every request, whether it may pass now.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (serve, check, acquire, peek, reset, explain, top, doctor):
    app.command()(command)
app.add_typer(keys.app, name="keys")
app.add_typer(rules.app, name="rules")


@app.callback()
def main() -> None:
    """Decide, for every request, whether it may pass now."""
