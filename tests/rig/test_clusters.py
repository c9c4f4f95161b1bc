"""Clusters: failures and moves of nodes and slots on real servers, and the recovery."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.rig.certificates import Certificate
from tests.rig.clusters import SLOTS, Cluster
from tests.rig.fixtures import KeyspaceOn, check_expiries
from tests.rig.processes import wait_until
from tests.rig.resp import Refusal
from tests.rig.servers import Server, flavours


@pytest.fixture(scope="module", params=flavours())
def maltreated_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One for all tests that promote or reshard: starting it would take longer than what they do to it."""
    with Cluster(request.param) as cluster:
        yield cluster


@pytest.fixture
def own(maltreated_cluster: Cluster) -> Cluster:
    """A cluster to be maltreated, in which all is well to begin with."""
    maltreated_cluster.wait_until_ok()
    for primary in maltreated_cluster.primaries:
        primary.ask("FLUSHALL")
    return maltreated_cluster


def slot_of(cluster: Cluster, key: str) -> int:
    return int(cluster.nodes[0].ask("CLUSTER", "KEYSLOT", key))


def key_on(cluster: Cluster, server: Server, prefix: str = "k") -> str:
    """A key that belongs to a server."""
    slots = set(cluster.slots_of(server))
    return next(key for key in (f"{prefix}{number}" for number in count()) if slot_of(cluster, key) in slots)


def is_replica_of(replica: Server, primary: Server) -> bool:
    kind, *link = replica.ask("ROLE")
    return bool(kind == b"slave" and link[1] == primary.port)


def copied(primary: Server, replica: Server) -> None:
    """The replica comes to have all keys of the primary."""
    wait_until(lambda: replica.ask("DBSIZE") == primary.ask("DBSIZE"), "the replica's copy")


def test_cluster_starts_with_its_slots_shared_evenly(cluster: Cluster) -> None:
    primaries = cluster.primaries
    assert primaries == cluster.nodes[:3]
    assert sum(len(cluster.slots_of(primary)) for primary in primaries) == SLOTS
    assert {len(cluster.slots_of(primary)) for primary in primaries} == {5_461, 5_462}
    assert [len(cluster.replicas_of(primary)) for primary in primaries] == [1, 1, 1]
    for primary in primaries:
        assert is_replica_of(cluster.replicas_of(primary)[0], primary)
        key = key_on(cluster, primary)
        assert primary.ask("SET", key, "v") == b"OK"
        assert cluster.owner(slot_of(cluster, key)) is primary
        primary.ask("DEL", key)
    for node in cluster.nodes:
        assert b"cluster_state:ok" in node.ask("CLUSTER", "INFO")
    assert cluster.url == "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)


def test_keys_are_checked_on_all_primaries(cluster_keyspace: KeyspaceOn[Cluster]) -> None:
    cluster, prefix = cluster_keyspace.holder, cluster_keyspace.prefix
    for primary in cluster.primaries:
        primary.ask("SET", key_on(cluster, primary, prefix), "v", "EX", 60)
    assert check_expiries(cluster, prefix) == len(cluster_keyspace.keys()) == 3
    last = cluster.primaries[-1]
    last.ask("SET", key_on(cluster, last, prefix + "immortal"), "v")
    with pytest.raises(AssertionError, match=r"immortal\d+' never expires"):
        cluster_keyspace.check()
    cluster_keyspace.clear()
    assert cluster_keyspace.keys() == []


def test_a_frozen_primary_is_succeeded_and_follows_when_it_is_thawed(own: Cluster) -> None:
    old = own.primaries[1]
    key = key_on(own, old)
    old.ask("SET", key, "v")
    copied(old, own.replicas_of(old)[0])
    new = own.freeze_and_promote(old)
    assert own.primaries[1] is new
    new.ask("DEL", key)
    old.thaw()
    own.wait_until_ok()
    assert is_replica_of(old, new)
    copied(new, old)


def test_a_killed_primary_is_succeeded(own: Cluster) -> None:
    old = own.primaries[0]
    (replica,) = own.replicas_of(old)
    assert own.kill_primary(old) is own.primaries[0] is replica
    own.restart(old)
    assert own.replicas_of(replica) == (old,)


