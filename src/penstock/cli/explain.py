"""`penstock explain`: what the rules of a running service make of a request, and why.

    penstock explain path=/search ip=192.0.2.1 [--json]

It charges nothing. `penstock rules explain` does the same with a file of rules. Ends with 0, or 4 if the service could
not answer.
"""

from __future__ import annotations

from penstock.cli.asking import Cost
from penstock.cli.output import Entries, Json, descriptor, plain, say, say_json
from penstock.cli.target import Target, with_target


@with_target
def explain(target: Target, entries: Entries, cost: Cost = 1, as_json: Json = False) -> None:
    """Say which rules of a running service apply to a request, why the others do not, and how its counters stand.

    Charges nothing. Values are not repeated in the answer, because they may be identities.
    """
    asked = descriptor(entries)
    with target.client() as client:
        explanation = client.explain(asked, cost)
    if as_json:
        say_json(plain(explanation))
    else:
        say(str(explanation))
