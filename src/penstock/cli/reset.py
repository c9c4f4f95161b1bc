"""`penstock reset`: have a running service forget what was used.

    penstock reset path=/search ip=192.0.2.1 [--json]           all that such requests are counted by
    penstock reset --key alice --quota 100/minute [--json]      one key's use of a quota

Ends with 0 if it was forgotten, 4 if the service could not answer.
"""

from __future__ import annotations

from penstock.cli.asking import KeyParts, QuotaText, by_key
from penstock.cli.output import Json, SomeEntries, descriptor, say, say_json
from penstock.cli.target import Target, with_target


@with_target
def reset(
    target: Target,
    entries: SomeEntries = None,
    key: KeyParts = None,
    quota: QuotaText = None,
    as_json: Json = False,
) -> None:
    """Have a running service forget what was used: by such requests, or by a key of a quota."""
    named = by_key(entries or [], key, quota)
    asked = descriptor(entries or [])
    with target.client() as client:
        if named is None:
            client.reset(asked)
        else:
            client.reset(*named)
    if as_json:
        say_json({"reset": True})
    else:
        say("forgotten")
