"""The enforcer: one decision for all rules that match, told once, undone by receipt. Blocking and asyncio alike."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from penstock import AsyncLimiter, Limiter, ManualClock, RateLimited, StoreError, Verdict
from penstock.enforcer import AsyncEnforcer, Enforcer
from penstock.errors import InvalidInput, InvalidOption, InvalidReceipt, InvalidRequest
from penstock.events import Decided
from penstock.headers import HeaderWriter
from penstock.layers.fallback import Fallback
from penstock.rules.api_keys import AsyncKeyDirectory, KeyDirectory, KeyRecord, KeyTable, hash_key
from penstock.rules.ruleset import RuleSet
from penstock.rules.ruling import Ruling
from penstock.shedding import InFlight, Shedder
from penstock.stores.memory.store import AsyncMemoryStore, MemoryStore
from tests.unit.rules.support import Gone, rule_set

SECRET = b"0123456789abcdef"
IP = {"ip": "192.0.2.7"}


class Awaited:
    """An AsyncEnforcer that is called like a blocking one."""

    def __init__(self, enforcer: AsyncEnforcer, runner: asyncio.Runner) -> None:
        self._enforcer = enforcer
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._enforcer, name)
        if not callable(found):
            return found

        def called(*args: Any, **kwargs: Any) -> Any:
            async def call() -> Any:
                coming = found(*args, **kwargs)
                return await coming if inspect.isawaitable(coming) else coming

            return self._runner.run(call())

        return called

    def put_in_force(self, rules: RuleSet) -> None:
        self._enforcer.rules = rules


class Blocking(Enforcer):
    def put_in_force(self, rules: RuleSet) -> None:
        self.rules = rules


class Bench(NamedTuple):
    """An enforcer over memory, its clock, and what its hook was told."""

    enforcer: Any
    clock: ManualClock
    store: MemoryStore
    told: list[Decided]


Make = Callable[..., Bench]


@pytest.fixture(params=["blocking", "asyncio"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    runner = asyncio.Runner()

    def made(*rules: dict[str, Any], others: dict[str, Any] | None = None, **options: Any) -> Bench:
        clock, told = ManualClock(), list[Decided]()
        store = MemoryStore(clock=clock)
        compiled = rule_set(*rules, **(others or {}))
        options.setdefault("hook", told.append)
        if request.param == "blocking":
            return Bench(Blocking(compiled, Limiter(store), **options), clock, store, told)
        limiter = AsyncLimiter(AsyncMemoryStore(store))
        return Bench(Awaited(AsyncEnforcer(compiled, limiter, **options), runner), clock, store, told)

    with runner:
        yield made


# ---------------------------------------------------------------- deciding


def test_a_request_passes_until_its_quota_is_used(make: Make) -> None:
    bench = make({"id": "api", "quota": "2/minute"})
    rulings = [bench.enforcer.check(IP) for _ in range(3)]
    assert [bool(ruling) for ruling in rulings] == [True, True, False]
    assert (rulings[2].rule, rulings[2].reason, rulings[2].rules) == ("api", "rate", ("api",))
    assert rulings[2].version == bench.enforcer.rules.version
    assert bool(bench.enforcer.check({"ip": "192.0.2.8"}))


def test_all_rules_are_charged_or_none(make: Make) -> None:
    bench = make({"id": "small", "quota": "1/minute"}, {"id": "large", "key": [], "quota": "100/minute"})
    assert bench.enforcer.check(IP)
    refusal = bench.enforcer.check(IP)
    assert (bool(refusal), refusal.rule) == (False, "small")
    assert [decision.remaining for decision in bench.enforcer.check({"ip": "192.0.2.8"}).decisions] == [98, 0]


def test_a_request_that_no_rule_matches_passes_and_asks_no_counter(make: Make) -> None:
    bench = make({"id": "api", "match": {"path": "/v1"}})
    ruling = bench.enforcer.check({"path": "/v2"})
    assert (bool(ruling), ruling.rule, ruling.rules, ruling.reason, ruling.decisions) == (True, "", (), "", ())
    assert (ruling.receipt, bench.store.counters) == (None, 0)
    assert HeaderWriter().headers(ruling) == []


def test_a_denied_request_is_refused_and_asks_no_counter(make: Make) -> None:
    bench = make({"id": "api"}, {"id": "blocklist", "action": "deny", "match": {"ip": {"cidr": "192.0.2.0/24"}}})
    ruling = bench.enforcer.check({"ip": "::ffff:192.0.2.7"})
    assert (bool(ruling), ruling.rule, ruling.reason, ruling.decisions) == (False, "blocklist", "blocked", ())
    assert bench.store.counters == 0
    assert HeaderWriter().headers(ruling) == [("Retry-After", "3600"), ("Cache-Control", "no-store")]
    assert HeaderWriter().problem(ruling)["status"] == 429
    assert isinstance(ruling, Verdict)


def test_an_exempt_request_passes_whatever_its_limits_say(make: Make) -> None:
    bench = make({"id": "api", "quota": "1/minute"}, {"id": "office", "action": "allow", "match": IP})
    rulings = [bench.enforcer.check(IP) for _ in range(3)]
    assert all(rulings)
    assert (rulings[2].rule, bench.store.counters) == ("office", 0)


def test_a_rule_in_shadow_mode_reports_what_it_would_have_refused(make: Make) -> None:
    bench = make({"id": "api"}, {"id": "trial", "quota": "1/minute", "mode": "shadow"})
    first, second = bench.enforcer.check(IP), bench.enforcer.check(IP)
    assert (bool(first), first.would_refuse) == (True, ())
    assert (bool(second), second.would_refuse, second.rule) == (True, ("trial",), "api")
    assert second.rules == ("api", "trial")
    assert "1-per-minute" not in str(HeaderWriter().headers(second))


def test_a_denial_in_shadow_mode_reports_too(make: Make) -> None:
    ruling = make({"id": "trial", "action": "deny", "mode": "shadow", "match": IP}).enforcer.check(IP)
    assert (bool(ruling), ruling.would_refuse, ruling.rules) == (True, ("trial",), ("trial",))


@pytest.mark.parametrize(
    ("quota", "reason"),
    [("1/minute", "rate"), ("9/minute min_interval 2s", "too_close"), ("1 concurrent", "concurrency")],
)
def test_a_refusal_has_a_reason(make: Make, quota: str, reason: str) -> None:
    bench = make({"id": "api", "quota": quota})
    assert [bench.enforcer.check(IP).reason for _ in range(2)] == ["", reason]


def test_a_rule_chooses_what_clients_see_of_it(make: Make) -> None:
    hidden = {"headers": "hidden", "message": "Too many attempts."}
    bench = make({"id": "open", "quota": "9/minute"}, {"id": "login", "quota": "1/hour", "response": hidden})
    shown = HeaderWriter().headers(bench.enforcer.check(IP).shown())
    assert "9-per-minute" in str(shown)
    assert "hour" not in str(shown)
    refusal = bench.enforcer.check(IP)
    assert (refusal.rule, refusal.message, refusal.shown().allowed) == ("login", "Too many attempts.", False)
    told = dict(HeaderWriter().headers(refusal.shown()))
    assert int(told["Retry-After"]) >= refusal.retry_after > 0
    assert "hour" not in str(HeaderWriter().problem(refusal.shown()))


def test_a_repeated_id_is_answered_again_and_not_charged_again(make: Make) -> None:
    bench = make({"id": "api", "quota": "2/minute"}, {"id": "all", "key": [], "quota": "9/minute"})
    answers = [bench.enforcer.check(IP, id="same") for _ in range(4)]
    assert [[one.remaining for one in answer.decisions] for answer in answers] == [[8, 1]] * 4
    assert bench.enforcer.check(IP).remaining == 0


def test_many_are_decided_in_one_batch_each_for_itself(make: Make) -> None:
    bench = make(
        {"id": "api", "match": {"path": {"prefix": "/v1"}}, "quota": "3/minute"},
        {"id": "bad", "action": "deny", "match": {"path": "/bad"}},
    )
    requests = [{"path": "/v1"}, {"path": "/bad"}, ({"path": "/v1"}, 2), {"path": "/v1"}, {"path": "/free"}]
    rulings = bench.enforcer.check_many(requests)
    assert [ruling.reason for ruling in rulings] == ["", "blocked", "", "rate", ""]
    assert [ruling.rule for ruling in rulings] == ["api", "bad", "api", "api", ""]
    assert len(bench.told) == 5
    assert bench.enforcer.check_many([]) == []


def test_a_batch_with_something_else_in_it_charges_nothing(make: Make) -> None:
    bench = make({"id": "api"})
    for wrong in ([IP, (IP, 1, 2)], [IP, (IP, 0)], [IP, None], [IP, {"ip": b"x"}]):
        with pytest.raises(InvalidInput):
            bench.enforcer.check_many(wrong)
    assert bench.store.counters == 0


# ---------------------------------------------------------------- places, estimates, giving back


def test_a_place_is_held_for_the_block_and_rates_stay_charged(make: Make) -> None:
    bench = make({"id": "jobs", "quota": "1 concurrent ttl 30s"}, {"id": "rate", "quota": "10/minute"})
    hold = bench.enforcer.hold(IP)
    assert hold
    refused = bench.enforcer.hold(IP)
    assert (bool(refused), refused.verdict.reason) == (False, "concurrency")
    assert bench.enforcer.renew(hold.verdict)
    bench.enforcer.release(hold.verdict)
    again = bench.enforcer.check(IP)
    assert sorted(decision.remaining for decision in again.decisions) == [0, 8]


def test_a_block_gives_its_place_back_at_its_end() -> None:
    enforcer = Enforcer(rule_set({"id": "jobs", "quota": "1 concurrent ttl 30s"}), Limiter())
    for _ in range(3):
        with enforcer.hold(IP):
            assert not enforcer.hold(IP)
    with enforcer.reserve(IP, 1) as reservation:
        assert reservation.settle(1).units == 0
    assert enforcer.check(IP)


async def test_an_asynchronous_block_gives_its_place_back_at_its_end() -> None:
    enforcer = AsyncEnforcer(rule_set({"id": "jobs", "quota": "1 concurrent ttl 30s"}), AsyncLimiter())
    for _ in range(3):
        async with enforcer.hold(IP, renew=True):
            assert not await enforcer.hold(IP)
    async with enforcer.reserve(IP, 1) as reservation:
        assert (await reservation.settle(1)).units == 0
    assert await enforcer.check(IP)


def test_a_block_on_a_refused_hold_does_not_run(make: Make) -> None:
    bench = make({"id": "jobs", "quota": "1 concurrent ttl 30s"})
    first = bench.enforcer.hold(IP)
    assert first
    with pytest.raises(RateLimited):
        bench.enforcer.hold(IP).check()


def test_a_hold_without_places_is_free(make: Make) -> None:
    bench = make({"id": "rate", "match": {"path": "/v1"}})
    for descriptor in ({"path": "/v1"}, {"path": "/free"}):
        hold = bench.enforcer.hold(descriptor, renew=True)
        assert hold
        assert bench.enforcer.release(hold.verdict).units == 0
        assert bench.enforcer.renew(hold.verdict)


def test_an_estimate_is_settled_on_every_counter(make: Make) -> None:
    bench = make({"id": "a", "quota": "100/minute"}, {"id": "b", "key": [], "quota": "1000/minute"})
    reservation = bench.enforcer.reserve(IP, 50)
    assert bench.enforcer.settle(reservation.verdict, 20).each == (30, 30)
    assert bench.enforcer.settle(reservation.verdict, 5).units == 0
    assert [decision.remaining for decision in bench.enforcer.check(IP).decisions] == [979, 79]


def test_a_refund_gives_back_what_was_charged(make: Make) -> None:
    bench = make({"id": "a", "quota": "2/minute"}, {"id": "b", "key": [], "quota": "9/minute"})
    ruling = bench.enforcer.check(IP)
    assert bench.enforcer.refund(ruling).each == (1, 1)
    assert [bool(bench.enforcer.check(IP)) for _ in range(3)] == [True, True, False]


def test_a_ruling_without_charges_cannot_be_amended(make: Make) -> None:
    bench = make({"id": "a", "match": {"path": "/v1"}, "quota": "1/minute"})
    free = bench.enforcer.check({"path": "/free"})
    assert (bench.enforcer.refund(free).each, bench.enforcer.settle(free, 3).each) == ((), ())
    assert bench.enforcer.check({"path": "/v1"})
    refusal = bench.enforcer.check({"path": "/v1"})
    with pytest.raises(InvalidReceipt):
        bench.enforcer.refund(refusal)


# ---------------------------------------------------------------- events


def test_every_decision_is_one_event(make: Make) -> None:
    bench = make(
        {"id": "api", "match": {"path": "/v1"}, "quota": "1/minute"},
        {"id": "trial", "match": {"path": "/v1"}, "quota": "1/hour", "mode": "shadow"},
        {"id": "bad", "action": "deny", "match": {"path": "/bad"}},
    )
    for path in ("/v1", "/v1", "/bad", "/free"):
        bench.enforcer.check({"path": path})
    version = bench.enforcer.rules.version
    assert bench.told == [
        Decided("api", "allowed", "", (), 1, "store", version, "sliding_window"),
        Decided("api", "refused", "rate", ("trial",), 1, "store", version, "sliding_window"),
        Decided("bad", "refused", "blocked", (), 1, "store", version),
        Decided("", "allowed", "", (), 1, "store", version),
    ]


def test_a_hook_that_fails_changes_nothing(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def hook(event: Any) -> None:
        raise RuntimeError("no")

    assert make({"id": "api"}, hook=hook).enforcer.check(IP)
    assert "a hook failed on Decided" in caplog.text


# ---------------------------------------------------------------- other rules


def test_other_rules_are_put_in_force_by_an_assignment_and_the_count_stays(make: Make) -> None:
    bench = make({"id": "api", "quota": "5/minute"})
    assert [bench.enforcer.check(IP).remaining for _ in range(3)] == [4, 3, 2]
    bench.enforcer.put_in_force(rule_set({"id": "api", "quota": "4/minute", "match": {"ip": {"cidr": "192.0.2.0/24"}}}))
    assert bench.enforcer.check(IP).remaining == 0
    assert not bench.enforcer.check(IP)


def test_a_source_is_asked_for_the_rules_in_force(make: Make) -> None:
    class Source:
        current = rule_set({"id": "old"})

    bench = make({"id": "unused"})
    limiter = Limiter(bench.store)
    enforcer = Enforcer(Source(), limiter)
    assert enforcer.check(IP).rule == "old"
    Source.current = rule_set({"id": "new"})
    assert enforcer.check(IP).rule == "new"


@pytest.mark.parametrize("rules", [None, {}, "penstock.yaml"])
def test_an_object_that_is_no_set_of_rules_is_refused(rules: Any) -> None:
    with pytest.raises(InvalidOption, match="expected a RuleSet"):
        Enforcer(rules, Limiter())


def test_a_closed_limiter_answers_nothing() -> None:
    limiter = Limiter()
    enforcer = Enforcer(rule_set({"id": "api"}), limiter)
    limiter.close()
    with pytest.raises(StoreError, match="closed"):
        enforcer.check(IP)


# ---------------------------------------------------------------- directory


def records(*keys: tuple[str, KeyRecord]) -> KeyTable:
    return KeyTable((hash_key(key, SECRET), record) for key, record in keys)


TIERED = {"id": "api", "key": "api_key | ip", "quota": "1/minute", "tiers": {"quota": {"paid": "3/minute"}}}


def test_owner_and_tier_come_from_the_directory_alone(make: Make) -> None:
    table = records(("good", KeyRecord("acme", "paid")), ("gone", KeyRecord("acme", "paid", "revoked")))
    bench = make(TIERED, directory=KeyDirectory(table, SECRET))
    assert bench.enforcer.check({"api_key": "good", **IP}).limit == 3
    claimed = {"tier": "paid", "owner": "acme", **IP}
    assert bench.enforcer.check({"api_key": "made up", **claimed}).limit == 1
    assert not bench.enforcer.check({"api_key": "gone", **claimed})  # both count as absent: the address is counted
    assert not bench.enforcer.check({"api_key": "another", **claimed})
    assert not bench.enforcer.check(claimed)


def test_one_limit_over_all_keys_of_an_owner_is_an_ordinary_rule(make: Make) -> None:
    table = records(("one", KeyRecord("acme")), ("two", KeyRecord("acme")), ("three", KeyRecord("globex")))
    bench = make({"id": "owners", "key": "owner | ip", "quota": "2/minute"}, directory=KeyDirectory(table, SECRET))
    keys = ("one", "two", "one", "three")
    assert [bool(bench.enforcer.check({"api_key": key, **IP})) for key in keys] == [True, True, False, True]


async def test_a_directory_may_be_a_coroutine_function() -> None:
    asked = []

    async def look_up(digest: bytes) -> KeyRecord | None:
        asked.append(digest)
        return KeyRecord("acme", "paid") if digest == hash_key("good", SECRET) else None

    enforcer = AsyncEnforcer(rule_set(TIERED), AsyncLimiter(), directory=AsyncKeyDirectory(look_up, SECRET))
    for _ in range(2):
        assert (await enforcer.check({"api_key": "good"})).limit == 3
    assert (await enforcer.check({"api_key": "bad"})).limit == 1
    assert len(asked) == 2
    assert (await enforcer.explain({"api_key": "good"})).rules[0].applies


# ---------------------------------------------------------------- shedding, failing


class Answer:
    def __init__(self, admitted: bool) -> None:
        self.admitted, self.retry_after, self.ended = admitted, 2.5, 0

    def __bool__(self) -> bool:
        return self.admitted

    def end(self) -> None:
        self.ended += 1


class SomeShedder:
    """Admits what has a high priority."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[str] = []

    def admit(self, priority: str, /) -> Answer:
        self.asked.append(priority)
        self.answers.append(Answer(priority == "high"))
        return self.answers[-1]


