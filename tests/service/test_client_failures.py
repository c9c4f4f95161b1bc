"""Services that are gone, slow, broken or draining: what callers get, and what is retried."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from itertools import count

import pytest

from penstock import StoreError
from penstock.client import AsyncClient, Client
from penstock.errors import InvalidOption
from penstock.events import BreakerChanged, Degraded
from tests.rig.processes import DEADLINE
from tests.rig.servers import free_port
from tests.service.client_support import left, listening, served
from tests.service.harness import Client as Raw

ORDERS = {"path": "/orders", "user": "alice"}
DECISION = {
    "rule": "r", "quota": "9/hour", "cost": 1, "allowed": True, "remaining": 8, "retry_after": 0.0,
    "reset_after": 1.0, "more_after": 1.0, "delay": 0.0, "advisory": False, "charged": True,
}  # fmt: skip
VERDICT = {
    "allowed": True, "status": 200, "reason": "", "rule": "r", "retry_after": 0.0, "reset_after": 1.0, "delay": 0.0,
    "source": "store", "headers": {}, "receipt": "token", "decisions": [DECISION],
}  # fmt: skip


def _reply(body: object = VERDICT, status: str = "200 OK", extra: str = "") -> bytes:
    text = json.dumps(body)
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(text)}\r\n{extra}\r\n{text}".encode()


def _read(connection: socket.socket) -> bytes:
    """Return the body of one request."""
    raw = Raw(connection)
    head = raw.until(b"\r\n\r\n").lower()
    length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return raw.exactly(int(length or b"0"))


def _gone() -> str:
    return f"http://127.0.0.1:{free_port()}"


def test_open_admits_all_requests_and_marks_them_degraded() -> None:
    events: list[object] = []
    with Client(_gone(), on_failure="open", timeout=DEADLINE, hook=events.append) as client:
        for verdict in (client.check(ORDERS), client.acquire("a", "1/hour"), client.peek("a", "1/hour")):
            assert (verdict.allowed, verdict.degraded, verdict.source) == (True, True, "open")
        ruling = client.check(ORDERS)
        assert (ruling.status, dict(ruling.headers), ruling.rule) == (200, {}, "")
        assert client.refund(ruling).each == ()
        with client.hold("a", "1 concurrent ttl 5s") as hold:
            assert hold.renew()
        assert [one.source for one in client.check_many([ORDERS] * 3)] == ["open"] * 3
    assert any(isinstance(event, Degraded) and event.source == "open" for event in events)


def test_closed_refuses_all_requests_with_a_time_to_retry() -> None:
    with Client(_gone(), on_failure="closed", timeout=DEADLINE) as client:
        ruling, verdict = client.check(ORDERS), client.acquire("a", "1/hour")
        assert (ruling.allowed, ruling.reason, ruling.status, ruling.source) == (False, "degraded", 503, "closed")
        assert (ruling.headers["Retry-After"], ruling.retry_after) == ("1", 1)
        assert (verdict.allowed, verdict.source) == (False, "closed")


def test_raise_raises_an_error_with_what_may_have_been_charged() -> None:
    with Client(_gone(), on_failure="raise", timeout=DEADLINE) as client:
        for ask in (
            lambda: client.check(ORDERS),
            lambda: client.acquire("a", "1/hour"),
            lambda: client.explain(ORDERS),
        ):
            with pytest.raises(StoreError, match="cannot be reached: Connection refused") as raised:
                ask()
            assert (raised.value.transient, raised.value.charged) == (True, "no")


def test_calls_without_a_fallback_raise_whatever_on_failure_says() -> None:
    with Client(_gone(), on_failure="open", timeout=DEADLINE) as client:
        for ask in (
            lambda: client.explain(ORDERS),
            lambda: client.reset(descriptor=ORDERS),
            lambda: client.reset("a", "1/hour"),
        ):
            with pytest.raises(StoreError):
                ask()


@pytest.mark.parametrize("option", [{"on_failure": "local"}, {"timeout": 0}, {"timeout": True}, {"timeout": 1e9}])
def test_invalid_options_are_refused(option: dict[str, object]) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidOption, match=next(iter(option))):
            kind("http://127.0.0.1", **option)  # type: ignore[arg-type]


def test_a_service_that_is_gone_is_called_less_and_found_again() -> None:
    events: list[object] = []
    with Client(_gone(), on_failure="open", timeout=DEADLINE, hook=events.append) as client:
        for _ in range(6):
            client.check(ORDERS)
        assert [event.state for event in events if isinstance(event, BreakerChanged)] == ["open"]
        with pytest.raises(StoreError, match="not asked, because of 5 failures in a row"):
            client.explain(ORDERS)


def test_a_silent_service_costs_the_timeout_and_no_more() -> None:
    silent: list[bytes] = []

    def listen(connection: socket.socket) -> None:
        silent.append(_read(connection))
        connection.recv(1)  # until the client has given up

    with listening(listen) as url, Client(url, timeout=0.05, on_failure="raise") as client:
        with pytest.raises(StoreError, match="no answer in time") as raised:
            client.acquire("a", "1/hour")
        assert raised.value.charged == "unknown"
    assert len(silent) == 1  # a request that may have been charged is not retried


def _hangs_up_first(answer: Callable[[bytes], bytes]) -> tuple[Callable[[socket.socket], None], list[bytes]]:
    """A service that reads its first request, and closes the connection."""
    numbers, questions = count(), []

    def behave(connection: socket.socket) -> None:
        questions.append(_read(connection))
        if next(numbers):
            connection.sendall(answer(questions[-1]))
            connection.recv(1)
        else:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return behave, questions


def test_a_request_is_retried_after_a_lost_reply_if_it_is_safe() -> None:
    behave, questions = _hangs_up_first(lambda _: _reply())
    with listening(behave) as url, Client(url, timeout=DEADLINE, on_failure="raise") as client:
        assert client.acquire("a", "9/hour", id="seven").remaining == 8
    assert len(questions) == 2
    assert questions[0] == questions[1]


def test_a_request_is_not_retried_if_that_would_charge_twice() -> None:
    behave, questions = _hangs_up_first(lambda _: _reply())
    with listening(behave) as url, Client(url, timeout=DEADLINE, on_failure="raise") as client:
        with pytest.raises(StoreError) as raised:
            client.acquire("a", "9/hour")
        assert raised.value.charged == "unknown"
    assert len(questions) == 1


def test_a_request_to_a_draining_service_is_retried_on_a_new_connection() -> None:
    """It announced its last reply, so it took no request after that: all of them may be retried."""
    numbers, questions = count(), []

    def behave(connection: socket.socket) -> None:
        if next(numbers) == 0:
            questions.append(_read(connection))
            connection.sendall(_reply(extra="connection: close\r\n"))
            return
        raw = Raw(connection)
        for _ in range(2):
            head = raw.until(b"\r\n\r\n")
            questions.append(raw.exactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])))
            connection.sendall(_reply())
        connection.recv(1)

    with listening(behave) as url, Client(url, timeout=DEADLINE, on_failure="raise") as client:
        verdicts = client.acquire_many([("a", "9/hour"), ("b", "9/hour"), ("c", "9/hour")])
    assert [verdict.allowed for verdict in verdicts] == [True] * 3
    assert [json.loads(question)["key"] for question in questions] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP/1.1"),
        (_reply(status="502 Bad Gateway", body="<html>"), "status 502"),
        (_reply(body={"allowed": True}), "unparsable reply"),
        (_reply(status="503 Service Unavailable", body={"code": "store_unavailable", "detail": "later"}), "later"),
    ],
)
def test_unusable_replies_are_failures(reply: bytes, says: str) -> None:
    def behave(connection: socket.socket) -> None:
        while _read(connection):
            connection.sendall(reply)

    with listening(behave) as url:
        with Client(url, timeout=DEADLINE, on_failure="raise") as client:
            with pytest.raises(StoreError, match=says):
                client.check(ORDERS)
            with pytest.raises(StoreError, match=says):
                client.acquire("a", "9/hour")
        with Client(url, timeout=DEADLINE, on_failure="open") as client:
            assert client.check(ORDERS).degraded


UNUSABLE = {
    "results are no list": {"results": 5},
    "results are null": {"results": None},
    "a problem is no object": {"results": [{"problem": 3}] * 2},
    "a status is no number": {"results": [{"problem": {"status": "bad"}}] * 2},
    "a rest is infinite": {"results": [VERDICT | {"decisions": [DECISION | {"retry_after": float("inf")}]}] * 2},
    "a decision is a number": {"results": [VERDICT | {"decisions": [1]}] * 2},
    "headers are missing": {"results": [{name: VERDICT[name] for name in VERDICT if name != "headers"}] * 2},
    "a quota is unknown": {"results": [VERDICT | {"decisions": [DECISION | {"quota": "9/fortnight"}]}] * 2},
}


@pytest.mark.parametrize("body", [*UNUSABLE.values(), None], ids=[*UNUSABLE, "nested too deeply"])
async def test_unusable_replies_to_batches_are_failures(body: object) -> None:
    """Each caller gets the answer of `on_failure`, not an error from reading the reply, nor a cancellation."""
    deep = "[" * 100_000
    reply = f"HTTP/1.1 200 OK\r\ncontent-length: {len(deep)}\r\n\r\n{deep}".encode() if body is None else _reply(body)

    def behave(connection: socket.socket) -> None:
        while _read(connection):
            connection.sendall(reply)

    with listening(behave) as url:
        with Client(url, timeout=DEADLINE) as client:
            rulings = await asyncio.to_thread(client.check_many, [ORDERS, ORDERS])
            assert [ruling.source for ruling in rulings] == ["open", "open"]
        async with AsyncClient(url, timeout=DEADLINE) as gathering:
            gathered = await asyncio.gather(gathering.check(ORDERS), gathering.check(ORDERS))
            assert [ruling.source for ruling in gathered] == ["open", "open"]


def test_a_refund_that_failed_is_made_later() -> None:
    with served() as (running, batches):
        client = Client(running.url, timeout=DEADLINE, on_failure="open")
        reservation = client.reserve("tokens", "100/hour", 60)
        service = client._service
        links, gone = service.connections, Client(_gone(), timeout=DEADLINE)._service.connections
        service.connections = gone
        assert reservation.settle(10).units == 0  # the outcome is unknown
        service.connections = links
        client.close()  # sends the refund
        assert batches.paths[-1] == b"/v1/settle"
        with Client(running.url, timeout=DEADLINE, on_failure="raise") as another:
            assert another.peek("tokens", "100/hour").remaining == 90


# ---------------------------------------------------------------- asyncio


async def test_on_failure_open_closed_and_raise_work_on_asyncio() -> None:
    async with AsyncClient(_gone(), on_failure="open", timeout=DEADLINE) as client:
        rulings = await asyncio.gather(*[client.check(ORDERS) for _ in range(20)])
        assert {ruling.source for ruling in rulings} == {"open"}
    async with AsyncClient(_gone(), on_failure="closed", timeout=DEADLINE) as client:
        assert not await client.acquire("a", "1/hour")
    async with AsyncClient(_gone(), on_failure="raise", timeout=DEADLINE) as client:
        with pytest.raises(StoreError, match="cannot be reached"):
            await client.check(ORDERS)


async def test_safe_requests_are_retried_on_asyncio() -> None:
    behave, questions = _hangs_up_first(lambda _: _reply())
    with listening(behave) as url:
        async with AsyncClient(url, timeout=DEADLINE, on_failure="raise") as client:
            assert (await client.acquire("a", "9/hour", id="seven")).remaining == 8
            assert len(questions) == 2


async def test_a_call_on_asyncio_keeps_its_timeout_and_leaves_a_dead_connection() -> None:
    numbers = count()

    def behave(connection: socket.socket) -> None:
        _read(connection)
        if next(numbers):
            connection.sendall(_reply())
        connection.recv(1)

    with listening(behave) as url:
        async with AsyncClient(url, timeout=0.05, on_failure="raise") as client:
            with pytest.raises(StoreError, match="no answer in time"):
                await client.acquire("a", "9/hour")
            client._service.guard.timeout = DEADLINE
            await left(client)  # the reply is overdue: no request may wait behind it
            assert await client.acquire("a", "9/hour")


async def test_replies_without_a_request_are_refused_on_asyncio() -> None:
    def behave(connection: socket.socket) -> None:
        _read(connection)
        connection.sendall(_reply() * 2)
        connection.recv(1)

    with listening(behave) as url:
        async with AsyncClient(url, timeout=DEADLINE, on_failure="raise") as client:
            assert await client.acquire("a", "9/hour")
            await left(client)
