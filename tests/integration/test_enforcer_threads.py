"""Rules under load: exact from many threads, whichever way their keys cross; and other rules put in force meanwhile."""

from __future__ import annotations

import random
import threading
from typing import Any

from penstock import Limiter, ManualClock, Quota
from penstock.enforcer import Enforcer
from penstock.model import Ask, Verdict
from penstock.rules.model import RuleFile
from penstock.rules.ruleset import RuleSet
from penstock.stores.memory.store import MemoryStore
from tests.integration.support import in_threads

THREADS = 8
EACH = 600


def rule_set(*rules: dict[str, Any]) -> RuleSet:
    return RuleSet(RuleFile.model_validate({"rules": list(rules)}))


def test_requests_of_crossing_keys_admit_exactly_the_limits_and_never_deadlock() -> None:
    users, places = [f"u{number}" for number in range(7)], [f"p{number}" for number in range(7)]
    rules = rule_set(
        {"id": "user", "key": "user", "quota": "300/hour"},
        {"id": "place", "key": "place", "quota": "300/hour gcra"},
        {"id": "all", "key": [], "quota": "1500/hour fixed_window"},
    )
    enforcer = Enforcer(rules, Limiter(MemoryStore(clock=ManualClock())))

    def work(number: int) -> int:
        chance = random.Random(number)
        requests = [{"user": chance.choice(users), "place": chance.choice(places)} for _ in range(EACH)]
        return sum(bool(enforcer.check(request)) for request in requests)

    passed = sum(in_threads(work, THREADS))
    assert passed == 1_500
    used = [
        300 - decision.remaining
        for name in range(7)
        for decision in _peeked(enforcer, {"user": f"u{name}", "place": f"p{name}"})[1:]
    ]
    assert sum(used) == 2 * passed  # each charged to a user and to a place, and none of the refused to either
    assert max(used) <= 300


def _peeked(enforcer: Enforcer, descriptor: dict[str, str]) -> list[Any]:
    counters = {rule.rule: rule.counters[0] for rule in enforcer.explain(descriptor).rules}
    return [counters["all"], counters["user"], counters["place"]]


def test_keys_named_in_any_order_never_deadlock() -> None:
    """Each thread names the same few keys in orders of its own, so only the order of locks can keep them apart."""
    store = MemoryStore(clock=ManualClock())
    quota = Quota(10**6, 3600)
    asks = [Ask(f"key {number}", quota) for number in range(6)]
    store.decide(tuple(asks), 0, Verdict)

    def work(number: int) -> int:
        chance = random.Random(number)
        return sum(bool(store.decide(tuple(chance.sample(asks, 4)), 0, Verdict)) for _ in range(2 * EACH))

    assert sum(in_threads(work, THREADS)) == THREADS * 2 * EACH
    peeked = [store.decide((ask,), 0, Verdict).remaining for ask in asks]
    assert sum(10**6 - remaining - 2 for remaining in peeked) == THREADS * 2 * EACH * 4


def test_other_rules_put_in_force_under_load_apply_whole_and_lose_no_count() -> None:
    """Every set says the same of all its rules, so a request that mixed two sets would show."""
    sets = [
        rule_set(*({"id": f"r{number}", "key": [], "quota": f"{limit}/hour"} for number in range(3)))
        for limit in (10**6, 2 * 10**6)
    ]
    enforcer = Enforcer(sets[0], Limiter(MemoryStore(clock=ManualClock())))
    done = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            return _swap(enforcer, sets, done)
        mixed = 0
        for _ in range(EACH):
            ruling = enforcer.check({})
            mixed += len({decision.limit for decision in ruling.decisions}) != 1
            mixed += ruling.version not in {one.version for one in sets}
        done.set()
        return mixed

    assert sum(in_threads(work, THREADS)) == 0
    assert [one.counters[0].used for one in enforcer.explain({}).rules] == [(THREADS - 1) * EACH] * 3


def _swap(enforcer: Enforcer, sets: list[RuleSet], done: threading.Event) -> int:
    while not done.is_set():
        for rules in sets:
            enforcer.rules = rules
    return 0
