"""`penstock peek`: what a running service would answer, charging nothing.

    penstock peek path=/search ip=192.0.2.1 [--cost N] [--json]          by its rules
    penstock peek --key alice --quota 100/minute [--cost N] [--json]     by key and quota

Ends with 0 if the request would pass, 3 if it would be refused, 4 if the service could not answer.
"""

from __future__ import annotations

from penstock.cli.asking import Cost, KeyParts, QuotaText, answer, by_key
from penstock.cli.output import Json, SomeEntries, descriptor
from penstock.cli.target import Target, with_target


@with_target
def peek(
    target: Target,
    entries: SomeEntries = None,
    key: KeyParts = None,
    quota: QuotaText = None,
    cost: Cost = 1,
    as_json: Json = False,
) -> None:
    """Ask what a request would be answered, charging nothing. Exits with 0: it would pass, 3: it would not."""
    named = by_key(entries or [], key, quota)
    asked = descriptor(entries or [])
    with target.client() as client:
        verdict = client.peek(asked, cost=cost) if named is None else client.peek(*named, cost)
    answer(verdict, as_json=as_json)
