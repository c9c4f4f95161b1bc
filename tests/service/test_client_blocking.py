"""A blocking client against a real service: the limiter's interface, and the enforcer's."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from penstock import ManualClock, RateLimited, StoreError
from penstock.client import Client, Tls
from penstock.errors import InvalidInput, InvalidKey, InvalidReceipt, InvalidRequest
from penstock.middleware.wsgi import RateLimitMiddleware
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.tls import ServerTls
from tests.rig.certificates import Certificate, can_make_certificates
from tests.rig.processes import DEADLINE
from tests.service.client_support import TOKEN, Batches, served
from tests.service.harness import Running

ORDERS = {"path": "/orders", "user": "alice"}


@pytest.fixture(scope="module")
def at() -> Iterator[tuple[Running, Batches]]:
    with served(clock=ManualClock()) as running:  # time stands still: no window turns while a test looks
        yield running


@pytest.fixture
def client(at: tuple[Running, Batches]) -> Iterator[Client]:
    running, _ = at
    with Client(running.url, timeout=DEADLINE, on_failure="raise") as client:
        yield client
        for user in ("alice", "bob"):
            for path in ("/orders", "/uploads", "/chat"):
                client.reset(descriptor={"path": path, "user": user})


def test_a_request_is_decided_by_the_service_s_rules(client: Client) -> None:
    rulings = [client.check(ORDERS) for _ in range(4)]
    assert [ruling.allowed for ruling in rulings] == [True, True, True, False]
    first, last = rulings[0], rulings[-1]
    assert (first.rule, first.remaining, first.status, first.owners) == ("orders", 2, 200, ("orders", "trial"))
    assert (last.rule, last.reason, last.status, last.would_refuse) == ("orders", "rate", 429, ("trial",))
    assert last.retry_after > 0
    assert last.headers["Retry-After"] == str(-int(-last.retry_after // 1))
    assert first.headers["RateLimit-Policy"] == '"3-per-minute";q=3;w=60'


def test_a_ruling_without_a_counter_has_no_decisions(client: Client) -> None:
    free, banned = client.check({"path": "/elsewhere"}), client.check({"path": "/banned"})
    assert (free.allowed, free.rule, free.decisions, free.receipt) == (True, "", (), None)
    assert (banned.allowed, banned.status, banned.reason, banned.message) == (False, 403, "blocked", "Go away.")
    assert client.refund(free).each == ()
    assert client.renew(free)


def test_a_request_with_an_id_is_charged_once(client: Client) -> None:
    first, again = (client.check(ORDERS, id="seven") for _ in range(2))
    assert (first.answer, first.token) == (again.answer, again.token)
    assert client.peek(descriptor=ORDERS).remaining == 2
    client.refund(first)
    assert client.peek(descriptor=ORDERS).remaining == 3


def test_many_checks_are_one_request(client: Client, at: tuple[Running, Batches]) -> None:
    _, batches = at
    asked = len(batches.paths)
    rulings = client.check_many([ORDERS, (ORDERS, 2), ORDERS, {"path": "/banned"}])
    assert [ruling.reason for ruling in rulings] == ["", "", "rate", "blocked"]
    assert batches.paths[asked:] == [b"/v1/check/batch"]
    assert client.check_many([]) == []
    assert len(client.check_many([{"path": "/"}] * 1_200)) == 1_200


def test_a_place_of_the_rules_is_held_for_a_block(client: Client) -> None:
    uploads = {"path": "/uploads", "user": "alice"}
    with client.hold(descriptor=uploads) as hold:
        assert hold.renew()
        assert client.check(uploads).reason == "concurrency"
        with pytest.raises(RateLimited), client.hold(descriptor=uploads):
            pass
    assert client.check(uploads)


def test_a_reservation_is_settled(client: Client) -> None:
    chat = {"path": "/chat", "user": "alice"}
    reservation = client.reserve(descriptor=chat, cost=400)
    assert reservation.settle(150).units == 250
    assert reservation.settle(900).units == 0
    assert client.peek(descriptor=chat).remaining == 850


def test_an_explanation_is_the_library_s_own(client: Client) -> None:
    client.check(ORDERS)
    explanation = client.explain(ORDERS)
    orders = explanation.rules[0]
    assert (orders.rule, orders.applies, orders.counters[0].used) == ("orders", True, 1)
    assert "3/minute (sliding_window): 1 of 3 used, 2 left" in str(explanation)


def test_keys_and_quotas_need_no_rules(client: Client) -> None:
    key = ("search", "alice")
    verdicts = client.acquire_many([(key, "2/minute min_interval 1s"), (key, "2/minute min_interval 1s"), ("b", "1/s")])
    assert [verdict.allowed for verdict in verdicts] == [True, False, True]
    assert [str(decision.quota) for decision in verdicts[1].decisions] == ["2/minute", "min_interval 1s"]
    assert verdicts[1].retry_after == 1
    assert client.refund(verdicts[0]).each == (1, 1)
    assert client.acquire(key, "2/minute min_interval 1s")
    client.reset(key, "2/minute min_interval 1s")
    assert client.peek(key, "2/minute min_interval 1s", 2)
    assert [one.used for one in client.inspect(key, "2/minute min_interval 1s")] == [0, 0]


def test_a_refusal_is_remembered_for_a_moment_and_forgotten_by_a_reset(
    client: Client, at: tuple[Running, Batches]
) -> None:
    _, batches = at
    assert client.acquire("carol", "1/hour")
    assert not client.acquire("carol", "1/hour")
    asked = len(batches.paths)
    assert not client.acquire("carol", "1/hour")
    assert len(batches.paths) == asked
    client.reset("carol", "1/hour")
    assert client.acquire("carol", "1/hour")


def test_holds_decorators_and_waiting_come_with_the_limiter(client: Client) -> None:
    @client.limit("1 concurrent ttl 30s", key="one")
    def inside() -> bool:
        return client.acquire(("tests", "one"), "1/hour").allowed

    assert inside()
    with client.hold("place", "1 concurrent ttl 30s") as first:
        assert first
        assert not client.hold("place", "1 concurrent ttl 30s")
    assert client.wait("patient", "5/second", timeout=0)


def test_invalid_arguments_are_refused_as_by_the_library(client: Client) -> None:
    with pytest.raises(InvalidInput, match="cost 9"):
        client.check(ORDERS, 9)
    with pytest.raises(InvalidRequest, match="descriptor"):
        client.check("orders")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="descriptor"):
        client.check({"path": object()})
    with pytest.raises(InvalidRequest, match="expected a key and a quota, or a descriptor"):
        client.peek("alice")  # type: ignore[call-overload]
    for ask in (client.peek, client.reset, client.hold, client.reserve):
        with pytest.raises(InvalidRequest, match="the rules say by which key and quota"):
            ask("alice", "5/hour", descriptor=ORDERS)  # type: ignore[call-overload]
    with pytest.raises(InvalidKey, match="key: expected text or a tuple of texts, not dict"):
        client.reset(ORDERS, "5/hour")  # type: ignore[arg-type]
    with pytest.raises(InvalidReceipt, match="charged nothing"):
        client.refund(client.check({"path": "/banned"}))
    charged = client.acquire("dora", "5/hour", id="x")
    charged.token = "A" * 64  # type: ignore[attr-defined]
    with pytest.raises(InvalidReceipt, match="receipt"):
        client.refund(charged)


def test_threads_share_a_client(client: Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(lambda _: client.acquire("all", "100/hour"), range(120)))
    assert sum(verdict.allowed for verdict in verdicts) == 100


def test_more_checks_than_a_service_takes_are_sent_in_portions(client: Client) -> None:
    verdicts = client.acquire_many([("crowd", "400/hour")] * 700)
    assert sum(verdict.allowed for verdict in verdicts) == 400
    rulings = client.check_many([{"path": "/elsewhere/" + "x" * 3_000}] * 400)  # more than a megabyte
    assert [ruling.allowed for ruling in rulings] == [True] * 400
    assert client.check_many([]) == []


def test_calls_of_a_closed_client_raise(at: tuple[Running, Batches]) -> None:
    running, _ = at
    client = Client(running.url)
    client.close()
    for ask in (lambda: client.check(ORDERS), lambda: client.acquire("a", "1/s"), lambda: client.explain(ORDERS)):
        with pytest.raises(StoreError, match="closed"):
            ask()


def _ask_in_child(client: Client, answers: multiprocessing.SimpleQueue[int]) -> None:
    answers.put(client.acquire("forked", "10/hour").remaining)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(client: Client) -> None:
    assert client.acquire("forked", "10/hour").remaining == 9
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.SimpleQueue[int] = context.SimpleQueue()
    child = context.Process(target=_ask_in_child, args=(client, answers))
    child.start()
    assert answers.get() == 8
    child.join(DEADLINE)
    assert client.acquire("forked", "10/hour").remaining == 7


def test_connections_that_the_service_has_closed_are_not_used_again() -> None:
    with (
        served(limits=ServerLimits(idle=0.05)) as (running, batches),
        Client(running.url, timeout=DEADLINE, on_failure="raise") as client,
    ):
        assert client.acquire("a", "9/hour")
        running.wait_empty()
        assert client.acquire("a", "9/hour").remaining == 7
        assert len(batches.paths) == 2


def test_a_token_opens_a_service_that_wants_one() -> None:
    with served(token=TOKEN) as (running, _):
        with Client(running.url, token=TOKEN, timeout=DEADLINE, on_failure="raise") as client:
            assert client.check(ORDERS)
            assert TOKEN not in repr(client)
        with (
            Client(running.url, token="another-token-of-16", timeout=DEADLINE, on_failure="raise") as stranger,
            pytest.raises(StoreError, match="the token is not accepted") as raised,
        ):
            stranger.check(ORDERS)
        assert not raised.value.transient


def test_a_service_may_listen_on_a_unix_socket(tmp_path: Path) -> None:
    with (
        served(family="unix", folder=str(tmp_path)) as (running, _),
        Client(f"unix:{running.address}", timeout=DEADLINE, on_failure="raise") as client,
    ):
        assert client.check(ORDERS)


@pytest.mark.skipif(not can_make_certificates(), reason="the openssl command is not installed")
def test_both_sides_show_their_certificates(tmp_path: Path) -> None:
    server, own = Certificate.make("127.0.0.1", tmp_path), Certificate.make("client", tmp_path)
    tls = ServerTls(server.path, server.key, own.path)
    with served(tls=tls) as (running, _):
        url = running.url.replace("http:", "https:")
        trusted = Tls(server.path, own.path, own.key)
        with Client(url, tls=trusted, timeout=DEADLINE, on_failure="raise") as client:
            assert [client.check(ORDERS).allowed for _ in range(2)] == [True, True]
        for tls_ in (
            Tls(server.path),
            Tls(own.path, own.path, own.key),
        ):  # shows no certificate; trusts another authority
            with Client(url, tls=tls_, timeout=DEADLINE, on_failure="raise") as client, pytest.raises(StoreError):
                client.check(ORDERS)


def test_a_middleware_takes_a_client_as_its_limiter(client: Client) -> None:
    sent: list[tuple[str, dict[str, str]]] = []

    def answer(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"served"]

    limited = RateLimitMiddleware(answer, limiter=client, quota="2/minute", key="ip")
    for _ in range(3):
        environ: dict[str, Any] = {"REMOTE_ADDR": "192.0.2.9"}
        setup_testing_defaults(environ)
        list(limited(environ, lambda status, headers, *_: sent.append((status, dict(headers)))))  # type: ignore[arg-type]
    assert [status for status, _ in sent] == ["200 OK", "200 OK", "429 Too Many Requests"]
    assert sent[2][1]["RateLimit-Policy"] == '"2-per-minute";q=2;w=60'
