"""`penstock check`: ask a running service about a request, and charge it.

    penstock check path=/search ip=192.0.2.1 [--cost N] [--id ID] [--json]

Ends with 0 if the request may pass, 3 if it is refused, 4 if the service could not answer.
"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.asking import Cost, answer
from penstock.cli.output import Entries, Json, descriptor
from penstock.cli.target import Target, with_target


@with_target
def check(
    target: Target,
    entries: Entries,
    cost: Cost = 1,
    id: Annotated[
        str | None, typer.Option(help="What makes a repeated request recognisable: it is charged once.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Ask a running service about a request, and charge it if it may pass. Exits with 0: allowed, 3: refused."""
    asked = descriptor(entries)
    with target.client() as client:
        ruling = client.check(asked, cost, id=id)
    answer(ruling, as_json=as_json)