@pytest.mark.parametrize(("how", "shard"), [((), 0), (("FORCE",), 1), (("TAKEOVER",), 2)])
def test_a_replica_takes_over_when_asked(own: Cluster, how: tuple[str, ...], shard: int) -> None:
    old = own.primaries[shard]
    (replica,) = own.replicas_of(old)
    assert own.cluster_failover(replica, *how) is old
    assert own.primaries[shard] is replica
    own.wait_until_ok()
    assert is_replica_of(old, replica)


def test_acknowledged_writes_are_lost_with_the_primary_that_alone_had_them(own: Cluster) -> None:
    primary = own.primaries[2]
    (replica,) = own.replicas_of(primary)
    kept, lost = key_on(own, primary, "kept"), key_on(own, primary, "lost")
    primary.ask("SET", kept, "v")
    copied(primary, replica)
    with own.losing_writes(primary):
        assert primary.ask("SET", lost, "v") == b"OK"
    assert own.primaries[2] is replica
    assert [replica.ask("GET", key) for key in (kept, lost)] == [b"v", None]
    own.restart(primary)
    assert own.replicas_of(replica) == (primary,)


def test_a_lost_shard_fails_alone_and_comes_back_empty(own: Cluster) -> None:
    first, second, _ = own.primaries
    key, other = key_on(own, first), key_on(own, second)
    first.ask("SET", key, "v")
    lost = own.lose_shard(first)
    assert set(lost) > {first}
    assert not any(node.awake for node in lost)
    assert second.ask("SET", other, "v") == b"OK"
    with pytest.raises(Refusal, match=rf"^MOVED \d+ 127.0.0.1:{first.port}|^CLUSTERDOWN"):
        second.ask("SET", key, "v")
    own.restart(*lost)
    owner = own.owner(slot_of(own, key))
    assert owner in lost
    assert owner.ask("GET", key) is None


def test_a_slot_on_its_way_is_in_two_places(own: Cluster) -> None:
    source, target, third = own.primaries
    keys = ["{0}a", "{0}b"]
    slot = slot_of(own, keys[0])
    if own.owner(slot) is not source:
        source, third = own.owner(slot), source
    if target is source:
        target, third = third, target
    source.ask("MSET", keys[0], "v", keys[1], "v")

    move = own.move(slot, target)
    move.begin()
    moved, left = (key.encode() for key in keys)
    assert move.move_keys([moved]) == 1
    assert source.ask("CLUSTER", "GETKEYSINSLOT", slot, 10) == [left]
    assert source.ask("GET", left) == b"v"
    with pytest.raises(Refusal, match=f"^ASK {slot} 127.0.0.1:{target.port}"):
        source.ask("GET", moved)
    with pytest.raises(Refusal, match=r"^TRYAGAIN"):
        source.ask("MGET", *keys)
    with target.talk() as conversation:
        with pytest.raises(Refusal, match=f"^MOVED {slot} 127.0.0.1:{source.port}"):
            conversation.ask("GET", moved)
        assert conversation.ask_all([("ASKING",), ("GET", moved)]) == [b"OK", b"v"]

    assert move.move_keys() == 1
    move.finish()
    assert own.owner(slot) is target
    assert target.ask("MGET", *keys) == [b"v", b"v"]
    with pytest.raises(Refusal, match=f"^MOVED {slot} 127.0.0.1:{target.port}"):
        third.ask("GET", moved)


def test_many_primaries_move_slots_with_their_keys_all_under_lock_and_key(
    flavour: str, certificate: Certificate | None
) -> None:
    with Cluster(
        flavour, primaries=12, replicas=0, full_coverage=True, password="sesame", certificate=certificate
    ) as own:
        scheme = "redis" if certificate is None else "rediss"
        assert own.url.startswith(f"{scheme}+cluster://:sesame@127.0.0.1:")
        source, target, *others = primaries = own.primaries
        assert primaries == own.nodes
        key = key_on(own, source)
        source.ask("SET", key, "v")
        slot = slot_of(own, key)
        own.reshard([slot, SLOTS - 1], target)
        assert own.owner(slot) is own.owner(SLOTS - 1) is target
        assert target.ask("GET", key) == b"v"
        assert source.ask("DBSIZE") == 0
        with pytest.raises(Refusal, match=f"^MOVED {slot} 127.0.0.1:{target.port}"):
            others[0].ask("GET", key)

        own.lose_shard(others[-1])  # and all slots must be covered
        with pytest.raises(Refusal, match=r"^CLUSTERDOWN"):
            target.ask("GET", key)
