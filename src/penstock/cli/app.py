"""The app that the entry point `penstock` runs."""

from __future__ import annotations

import typer

from penstock.cli import rules
from penstock.cli.serve import serve

app = typer.Typer(
    name="penstock",
    help="Decide, for every request, whether it may pass now.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(rules.app, name="rules")
app.command()(serve)


@app.callback()
def main() -> None:
    """Decide, for every request, whether it may pass now."""
