"""Servers that answer, but not with an answer: clear errors, true to whether they pass and whether it was charged."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread

import hiredis
import pytest
import redis

from penstock import Limiter
from penstock.layers import Fallback
from penstock.model import Amend, Failed, Outcome, Receipt, Reset, Verdict
from penstock.quota import Quota
from penstock.stores.redis.errors import COMMANDS, RIGHTS
from penstock.stores.redis.store import AsyncRedisStore, RedisStore
from tests.integration.redis_support import (
    LONG,
    PATIENT,
    acquire,
    decided,
    failed,
    one,
    one_async,
    opened,
    opened_async,
    the_link,
)
from tests.rig.certificates import Certificate, can_make_certificates
from tests.rig.faults import FaultProxy
from tests.rig.fixtures import Keyspace
from tests.rig.processes import wait_until
from tests.rig.resp import Refusal
from tests.rig.servers import Server, flavours

QUOTA = f"1000/{LONG}"
KINDS = (
    "5/hour",
    "5/hour fixed_window",
    "5/hour rolling_window",
    "5/hour gcra",
    "5/hour token_bucket",
    "5/hour queue 4",
    "5/day calendar UTC",
    "3 concurrent ttl 60s",
    "3/hour penalty 60s",
    "3/hour rolling_window penalty 60s",
)


@pytest.fixture(params=flavours())
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def own(flavour: str) -> Iterator[Server]:
    """A server of the test's own, to be reconfigured."""
    with Server(flavour) as server:
        yield server


def both(url: str) -> list[Failed]:
    """How a blocking and an asyncio store fail that have just been opened."""

    async def fail() -> Outcome:
        async with opened_async(url) as store:
            return await one_async(store, acquire(QUOTA))

    with opened(url) as store:
        return [failed(one(store, acquire(QUOTA))), failed(asyncio.run(fail()))]


def told(outcomes: list[Failed]) -> set[tuple[bool, str]]:
    return {(outcome.error.transient, outcome.charged) for outcome in outcomes}


PASSES, STAYS = {(True, "no")}, {(False, "no")}


# ---------------------------------------------------------------- states of a server


def test_a_server_out_of_memory_refuses_before_it_charges_and_recovers(own: Server) -> None:
    with opened(own.url) as store:
        assert decided(one(store, acquire(QUOTA)))
        own.ask("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1")
        full = failed(one(store, acquire(QUOTA)))
        assert told([full, *both(own.url)]) == PASSES
        assert "out of memory" in str(full.error)
        own.ask("CONFIG", "SET", "maxmemory", "0")
        assert decided(one(store, acquire(QUOTA))).remaining == 998


def run_for_ever(server: Server) -> None:
    with pytest.raises(Refusal, match=r"[Ss]cript killed"):
        server.ask("EVAL", "while true do end", 0)


def test_a_server_busy_with_a_script_is_recognised_and_recovers(flavour: str) -> None:
    with Server(flavour, config=["lua-time-limit 20"]) as own, opened(own.url) as store:
        assert decided(one(store, acquire(QUOTA)))
        script = Thread(target=run_for_ever, args=(own,))
        script.start()
        wait_until(lambda: isinstance(one(store, acquire(QUOTA, "bob")), Failed), "the server's being busy")
        busy = failed(one(store, acquire(QUOTA)))
        assert told([busy, *both(own.url)]) == PASSES
        assert "a script has been running for too long" in str(busy.error)
        own.ask("SCRIPT", "KILL")
        script.join()
        assert decided(one(store, acquire(QUOTA))).remaining == 998


def test_a_replica_says_that_it_is_one(own: Server) -> None:
    with Server(own.flavour, config=[f"replicaof 127.0.0.1 {own.port}"]) as replica:
        wait_until(lambda: b"state=online" in own.ask("INFO", "replication"), "the replica's link")
        outcomes = both(replica.url)
        assert told(outcomes) == PASSES
        assert "the server is a replica" in str(outcomes[0].error)


def test_a_primary_with_too_few_replicas_refuses_before_it_charges(own: Server) -> None:
    with opened(own.url) as store:
        assert decided(one(store, acquire(QUOTA)))
        own.ask("CONFIG", "SET", "min-replicas-to-write", "1")
        alone = failed(one(store, acquire(QUOTA)))
        assert told([alone]) == PASSES
        own.ask("CONFIG", "SET", "min-replicas-to-write", "0")
        assert decided(one(store, acquire(QUOTA))).remaining == 998