def test_a_shedder_is_asked_first_with_the_highest_priority(make: Make) -> None:
    shedder = SomeShedder()
    bench = make(
        {"id": "pay", "match": {"path": "/pay"}, "priority": "high", "quota": "1/minute"},
        {"id": "all", "priority": "low"},
        {"id": "office", "action": "allow", "match": {"path": "/office"}},
        shedder=shedder,
    )
    ruling = bench.enforcer.check({"path": "/read"})
    assert (bool(ruling), ruling.reason, ruling.rule, ruling.retry_after) == (False, "shed", "", 2.5)
    assert (ruling.decisions, ruling.receipt, bench.store.counters) == ((), None, 0)
    passed = bench.enforcer.check({"path": "/pay"})
    assert passed
    assert shedder.answers[1].ended == 0
    passed.end()
    assert shedder.answers[1].ended == 1
    assert not bench.enforcer.check({"path": "/pay"})  # over its rate: no longer in flight
    assert shedder.answers[2].ended == 1
    assert bench.enforcer.check({"path": "/office"})
    assert shedder.asked == ["low", "high", "high"]
    assert [event.reason for event in bench.told] == ["shed", "", "rate", ""]


def test_a_request_admitted_by_a_shedder_is_in_flight_until_it_ends(make: Make) -> None:
    in_flight = InFlight(2)
    bench = make({"id": "api", "quota": "9/minute"}, shedder=Shedder(in_flight, reserve=0.5))
    first = bench.enforcer.check(IP)
    assert (bool(first), in_flight.now) == (True, 1)
    second = bench.enforcer.check(IP)
    assert (bool(second), second.reason, in_flight.now) == (False, "shed", 1)
    assert second.retry_after > 0
    first.end()
    assert in_flight.now == 0
    assert bench.enforcer.check(IP)


