"""A gate decides keys, costs, responses and amendments without knowing a framework."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from penstock import AsyncLimiter, InvalidInput, Limiter, ManualClock, RateLimited
from penstock.enforcer import AsyncEnforcer, Enforcer
from penstock.errors import CostExceedsLimit, InvalidOption
from penstock.middleware.gate import CLIENT_CLOSED, GateOptions, failed_logins, unless_server_error
from penstock.middleware.passage import AsyncGate, BlockingGate, Passage
from penstock.middleware.request import Request
from penstock.rules.refusal import RefusalResponse, refusal_of
from penstock.shedding import InFlight, Shedder
from tests.unit.flaky import Flaky
from tests.unit.rules.support import rule_set

RULES = rule_set({"id": "all"})


class Plain(Request):
    """A request whose `native` is a dictionary of its parts."""

    def method(self) -> str | None:
        return cast("str | None", self.native.get("method", "GET"))

    def path(self) -> str | None:
        return cast("str | None", self.native.get("path", "/"))

    def route(self) -> str | None:
        return cast("str | None", self.native.get("route"))

    def user(self) -> Any:
        return self.native.get("user")

    def peer(self) -> str | None:
        return cast("str | None", self.native.get("peer", "192.0.2.7"))

    def lines(self, name: str) -> Sequence[str]:
        return [value for key, value in self.native.get("headers", ()) if key == name]


class Door:
    """A gate for blocking code, and requests that come to it."""

    def __init__(self, **options: Any) -> None:
        if "enforcer" not in options:
            options = {"limiter": Limiter(clock=ManualClock()), "quota": "1/minute gcra"} | options
        self.gate = BlockingGate(GateOptions(**options))  # type: ignore[typeddict-item]

    def enter(self, **request: Any) -> Passage:
        passage = self.gate.enter(Plain(request, self.gate.entries))
        assert passage is not None
        return passage

    def passes(self, **request: Any) -> bool:
        return bool(self.enter(**request))


async def _never(request: Request) -> bool:
    return False


def problem_of(refusal: RefusalResponse) -> dict[str, Any]:
    problem: dict[str, Any] = json.loads(refusal.body)
    return problem


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "middleware: expected a limiter and a quota, or an enforcer"),
        ({"limiter": Limiter()}, "middleware: expected a limiter and a quota, or an enforcer"),
        ({"quota": "1/minute"}, "middleware: expected a limiter and a quota, or an enforcer"),
        (
            {"limiter": Limiter(), "quota": "1/minute", "enforcer": Enforcer(RULES, Limiter())},
            "middleware: expected a limiter and a quota, or an enforcer",
        ),
        ({"limiter": AsyncLimiter(), "quota": "1/minute"}, "limiter: expected Limiter, not AsyncLimiter"),
        (
            {"enforcer": Enforcer(RULES, Limiter()), "key": "ip"},
            "key: the rules of an enforcer say that (expected it with a limiter alone)",
        ),
        (
            {"limiter": Limiter(), "quota": "1/minute", "key": "api_key | tenant"},
            "key 'tenant': no such entry (expected method, path, route, user, api_key, ip)",
        ),
        (
            {"limiter": Limiter(), "quota": "1/minute", "cost": 0},
            "cost 0: expected a whole number, at least 1, or a function of the request",
        ),
        (
            {"limiter": Limiter(), "quota": "1/minute", "exempt": _never},
            "exempt: a coroutine function (expected a plain function)",
        ),
    ],
)
def test_options_that_cannot_work_are_errors_when_the_application_starts(options: Any, message: str) -> None:
    with pytest.raises(InvalidOption) as error:
        BlockingGate(options)
    assert str(error.value) == message


def test_the_error_of_an_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(InvalidOption, match=r"^quotas: unknown option \(expected limiter, quota, enforcer, key, "):
        BlockingGate({"limiter": Limiter(), "quotas": "1/minute"})  # type: ignore[typeddict-unknown-key]


def test_an_invalid_quota_is_an_error_when_the_application_starts() -> None:
    with pytest.raises(InvalidInput, match="fortnight"):
        BlockingGate({"limiter": Limiter(), "quota": "1/fortnight"})


def test_an_event_loop_is_never_given_a_limiter_that_would_block_it() -> None:
    with pytest.raises(InvalidOption) as error:
        AsyncGate({"limiter": Limiter(), "quota": "1/minute"})
    assert str(error.value) == "limiter: expected AsyncLimiter, not Limiter"
    with pytest.raises(InvalidOption) as error:
        AsyncGate({"enforcer": Enforcer(RULES, Limiter())})
    assert str(error.value) == "enforcer: expected AsyncEnforcer, not Enforcer"


# ---------------------------------------------------------------- whose counter it is


def test_clients_are_told_apart_by_the_address_of_the_socket_by_default() -> None:
    door = Door()
    forged = [("x-forwarded-for", "203.0.113.9"), ("x-api-key", "made up")]
    assert door.passes(peer="192.0.2.7")
    assert not door.passes(peer="192.0.2.7", headers=forged)
    assert door.passes(peer="192.0.2.8")


def test_clients_behind_a_trusted_proxy_are_told_apart_by_its_header() -> None:
    door = Door(trusted_proxies=1)
    assert door.passes(headers=[("x-forwarded-for", "203.0.113.9")])
    assert door.passes(headers=[("x-forwarded-for", "203.0.113.10")])
    assert not door.passes(headers=[("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "203.0.113.10")])


def test_addresses_of_one_ipv6_network_are_one_client() -> None:
    door = Door()
    assert door.passes(peer="2001:db8::1")
    assert not door.passes(peer="2001:db8::2")
    assert door.passes(peer="2001:db8:0:1::1")


@pytest.mark.parametrize("peer", [None, "", "/run/app.sock", "not an address"])
def test_requests_without_an_address_share_one_counter(peer: str | None) -> None:
    door = Door()
    assert door.passes(peer=None)
    assert not door.passes(peer=peer)
    assert door.passes(peer="192.0.2.7")


def test_a_key_names_entries_of_which_the_first_that_is_present_counts() -> None:
    door = Door(key="user | ip")
    assert door.passes(user="alice")
    assert door.passes(user="bob")
    assert not door.passes(user="alice", peer="192.0.2.8")
    assert door.passes()
    assert not door.passes()


def test_a_user_cannot_be_called_like_an_address() -> None:
    door = Door(key="user | ip")
    assert door.passes(peer="192.0.2.7")
    assert door.passes(user="192.0.2.7", peer="192.0.2.8")


def test_a_key_may_have_several_parts() -> None:
    door = Door(key=["route", "ip"])
    assert door.passes(route="/users/{id}")
    assert not door.passes(route="/users/{id}", path="/users/2")
    assert door.passes(route="/shops/{id}")
    assert door.passes()
    assert not door.passes(path="/elsewhere")


def test_a_key_may_be_a_function_of_the_request() -> None:
    door = Door(key=lambda request: request.header("x-tenant"))
    assert door.passes(headers=[("x-tenant", "7")])
    assert not door.passes(headers=[("x-tenant", "7")])
    assert door.passes(headers=[])
    assert not door.passes(headers=[("x-tenant", "")])
    assert door.passes(headers=[("x-tenant", "8")])


@pytest.mark.parametrize("value", ["x" * 100_000, "\udcff\x00\n", "ключ", "ÿ" * 1_000, "{}"])
def test_any_text_of_a_header_is_a_key(value: str) -> None:
    door = Door(key="api_key")
    assert door.passes(headers=[("x-api-key", value)])
    assert not door.passes(headers=[("x-api-key", value)])
    assert door.passes(headers=[("x-api-key", value + "!")])


def test_entries_may_be_added_and_found_in_other_ways() -> None:
    entries = {"tenant": lambda request: request.native.get("tenant"), "user": lambda request: 7}
    door = Door(key=["tenant", "user"], entries=entries)
    assert door.passes(tenant="a")
    assert door.passes(tenant="b")
    assert not door.passes(tenant="a", user="ann")


def test_names_keep_equal_quotas_apart() -> None:
    limiter = Limiter()
    reads, writes, again = (
        Door(limiter=limiter, quota="1/minute gcra", name=name) for name in ("reads", "writes", "reads")
    )
    assert reads.passes()
    assert writes.passes()
    assert not again.passes()


def test_an_exempt_request_is_not_charged() -> None:
    door = Door(exempt=lambda request: request["path"] == "/health")
    assert [door.gate.enter(Plain({"path": "/health"}, door.gate.entries)) for _ in range(3)] == [None] * 3
    assert door.passes()


def test_the_repr_of_a_request_never_shows_values() -> None:
    door = Door()
    assert "192.0.2.7" not in repr(Plain({"peer": "192.0.2.7"}, door.gate.entries))


# ---------------------------------------------------------------- rules


def test_rules_see_the_entries_of_a_request() -> None:
    rules = rule_set(
        {"id": "users", "match": {"route": "/users/{id}", "method": "GET"}, "key": "api_key | ip", "quota": "1/minute"}
    )
    door = Door(enforcer=Enforcer(rules, Limiter()))
    assert door.passes(path="/users/1", route="/users/{id}", headers=[("x-api-key", "a")])
    assert not door.passes(path="/users/2", route="/users/{id}", headers=[("x-api-key", "a")])
    assert door.passes(path="/users/2", route="/users/{id}", headers=[("x-api-key", "b")])
    assert door.passes(path="/users/2", route="/users/{id}", method="PUT", headers=[("x-api-key", "a")])
    assert door.passes()


def test_the_header_of_api_keys_may_be_another() -> None:
    rules = rule_set({"id": "all", "key": "api_key", "quota": "1/minute"})
    door = Door(enforcer=Enforcer(rules, Limiter()), api_key_header="X-Token")
    assert door.passes(headers=[("x-token", "a")])
    assert door.passes(headers=[("x-token", "b")])
    assert not door.passes(headers=[("x-token", "a")])


# ---------------------------------------------------------------- responses


def test_a_refusal_names_policy_and_reason() -> None:
    door = Door(quota="1/minute gcra")
    assert door.enter().headers() == [
        ("RateLimit-Policy", '"1-per-minute";q=1;w=60'),
        ("RateLimit", '"1-per-minute";r=0;t=60'),
    ]
    refusal = door.enter().refusal()
    assert refusal.status == 429
    assert dict(refusal.headers)["Retry-After"] == "60"
    assert dict(refusal.headers)["Content-Type"] == "application/problem+json"
    assert dict(refusal.headers)["Content-Length"] == str(len(refusal.body))
    assert problem_of(refusal) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota Exceeded",
        "status": 429,
        "detail": "Refused by 1-per-minute: try again in 60 seconds.",
        "violated-policies": ["1-per-minute"],
        "reason": "rate",
    }


@pytest.mark.parametrize(
    ("quota", "reason"),
    [("1 concurrent ttl 30s", "concurrency"), ("9/minute min_interval 2s", "too_close"), ("1/day", "rate")],
)
def test_the_reason_names_the_kind_of_limit(quota: str, reason: str) -> None:
    door = Door(quota=quota)
    assert door.passes()
    refusal = door.enter().refusal()
    assert (refusal.status, problem_of(refusal)["reason"]) == (429, reason)


def test_hidden_policies_are_not_shown() -> None:
    door = Door(quota="1/minute gcra name abuse", hidden=["abuse"])
    assert door.enter().headers() == []
    refusal = door.enter().refusal()
    assert b"abuse" not in refusal.body
    assert "Retry-After" in dict(refusal.headers)
    quiet = Door(dialect="none")
    assert quiet.enter().headers() == []
    assert "violated-policies" not in problem_of(quiet.enter().refusal())


def test_a_rule_may_hide_its_headers_and_has_its_own_words() -> None:
    response = {"headers": "hidden", "message": "Slow down, please."}
    rules = rule_set({"id": "all", "quota": "1/minute", "response": response})
    door = Door(enforcer=Enforcer(rules, Limiter()))
    assert door.enter().headers() == []
    problem = problem_of(door.enter().refusal())
    assert problem["detail"] == "Slow down, please."
    assert "violated-policies" not in problem


def test_a_request_that_a_rule_denies_is_forbidden() -> None:
    door = Door(enforcer=Enforcer(rule_set({"id": "out", "action": "deny"}), Limiter()))
    refusal = door.enter().refusal()
    assert (refusal.status, problem_of(refusal)["reason"]) == (403, "blocked")
    assert problem_of(refusal)["title"] == "Forbidden"


def test_a_shed_request_gets_503_and_an_admitted_one_counts_until_it_is_over() -> None:
    shedder = Shedder(InFlight(2), reserve=0.5)
    door = Door(enforcer=Enforcer(RULES, Limiter(), shedder=shedder))
    first = door.enter()
    assert first
    refusal = door.enter().refusal()
    assert (refusal.status, problem_of(refusal)["reason"]) == (503, "shed")
    first.leave(200)
    assert door.passes()


def test_a_request_is_answered_503_if_the_store_fails_closed() -> None:
    store = Flaky(ManualClock())
    store.up = False
    door = Door(limiter=Limiter(store, on_failure="closed"))
    refusal = door.enter().refusal()
    assert (refusal.status, problem_of(refusal)["reason"]) == (503, "degraded")


def test_a_refusal_that_a_handler_raised_can_be_answered() -> None:
    limiter = Limiter(clock=ManualClock())
    limiter.acquire("alice", "1/minute gcra")
    refused = RateLimited(limiter.acquire("alice", "1/minute gcra"))
    assert refusal_of(refused.verdict).status == 429


# ---------------------------------------------------------------- afterwards


def test_server_errors_are_not_charged_if_the_option_says_so() -> None:
    door = Door(charge=unless_server_error)
    for status in (500, 503, 500):
        passage = door.enter()
        assert passage
        passage.leave(status)
    door.enter().leave(404)
    assert not door.passes()


def test_only_failed_logins_are_charged_if_the_option_says_so() -> None:
    door = Door(quota="2/minute gcra", charge=failed_logins)
    for status in (200, 200, 401, 302, 403):
        passage = door.enter()
        assert passage
        passage.leave(status)
    assert not door.passes()


def test_places_come_back_when_a_request_is_over() -> None:
    door = Door(quota=["1 concurrent ttl 30s", "100/minute"])
    first = door.enter()
    assert first
    assert not door.passes()
    first.leave(200)
    first.leave(200)
    second = door.enter()
    assert second
    assert not door.passes()


def test_a_refund_gives_places_back_too() -> None:
    door = Door(quota=["1 concurrent ttl 30s", "100/minute"], charge=unless_server_error)
    door.enter().leave(500)
    passage = door.enter()
    assert [decision.remaining for decision in passage.verdict.decisions] == [0, 99]


def test_the_true_cost_is_settled_afterwards() -> None:
    limiter = Limiter(clock=ManualClock())
    door = Door(limiter=limiter, quota="1000/minute", cost=300, settle=True)
    for cost, left in ((50, 950), (450, 500), (0, 500), (None, 200)):
        passage = door.enter()
        if cost is not None:
            passage.cost = cost
        passage.leave(200)
        assert limiter.peek("ip=192.0.2.7", "1000/minute").remaining == left
    assert not door.passes()


def test_settling_comes_with_places_as_well() -> None:
    door = Door(quota=["1 concurrent ttl 30s", "100/minute"], cost=10, settle=True)
    for _ in range(3):
        passage = door.enter()
        assert passage
        passage.cost = 4
        passage.leave(200)
    assert door.enter().verdict.decisions[1].remaining == 100 - 3 * 4 - 10


def test_a_cost_that_cannot_be_settled_is_an_error_of_the_handler() -> None:
    passage = Door().enter()
    with pytest.raises(InvalidOption, match="settle=True"):
        passage.cost = 1
    settling = Door(settle=True).enter()
    with pytest.raises(InvalidInput, match="cost -1"):
        settling.cost = -1


def test_cost_may_be_a_function_of_the_request() -> None:
    door = Door(quota="10/minute gcra", cost=lambda request: int(request.header("x-items") or 1))
    assert door.enter(headers=[("x-items", "7")]).verdict.remaining == 3


def test_a_cost_that_no_quota_could_admit_is_an_error_when_the_application_starts() -> None:
    with pytest.raises(CostExceedsLimit, match=r"^cost 20: 10/minute admits at most 10 at once"):
        Door(quota=["100/hour", "10/minute", "5 concurrent ttl 30s"], cost=20)


@pytest.mark.parametrize(
    ("says", "charged"),
    [("7", 7), ("0", 1), ("-3", 1), ("10", 10), ("11", 10), (f"{10**30}", 10), ("many", 10), ("", 10), ("7.5", 10)],
)
@pytest.mark.parametrize("by", ["quota", "rules"])
def test_a_cost_that_a_client_influences_is_charged_and_raises_no_error(
    by: str, says: str, charged: int, caplog: pytest.LogCaptureFixture
) -> None:
    def cost(request: Request) -> Any:
        return 7.5 if (items := request.header("x-items")) == "7.5" else int(items or "")

    limiter = Limiter(clock=ManualClock())
    quotas = ["10/minute gcra", "1000/hour gcra"]
    options: dict[str, Any] = {"limiter": limiter, "quota": quotas}
    if by == "rules":
        rules = rule_set({"id": "a", "quota": quotas[0]}, {"id": "b", "key": [], "quota": quotas[1]})
        options = {"enforcer": Enforcer(rules, limiter)}
    left = Door(cost=cost, **options).enter(headers=[("x-items", says)]).verdict.decisions
    assert sorted(decision.remaining for decision in left) == [10 - charged, 1000 - charged]
    assert ("so the request costs the most it could" in caplog.text) is (says in ("many", "", "7.5"))
    assert "many" not in caplog.text.replace("how many", "")


async def test_the_cost_of_a_rule_is_lowered_to_what_could_be_admitted() -> None:
    rules = rule_set({"id": "dear", "key": [], "quota": "10/minute gcra", "cost": 3})
    gate = AsyncGate({"enforcer": AsyncEnforcer(rules, AsyncLimiter(clock=ManualClock())), "cost": lambda _: 10**9})
    passage = await gate.enter(Plain({}, gate.entries))
    assert passage is not None
    assert passage.verdict.remaining == 1  # of 10: three units, at 3 each


def test_a_rule_that_no_cost_could_satisfy_is_an_error_of_its_own() -> None:
    door = Door(enforcer=Enforcer(rule_set({"id": "dear", "quota": "2/minute"}), Limiter()))
    error = CostExceedsLimit("cost 3: at most 2", 3, 2)
    with pytest.raises(CostExceedsLimit):
        door.gate.fitting(1, error)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_head_request_does_not_slip_past_rules(method: str) -> None:
    rules = rule_set({"id": "reads", "match": {"method": "GET"}, "quota": "1/minute"})
    door = Door(enforcer=Enforcer(rules, Limiter(clock=ManualClock())))
    assert [door.passes(method=one) for one in ("GET", method, "POST")] == [True, False, True]


def test_a_shaped_request_has_waited_when_it_enters() -> None:
    clock = ManualClock()
    door = Door(limiter=Limiter(clock=clock), quota="1/second leaky_bucket queue 3")
    start = clock.time_ns()
    assert door.passes()
    assert door.passes()
    assert clock.time_ns() - start == 1_000_000_000


def test_an_amendment_that_fails_does_not_hurt_the_response(caplog: pytest.LogCaptureFixture) -> None:
    store = Flaky(ManualClock())
    door = Door(limiter=Limiter(store, layers=[]), charge=unless_server_error)
    passage = door.enter()
    store.up = False
    passage.leave(500)
    assert "refund: not done" in caplog.text
    assert "192.0.2.7" not in caplog.text


# ---------------------------------------------------------------- afterwards, in less usual cases


@pytest.mark.parametrize("on_failure", ["local", "open"])
@pytest.mark.parametrize(
    "options",
    [
        {"charge": unless_server_error},
        {"quota": ["1 concurrent ttl 30s", "100/minute"]},
        {"settle": True, "quota": "1000/minute", "cost": 10},
        {"settle": True, "quota": ["1 concurrent ttl 30s", "1000/minute"], "cost": 10},
    ],
)
@pytest.mark.parametrize("recovers", [False, True])
def test_a_request_admitted_without_the_store_ends_without_an_error(
    on_failure: str, options: dict[str, Any], recovers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = Flaky(ManualClock())
    door = Door(limiter=Limiter(store, on_failure=on_failure), **options)  # type: ignore[arg-type]
    store.up = False
    for _ in range(3):
        passage = door.enter()
        assert passage
        assert passage.verdict.degraded
        if options.get("settle"):
            passage.cost = 4
        store.up = recovers
        passage.leave(500)
        store.up = False
    assert "not done" not in caplog.text


def test_charges_by_rules_are_refunded_and_settled() -> None:
    limiter = Limiter(clock=ManualClock())
    quotas = ["100/minute", "1 concurrent ttl 1m"]
    rules = rule_set({"id": "ask", "match": {"path": "/ask"}, "key": [], "quota": quotas})
    door = Door(enforcer=Enforcer(rules, limiter), cost=30, settle=True, charge=unless_server_error)
    for status, cost, path in ((200, 12, "/ask"), (500, 50, "/ask"), (200, None, "/ask"), (200, 7, "/other")):
        passage = door.enter(path=path)
        assert passage
        if cost is not None:
            passage.cost = cost
        passage.leave(status)
    assert [decision.remaining for decision in door.enter(path="/ask").verdict.decisions] == [100 - 12 - 30 - 30, 0]


def test_a_client_that_leaves_before_the_response_counts_as_a_failed_login() -> None:
    assert failed_logins(CLIENT_CLOSED)