# ---------------------------------------------------------------- passwords and rights


def test_a_missing_and_a_wrong_password_stay_wrong_and_are_never_quoted(flavour: str) -> None:
    with Server(flavour, password="sesame") as own:
        place = f"redis at 127.0.0.1:{own.port}: "
        for login, why in (
            ("", "the server wants a password"),
            (":tulip@", "wrong user name or password"),
            ("nobody:tulip@", "wrong user name or password"),
        ):
            outcomes = both(f"redis://{login}127.0.0.1:{own.port}")
            assert told(outcomes) == STAYS
            for outcome in outcomes:
                assert str(outcome.error).startswith(place + why)
                assert not {"sesame", "tulip", "nobody"} & set(re.findall(r"\w+", str(outcome.error)))
        with opened(own.url) as store:
            assert decided(one(store, acquire(QUOTA)))


def test_a_password_that_is_put_right_is_noticed(flavour: str) -> None:
    with Server(flavour, password="sesame") as own, opened(f"redis://:tulip@127.0.0.1:{own.port}") as store:
        assert not failed(one(store, acquire(QUOTA))).error.transient
        own.ask("CONFIG", "SET", "requirepass", "tulip")
        own.password = "tulip"
        wait_until(lambda: isinstance(one(store, acquire(QUOTA)), Verdict), "a verdict")


def allow(server: Server, *rules: str) -> str:
    """The URL of a user who may do this and nothing else."""
    server.ask("ACL", "SETUSER", "app", "reset", "on", ">tulip", *rules)
    return f"redis://app:tulip@127.0.0.1:{server.port}"


def use_everything(url: str) -> list[Failed]:
    """What fails when every algorithm and every verb is used."""
    with opened(url) as store:
        outcomes = []
        for quota in KINDS:
            for number in range(7):
                outcome = one(store, acquire(quota, id=b"%d" % number if number % 2 else None))
                outcomes.append(outcome)
                receipt = outcome.receipt if isinstance(outcome, Verdict) else None
                if receipt is not None and number > 3:
                    verbs = ("renew", "release") if "concurrent" in quota else ("settle", "refund")
                    outcomes += [one(store, Amend(receipt, verb, 0)) for verb in verbs]  # type: ignore[arg-type]
            outcomes.append(one(store, Reset("alice", Quota.parse(quota))))
    return [outcome for outcome in outcomes if isinstance(outcome, Failed)]


def test_the_rights_that_are_named_suffice(own: Server) -> None:
    """Neither EVAL nor CLIENT is among them, nor any key but those with the prefix."""
    assert use_everything(allow(own, "~pk1*", *RIGHTS.split())) == []


@pytest.mark.parametrize("missing", ["evalsha", "script|load"])
def test_an_error_names_the_rights_that_scripts_need(own: Server, missing: str) -> None:
    outcomes = both(allow(own, "~pk1*", *RIGHTS.replace(f"+{missing}", "").split()))
    assert told(outcomes) == STAYS
    assert "expected +evalsha +script|load" in str(outcomes[0].error)


def test_an_error_says_that_the_key_prefix_is_not_allowed(own: Server) -> None:
    outcomes = both(allow(own, "~other*", *RIGHTS.split()))
    assert told(outcomes) == STAYS
    assert "the key prefix" in str(outcomes[0].error)


@pytest.mark.parametrize("missing", ["time", "get", "set"])
def test_an_error_names_the_rights_that_the_commands_of_the_script_need(own: Server, missing: str) -> None:
    assert missing in COMMANDS
    outcomes = both(allow(own, "~pk1*", *[right for right in RIGHTS.split() if right != f"+{missing}"]))
    assert told(outcomes) == STAYS
    assert f"+{missing} " in str(outcomes[0].error)


def test_an_error_before_the_first_charge_says_that_nothing_was_charged(own: Server) -> None:
    asked = [acquire(quota, id=id) for quota in KINDS for id in (None, b"id")]
    with opened(allow(own, "~pk1*", *[right for right in RIGHTS.split() if right not in ("+set", "+zadd")])) as store:
        for op in asked:
            assert told([failed(one(store, op))]) == STAYS
        allow(own, "~pk1*", *RIGHTS.split())
        for op in asked:
            assert decided(one(store, op)).remaining == op.asks[0].quota.limit - (1 if op.id is None else 2)