def test_the_strictest_matching_rule_decides_while_the_store_is_gone() -> None:
    store = Gone()
    told: list[Decided] = []
    rules = rule_set(
        {"id": "api", "on_failure": "open", "deadline": "20ms", "key": []},
        {"id": "login", "match": {"path": "/login"}, "on_failure": "closed", "deadline": "5ms"},
        {"id": "trial", "match": {"path": "/login"}, "mode": "shadow", "quota": "1/minute"},
    )
    enforcer = Enforcer(rules, Limiter(store, layers=[Fallback(hosts=1)]), hook=told.append)
    passed, refused = enforcer.check({"path": "/v1"}), enforcer.check({"path": "/login"})
    assert (bool(passed), passed.source, passed.reason) == (True, "open", "")
    assert (bool(refused), refused.source, refused.reason, refused.would_refuse) == (False, "closed", "degraded", ())
    assert store.deadlines[:2] == [20_000, 5_000]
    assert [(event.outcome, event.reason, event.source) for event in told] == [
        ("allowed", "", "open"),
        ("refused", "degraded", "closed"),
    ]
    assert [bool(one) for one in enforcer.check_many([{"path": "/v1"}, {"path": "/login"}])] == [True, False]
    assert store.deadlines[-1] == 5_000


def test_a_ruling_can_be_used_as_a_verdict(make: Make) -> None:
    ruling = make({"id": "api"}).enforcer.check(IP)
    assert isinstance(ruling, Ruling)
    assert HeaderWriter("draft6").headers(ruling)[0] == ("RateLimit-Limit", "100")
    assert "192.0.2.7" not in repr(ruling)


