"""An asyncio client against a real service: the same interface, and one batch per turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from penstock import ManualClock, RateLimited, StoreError
from penstock.client import AsyncClient, Tls
from penstock.errors import CostExceedsLimit, InvalidRequest
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.tls import ServerTls
from tests.rig.certificates import Certificate, can_make_certificates
from tests.rig.processes import DEADLINE
from tests.service.client_support import TOKEN, Batches, left, served
from tests.service.harness import Running

ORDERS = {"path": "/orders", "user": "alice"}
UPLOADS = {"path": "/uploads", "user": "alice"}


@pytest.fixture
def at() -> Iterator[tuple[Running, Batches]]:
    with served(clock=ManualClock()) as running:
        yield running


def _client(running: Running) -> AsyncClient:
    return AsyncClient(running.url, timeout=DEADLINE, on_failure="raise")


async def test_checks_of_one_turn_of_the_loop_are_one_batch(at: tuple[Running, Batches]) -> None:
    running, batches = at
    async with _client(running) as client:
        await client.peek("warm", "1/hour")  # there is a connection
        del batches.sizes[:]
        rulings = await asyncio.gather(*[client.check(ORDERS) for _ in range(20)])
        assert sum(ruling.allowed for ruling in rulings) == 3
        assert batches.paths[-1:] == [b"/v1/check/batch"]
        mixed = await asyncio.gather(
            client.peek(descriptor=UPLOADS), client.acquire("a", "1/hour"), client.peek("a", "1/hour")
        )
        assert [verdict.allowed for verdict in mixed] == [True, True, False]
        assert batches.sizes == [1, 3]


async def test_the_first_callers_share_the_connection_that_is_opened(at: tuple[Running, Batches]) -> None:
    running, _ = at
    async with _client(running) as client:
        verdicts = await asyncio.gather(*[client.acquire("a", "5/hour") for _ in range(30)])
        assert sum(verdict.allowed for verdict in verdicts) == 5
        assert running.run(lambda: running.server.connections) == 1


async def test_many_waiting_requests_open_more_connections(at: tuple[Running, Batches]) -> None:
    running, _ = at
    async with _client(running) as client:

        async def visit(number: int) -> int:
            return sum([(await client.acquire("crowd", "900/hour")).allowed for _ in range(10)])

        assert sum(await asyncio.gather(*[visit(number) for number in range(150)])) == 900
        assert 1 < running.run(lambda: running.server.connections) <= 4


async def test_an_async_client_has_the_interface_of_a_limiter(at: tuple[Running, Batches]) -> None:
    running, _ = at
    async with _client(running) as client:
        verdicts = await client.acquire_many([("a", "1/hour"), ("a", "1/hour"), ("b", "1/hour")])
        assert [verdict.allowed for verdict in verdicts] == [True, False, True]
        assert (await client.refund(verdicts[0])).units == 1
        assert await client.wait("a", "1/hour", timeout=0)
        await client.reset("a", "1/hour")
        async with client.hold("place", "1 concurrent ttl 30s") as hold:
            assert await hold.renew()
            assert not await client.hold("place", "1 concurrent ttl 30s")
        reservation = await client.reserve("tokens", "100/hour", 60)
        assert (await reservation.settle(10)).units == 50
        assert (await client.inspect("tokens", "100/hour"))[0].used == 10


async def test_an_async_client_has_the_interface_of_an_enforcer(at: tuple[Running, Batches]) -> None:
    running, _ = at
    async with _client(running) as client:
        assert [ruling.allowed for ruling in await client.check_many([ORDERS, (ORDERS, 2), ORDERS])] == [
            True,
            True,
            False,
        ]
        assert (await client.explain(ORDERS)).rules[0].counters[0].remaining == 0
        await client.reset(descriptor=ORDERS)
        assert (await client.peek(descriptor=ORDERS)).remaining == 3
        async with client.hold(descriptor=UPLOADS):
            with pytest.raises(RateLimited):
                async with client.hold(descriptor=UPLOADS):
                    pass
        assert await client.check(UPLOADS)
        async with client.reserve(descriptor={"path": "/chat", "user": "alice"}, cost=400) as reservation:
            assert (await reservation.settle(100)).units == 300
        free = await client.check({"path": "/elsewhere"})
        assert (await client.refund(free)).each == ()
        assert (await client.settle(free, 1)).each == ()
        assert (await client.release(free)).each == ()
        assert await client.renew(free)
        with pytest.raises(InvalidRequest, match="expected a key and a quota, or a descriptor"):
            await client.reset("alice")
    with pytest.raises(StoreError, match="closed"):
        await client.check(ORDERS)


async def test_a_caller_that_gives_up_leaves_the_connection_to_the_others(at: tuple[Running, Batches]) -> None:
    running, _ = at
    async with _client(running) as client:
        tasks = [asyncio.ensure_future(client.acquire(f"key {number}", "1/hour")) for number in range(6)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer).__name__ for answer in answers].count("CancelledError") == 1
        assert (await client.acquire("key 9", "1/hour")).key == "key 9"


def test_one_client_serves_several_loops(at: tuple[Running, Batches]) -> None:
    running, _ = at
    client = _client(running)

    async def ask() -> int:
        return (await client.acquire("loops", "9/hour")).remaining

    with asyncio.Runner() as first, asyncio.Runner(loop_factory=uvloop.new_event_loop) as second:
        assert [runner.run(ask()) for runner in (first, second, first, second)] == [8, 7, 6, 5]
        second.run(client.close())


async def test_connections_that_the_service_has_closed_are_not_used_again() -> None:
    with served(limits=ServerLimits(idle=0.05)) as (running, batches):
        async with _client(running) as client:
            assert await client.acquire("a", "9/hour")
            await left(client)
            assert (await client.acquire("a", "9/hour")).remaining == 7
            assert len(batches.paths) == 2


async def test_an_async_client_sends_its_token_over_a_unix_socket(tmp_path: Path) -> None:
    with served(token=TOKEN, family="unix", folder=str(tmp_path)) as (running, _):
        async with AsyncClient(f"unix:{running.address}", token=TOKEN, timeout=DEADLINE, on_failure="raise") as client:
            assert await client.check(ORDERS)
            assert TOKEN not in repr(client)


@pytest.mark.skipif(not can_make_certificates(), reason="the openssl command is not installed")
async def test_both_sides_show_their_certificates(tmp_path: Path) -> None:
    server, own = Certificate.make("127.0.0.1", tmp_path), Certificate.make("client", tmp_path)
    with served(tls=ServerTls(server.path, server.key, own.path)) as (running, _):
        url = running.url.replace("http:", "https:")
        trusted = Tls(server.path, own.path, own.key)
        async with AsyncClient(url, tls=trusted, timeout=DEADLINE, on_failure="raise") as client:
            assert await client.check(ORDERS)
        async with AsyncClient(url, tls=Tls(own.path), timeout=DEADLINE, on_failure="raise") as stranger:
            with pytest.raises(StoreError, match=r"certificate verify failed|cannot be reached"):
                await stranger.check(ORDERS)


async def test_each_of_a_batch_fails_alone(at: tuple[Running, Batches]) -> None:
    running, batches = at
    async with _client(running) as client:
        asked = [
            client.check(ORDERS, 9),
            client.check(ORDERS),
            client.check(ORDERS, id="one"),
            client.check(ORDERS, id="one"),
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert batches.paths == [b"/v1/check/batch"]
        assert isinstance(answers[0], CostExceedsLimit)
        assert [getattr(answer, "remaining", None) for answer in answers[1:]] == [2, 1, 1]


async def test_a_cancelled_caller_does_not_keep_the_others_of_a_batch_from_their_answers(
    at: tuple[Running, Batches],
) -> None:
    running, batches = at
    async with _client(running) as client:
        for turns in range(4):  # before it goes out, and after
            tasks = [asyncio.ensure_future(client.check({"path": "/orders", "user": f"u{turns}"})) for _ in range(3)]
            for _ in range(turns):
                await asyncio.sleep(0)
            tasks[1].cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(answers[1], asyncio.CancelledError)
            assert [getattr(answers[n], "allowed", None) for n in (0, 2)] == [True, True]
    assert set(batches.paths) == {b"/v1/check/batch"}


async def test_checks_that_one_request_cannot_hold_are_sent_in_several(at: tuple[Running, Batches]) -> None:
    running, batches = at
    async with _client(running) as client:
        large = {"path": "/elsewhere", "user": "u" * 300_000}
        rulings = await asyncio.gather(*[client.check(large) for _ in range(4)])
        assert all(rulings)
        assert batches.paths == [b"/v1/check/batch"] * 4
        assert all(await asyncio.gather(*[client.check({"path": "/elsewhere"}) for _ in range(1_100)]))
        assert len(batches.paths) == 4 + 3
