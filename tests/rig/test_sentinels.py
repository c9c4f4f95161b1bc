"""Sentinel sets: failures of a primary on real servers, and the recovery."""

import socket
from collections.abc import Iterator

import pytest

from tests.rig.certificates import Certificate
from tests.rig.fixtures import KeyspaceOn, check_expiries
from tests.rig.processes import wait_until
from tests.rig.resp import Conversation, Refusal
from tests.rig.sentinels import SentinelSet
from tests.rig.servers import Server, flavours
from tests.rig.topologies import come_to_terms


@pytest.fixture(scope="module", params=flavours())
def maltreated_set(request: pytest.FixtureRequest) -> Iterator[SentinelSet]:
    """One for all tests that promote: starting it would take longer than what they do to it."""
    with SentinelSet(request.param) as sentinel_set:
        yield sentinel_set


@pytest.fixture
def own(maltreated_set: SentinelSet) -> SentinelSet:
    """A sentinel set to be maltreated, in which all is well to begin with."""
    maltreated_set.wait_until_ok()
    maltreated_set.primary.ask("FLUSHALL")
    return maltreated_set


def role(server: Server) -> bytes:
    return bytes(server.ask("ROLE")[0])


def holds_everywhere(sentinel_set: SentinelSet, key: str, value: bytes | None) -> None:
    """Every server comes to hold this value."""
    wait_until(lambda: {server.ask("GET", key) for server in sentinel_set.servers} == {value}, f"{key} on all servers")


def test_broken_connection_is_retried_and_a_refusal_is_raised() -> None:
    """Sentinels have the clients of a server killed when they give it another role."""
    said: list[Exception] = [BrokenPipeError(), ConnectionResetError(), ConnectionError()]

    def holds() -> bool:
        if said:
            raise said.pop()
        return True

    come_to_terms(holds, "an answer")
    said.append(ConnectionRefusedError())
    with pytest.raises(ConnectionRefusedError):
        come_to_terms(holds, "an answer")


def test_sentinels_name_one_primary_at_start(sentinel_set: SentinelSet) -> None:
    assert [role(server) for server in sentinel_set.servers].count(b"master") == 1
    assert role(sentinel_set.primary) == b"master"
    assert set(sentinel_set.replicas) == set(sentinel_set.servers) - {sentinel_set.primary}
    for sentinel in sentinel_set.sentinels:
        known = sentinel.ask("INFO", "sentinel")
        assert b"name=main,status=ok," in known
        assert b"slaves=2,sentinels=3" in known
    hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinel_set.sentinels)
    assert sentinel_set.url == f"redis+sentinel://{hosts}/main"


def test_keys_are_checked_on_the_primary(sentinel_keyspace: KeyspaceOn[SentinelSet]) -> None:
    primary = sentinel_keyspace.holder.primary
    primary.ask("SET", sentinel_keyspace.prefix + "mortal", "v", "EX", 60)
    assert check_expiries(sentinel_keyspace.holder, sentinel_keyspace.prefix) == 1
    primary.ask("SET", sentinel_keyspace.prefix + "immortal", "v")
    assert len(sentinel_keyspace.keys()) == 2
    with pytest.raises(AssertionError, match=r"immortal' never expires"):
        sentinel_keyspace.check()
    sentinel_keyspace.clear()
    assert sentinel_keyspace.keys() == []


def test_a_frozen_primary_is_succeeded_and_goes_on_as_one_when_thawed(own: SentinelSet) -> None:
    with socket.create_connection(own.primary.address, timeout=60) as client:
        zombie = own.freeze_and_promote()
        assert own.primary is not zombie
        client.sendall(b"SET k zombie\r\n")
        zombie.thaw()
        assert client.recv(100) == b"+OK\r\n"
    own.wait_until_ok()
    assert role(zombie) == b"slave"
    holds_everywhere(own, "k", None)


def test_sentinels_promote_another_when_asked_and_remember_it(own: SentinelSet) -> None:
    old = own.sentinel_failover()
    new = own.primary
    assert new is not old
    assert role(new) == b"master"
    own.restart(own.sentinels[0])
    assert own.primary is new
    assert role(old) == b"slave"


def test_a_primary_hands_over_when_asked_and_the_sentinels_do_not_know(own: SentinelSet) -> None:
    old, to = own.primary, own.replicas[-1]
    old.ask("SET", "k", "v")
    assert own.failover(to) is to
    assert (role(to), role(old)) == (b"master", b"slave")
    assert own.primary is old
    own.wait_until_ok()
    assert own.primary is not old
    holds_everywhere(own, "k", b"v")


def test_acknowledged_writes_are_lost_with_the_primary_that_alone_had_them(own: SentinelSet) -> None:
    own.primary.ask("SET", "kept", "v")
    holds_everywhere(own, "kept", b"v")
    with own.losing_writes() as primary:
        assert primary.ask("SET", "lost", "v") == b"OK"
    assert own.primary is not primary
    assert own.primary.ask("MGET", "kept", "lost") == [b"v", None]
    own.restart(primary)
    holds_everywhere(own, "lost", None)


def test_a_primary_without_replicas_refuses_writes_where_it_must_have_some(flavour: str) -> None:
    with SentinelSet(flavour, replicas=1, sentinels=1, min_replicas=1) as own:
        own.primary.ask("SET", "k", "v")
        own.replicas[0].kill()

        def refuses() -> bool:
            try:
                own.primary.ask("SET", "k", "v")
            except Refusal as refusal:
                return str(refusal).startswith("NOREPLICAS")
            return False

        wait_until(refuses, "the primary's notice that it is alone")


def test_a_killed_primary_is_succeeded_and_follows_when_it_is_back_all_under_lock_and_key(
    flavour: str, certificate: Certificate | None
) -> None:
    with SentinelSet(
        flavour, service="other", password="sesame", sentinel_password="poppy", certificate=certificate
    ) as own:
        scheme = "redis" if certificate is None else "rediss"
        assert own.url.startswith(f"{scheme}+sentinel://:sesame@127.0.0.1:")
        assert own.url.endswith("/other?sentinel_password=poppy")
        own.primary.ask("SET", "k", "v")
        holds_everywhere(own, "k", b"v")

        dead = own.kill_primary()
        new = own.primary
        assert new is not dead
        assert new.ask("GET", "k") == b"v"
        new.ask("SET", "k", "w")
        own.restart(dead)
        assert own.primary is new
        holds_everywhere(own, "k", b"w")

        for member in (*own.servers, *own.sentinels):
            with Conversation(member.socket, 60) as stranger, pytest.raises(Refusal, match=r"^NOAUTH"):
                stranger.ask("PING")