def test_an_invalid_request_is_an_error_of_the_caller(make: Make) -> None:
    bench = make({"id": "api"})
    with pytest.raises(InvalidRequest):
        bench.enforcer.check("path=/v1")
    with pytest.raises(InvalidInput):
        bench.enforcer.check(IP, id="")
    assert bench.told == []


def test_an_invalid_id_is_no_error_where_nothing_is_charged(make: Make) -> None:
    bench = make({"id": "health", "action": "allow"}, {"id": "api"})
    for unusable in ("", "x" * 300):
        assert bench.enforcer.check(IP, id=unusable).rule == "health"


def test_a_rule_in_shadow_mode_stops_no_other() -> None:
    rules = rule_set({"id": "trial", "mode": "shadow", "stop": True}, {"id": "api", "quota": "1/minute"})
    enforcer = Enforcer(rules, Limiter())
    assert [bool(enforcer.check(IP)) for _ in range(2)] == [True, False]
    assert [rule.applies for rule in enforcer.explain(IP).rules] == [True, True]


def test_a_cost_too_high_for_a_rule_in_shadow_mode_does_not_raise() -> None:
    rules = rule_set({"id": "api"}, {"id": "trial", "mode": "shadow", "quota": "2/minute"})
    enforcer = Enforcer(rules, Limiter())
    assert enforcer.check(IP, cost=3)
    assert enforcer.check(IP, cost=3).would_refuse == ("trial",)


@pytest.mark.parametrize("says", ["open", "local"])
def test_a_lenient_rule_does_not_loosen_a_rule_without_on_failure(says: str) -> None:
    rules = rule_set({"id": "strict"}, {"id": "lenient", "on_failure": says})
    enforcer = Enforcer(rules, Limiter(Gone(), layers=[Fallback("closed", hosts=1)]))
    assert enforcer.check(IP).reason == "degraded"
    alone = Enforcer(
        rule_set({"id": "lenient", "on_failure": says}), Limiter(Gone(), layers=[Fallback("closed", hosts=1)])
    )
    assert alone.check(IP)
