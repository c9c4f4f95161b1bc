"""Rules over a real server: all rules in one call, hostile identities as data, none of them readable there."""

from __future__ import annotations

from typing import Any

from penstock import AsyncLimiter, Limiter
from penstock.enforcer import AsyncEnforcer, Enforcer
from penstock.rules.model import RuleFile
from penstock.rules.ruleset import RuleSet
from tests.integration.redis_support import opened, opened_async
from tests.rig.fixtures import Keyspace

HOSTILE = ("\x00\r\n", "{tag}", "a:b", "\ud800", "é", "x" * 100_000, "user name=x", "😀" * 190)


def rules(*declared: dict[str, Any]) -> RuleSet:
    return RuleSet(RuleFile.model_validate({"rules": list(declared)}))


RULES = rules(
    {"id": "user", "key": "user", "quota": "3/hour"},
    {"id": "both", "key": ["user", "ip"], "quota": "9/hour gcra", "mode": "shadow"},
    {"id": "places", "key": "user", "match": {"path": "/jobs"}, "quota": "1 concurrent ttl 30s"},
    {"id": "all", "key": [], "quota": "1000/hour fixed_window"},
)


def test_rules_are_enforced_held_settled_and_explained_over_a_server(keyspace: Keyspace) -> None:
    with opened(keyspace.server.url, prefix=keyspace.prefix) as store, Limiter(store) as limiter:
        enforcer = Enforcer(RULES, limiter)
        request = {"user": "alice", "ip": "192.0.2.7", "path": "/jobs"}
        with enforcer.hold(request):
            assert enforcer.check(request).reason == "concurrency"
        reservation = enforcer.reserve(request | {"path": "/"}, 2)
        assert enforcer.settle(reservation.verdict, 1).units == 1
        assert enforcer.check(request | {"path": "/"})
        refusal = enforcer.check(request | {"path": "/"})
        assert (bool(refusal), refusal.rule, refusal.reason) == (False, "user", "rate")
        used = {rule.rule: [one.used for one in rule.counters] for rule in enforcer.explain(request).rules}
        assert used == {"user": [3], "both": [3], "places": [0], "all": [3]}


async def test_hostile_identities_are_data_and_not_readable_on_the_server(keyspace: Keyspace) -> None:
    async with (
        opened_async(keyspace.server.url, prefix=keyspace.prefix) as store,
        AsyncLimiter(store) as limiter,
    ):
        enforcer = AsyncEnforcer(RULES, limiter)
        for name in (*HOSTILE, "somebody@example.org"):
            rulings = await enforcer.check_many([{"user": name}] * 4)
            assert [bool(ruling) for ruling in rulings] == [True, True, True, False]
    names = keyspace.keys()
    assert len(names) > len(HOSTILE)
    assert not any(b"example.org" in name for name in names)