def test_a_right_that_is_missing_after_a_charge_of_the_batch_leaves_it_unknown(own: Server) -> None:
    allow(own, "~pk1*", *[right for right in RIGHTS.split() if right != "+zadd"])
    with opened(f"redis://app:tulip@127.0.0.1:{own.port}") as store:
        log, text = acquire(f"5/{LONG} rolling_window"), acquire(f"5/{LONG}")
        assert [failed(outcome).charged for outcome in store.run([text, log])] == ["unknown"] * 2
        assert [failed(outcome).charged for outcome in store.run([log, text])] == ["no"] * 2
        assert decided(one(store, text)).remaining == 3


def test_admissions_while_rights_are_missing_are_charged_once_they_are_back(own: Server) -> None:
    url, enough = allow(own, "~pk1*", *RIGHTS.split()), f"1000/{LONG}"
    quotas = enough, f"{enough} rolling_window"
    with (
        opened(own.url) as onlooker,
        closing(Limiter(RedisStore(url, **PATIENT), layers=[Fallback(hosts=1)])) as limiter,
    ):

        def sources() -> set[str]:
            return {limiter.acquire("alice", quota).source for quota in quotas}

        def used() -> list[int]:
            return [1000 - decided(one(onlooker, acquire(quota, dry=True))).remaining for quota in quotas]

        assert sources() == {"store"}
        allow(own, "~pk1*", *[right for right in RIGHTS.split() if right not in ("+set", "+zadd")])
        for _ in range(20):
            assert sources() == {"local"}
        allow(own, "~pk1*", *RIGHTS.split())
        assert sources() == {"store"}
        wait_until(lambda: used() == [22, 22], "what was admitted meanwhile")


def test_another_database_takes_one_more_right(own: Server) -> None:
    url = allow(own, "~pk1*", *RIGHTS.split()) + "/3"
    outcomes = both(url)
    assert told(outcomes) == STAYS
    allow(own, "~pk1*", *RIGHTS.split(), "+select")
    with opened(url) as store:
        assert decided(one(store, acquire(QUOTA)))


# ---------------------------------------------------------------- ways to connect


async def test_a_unix_socket_is_as_good_as_a_port(flavour: str) -> None:
    with Server(flavour, password="sesame") as own:
        with opened(own.socket_url) as store:
            assert decided(one(store, acquire(QUOTA))).remaining == 999
        async with opened_async(own.socket_url.replace("redis+unix", "valkey+unix")) as other:
            assert decided(await one_async(other, acquire(QUOTA))).remaining == 998


async def test_the_settings_of_an_existing_client_are_as_good_as_a_url(flavour: str) -> None:
    with Server(flavour, password="sesame") as own:
        client = redis.Redis.from_url(own.url, db=2)
        store = RedisStore.from_client(client, **PATIENT)
        assert decided(one(store, acquire(QUOTA))).remaining == 999
        store.close()
        client.close()
        async with redis.asyncio.Redis.from_url(own.url, db=2) as other:
            async_store = AsyncRedisStore.from_client(other, **PATIENT)
            assert decided(await one_async(async_store, acquire(QUOTA))).remaining == 998
            await async_store.close()


needs_openssl = pytest.mark.skipif(not can_make_certificates(), reason="no openssl command")


@needs_openssl
async def test_tls_carries_small_and_large_batches(keyspace: Keyspace, tmp_path: Path) -> None:
    """A reply of many decisions fills several TLS records."""
    certificate = Certificate.make("127.0.0.1", tmp_path)
    ops = [acquire(f"{number + 1}/hour", f"key {number}") for number in range(512)]
    with FaultProxy(keyspace.server.address, certificate=certificate) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}?ssl_ca_certs={certificate.path}"
        async with opened_async(url, prefix=keyspace.prefix) as store:
            for _ in range(3):
                decided(await one_async(store, acquire(QUOTA)))
                several = await asyncio.gather(*[store.run(ops) for _ in range(2)])
                assert [decided(outcome).quota.limit for outcome in several[1]] == list(range(1, 513))

        def blocking() -> None:
            with opened(url, prefix=keyspace.prefix) as store:
                for _ in range(3):
                    decided(one(store, acquire(QUOTA)))
                    assert [decided(outcome).quota.limit for outcome in store.run(ops)] == list(range(1, 513))
                assert proxy.counts().open == 1, "one connection was enough"

        await asyncio.to_thread(proxy.when, lambda counts: counts.open == 0)
        await asyncio.to_thread(blocking)


@needs_openssl
def test_a_certificate_of_another_host_is_refused(keyspace: Keyspace, tmp_path: Path) -> None:
    certificate = Certificate.make("elsewhere.example", tmp_path)
    with FaultProxy(keyspace.server.address, certificate=certificate) as proxy:
        outcomes = both(f"rediss://127.0.0.1:{proxy.port}?ssl_ca_certs={certificate.path}")
        assert {outcome.charged for outcome in outcomes} == {"no"}
        for outcome in outcomes:
            assert "IP address mismatch, certificate is not valid for '127.0.0.1'" in str(outcome.error)


@needs_openssl
def test_a_certificate_of_an_unknown_authority_is_refused(keyspace: Keyspace, tmp_path: Path) -> None:
    certificate = Certificate.make("127.0.0.1", tmp_path)
    with FaultProxy(keyspace.server.address, certificate=certificate) as proxy:
        for outcome in both(f"rediss://127.0.0.1:{proxy.port}"):
            assert "certificate verify failed" in str(outcome.error)


# ---------------------------------------------------------------- servers that are no Redis


@contextmanager
def stranger(answer: bytes) -> Iterator[str]:
    """The URL of a server that loads scripts as Redis does, and replies to each run with `answer`."""

    def serve(connection: socket.socket) -> None:
        reader = hiredis.Reader()
        with connection, suppress(OSError, hiredis.ProtocolError):  # the client is gone, or speaks TLS
            while chunk := connection.recv(65_536):
                reader.feed(chunk)
                while (command := reader.gets()) is not False:
                    connection.sendall(answer if command[0] == b"EVALSHA" else b"+OK\r\n")

    def listen() -> None:
        with suppress(OSError):  # closed
            while True:
                Thread(target=serve, args=(listener.accept()[0],)).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listening = Thread(target=listen)
        listening.start()
        try:
            yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listening.join()


@pytest.mark.parametrize(
    "answer",
    [b":1\r\n", b"$-1\r\n", b"$5\r\nhello\r\n", b"$8\r\n12345678\r\n", b"*0\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"],
)
def test_an_unparsable_reply_is_a_failure_and_no_call_waits_for_ever(answer: bytes) -> None:
    with stranger(answer) as url:
        assert told(both(url)) == {(True, "unknown")}


def is_spoiled(store: RedisStore) -> bool:
    (wire,) = the_link(store)._ready
    return not wire.is_quiet()


async def test_a_reply_too_many_ends_the_connection_before_a_call_takes_it() -> None:
    with stranger(b":1\r\n" * 2) as url:
        async with opened_async(url) as store:
            await one_async(store, acquire(QUOTA))
            assert the_link(store).connection is None
        with opened(url) as blocking:
            for _ in range(3):
                one(blocking, acquire(QUOTA))
                await asyncio.to_thread(wait_until, partial(is_spoiled, blocking), "the answer too many")


def test_a_server_that_is_no_redis_is_unreachable() -> None:
    with stranger(b"") as url:
        port = url.rpartition(":")[2]
        outcomes = both(f"rediss://127.0.0.1:{port}")
    assert told(outcomes) == PASSES


async def test_an_invalid_operation_fails_its_own_caller_only(keyspace: Keyspace) -> None:
    """Asked in the same turn of the loop, it cannot be planned, and the others do not hear of it."""
    nonsense = Amend(Receipt((), "a record without a serial"), "refund")
    async with opened_async(keyspace.server.url, prefix=keyspace.prefix) as store:
        before, error, after = await asyncio.gather(
            store.run([acquire(QUOTA)]), store.run([nonsense]), store.run([acquire(QUOTA)]), return_exceptions=True
        )
    assert isinstance(error, ValueError)
    assert not isinstance(before, BaseException)
    assert not isinstance(after, BaseException)
    assert [decided(outcome).remaining for outcome in (*before, *after)] == [999, 998]
