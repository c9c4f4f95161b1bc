"""What the start-up check says about servers, from what they say of themselves."""

import pytest

from penstock.stores.redis.server_checks import findings

GOOD = "redis_version:8.2.2\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\nrole:master\r\nconnected_slaves:0\r\n"


def found(info: str = GOOD, replicas: object = (b"min-replicas-to-write", b"0")) -> list[str]:
    return findings([info.encode(), list(replicas) if isinstance(replicas, tuple) else replicas])


def test_a_server_in_order_is_not_found_fault_with() -> None:
    assert found() == []


def test_a_server_that_may_not_be_asked_is_said_to_be_unchecked() -> None:
    assert findings([RuntimeError("NOPERM"), RuntimeError("NOPERM")]) == [
        "the server was not checked: its user may not ask INFO (+info allows it)"
    ]


def test_an_old_server_is_named_with_what_is_expected() -> None:
    assert found(GOOD.replace("8.2.2", "6.2.21"))[0] == (
        "redis 6.2.21 is older than what is tested: expected 7.0 or newer"
    )


@pytest.mark.parametrize(
    ("version", "mended"),
    [("7.0.15", "7.2.11"), ("7.2.10", "7.2.11"), ("7.4.5", "7.4.6"), ("8.0.3", "8.0.4"), ("8.2.1", "8.2.2")],
)
def test_a_hole_in_lua_is_named_with_the_release_that_mends_it(version: str, mended: str) -> None:
    (finding,) = found(GOOD.replace("8.2.2", version))
    assert finding == (
        f"redis {version}: any client that may run EVAL can escape its Lua sandbox (CVE-2025-49844), unless "
        f"the distribution has patched it; update to {mended} or newer, and grant EVAL to no other client"
    )


@pytest.mark.parametrize("version", ["7.2.11", "7.4.6", "8.0.4", "8.2.2", "8.4.0", "9.0.0"])
def test_mended_releases_are_in_order(version: str) -> None:
    assert found(GOOD.replace("8.2.2", version)) == []


@pytest.mark.parametrize(("version", "faults"), [("7.2.11", 1), ("8.0.5", 1), ("8.1.4", 0), ("9.1.2", 0)])
def test_valkey_is_judged_by_its_own_version(version: str, faults: int) -> None:
    assert len(found(GOOD.replace("8.2.2", "7.2.4") + f"valkey_version:{version}\r\n")) == faults


def test_eviction_is_found_only_where_memory_is_bounded() -> None:
    evicting = GOOD.replace("noeviction", "allkeys-lru")
    assert found(evicting) == []
    (finding,) = found(evicting.replace("maxmemory:0", "maxmemory:1000000"))
    assert finding == (
        "maxmemory-policy is allkeys-lru: when memory is short, counters vanish and limits start over unnoticed; "
        "set maxmemory-policy noeviction, so that the failure behaviour answers instead"
    )


def test_a_replica_is_found() -> None:
    assert found(GOOD.replace("role:master", "role:slave")) == ["this server is a replica: connect to the primary"]


def test_replicas_without_protection_are_found() -> None:
    attached = GOOD.replace("connected_slaves:0", "connected_slaves:2")
    (finding,) = found(attached)
    assert finding == (
        "min-replicas-to-write is 0: a primary that lost touch goes on granting what its successor grants as well "
        "(10 s when measured; one decision with protection); set min-replicas-to-write 1 and min-replicas-max-lag 2"
    )
    assert found(attached, (b"min-replicas-to-write", b"1", b"min-replicas-max-lag", b"2")) == []


@pytest.mark.parametrize(("lag", "long"), [(b"10", "10"), (b"0", "any number of")])
def test_protection_that_comes_late_is_found(lag: bytes, long: str) -> None:
    attached = GOOD.replace("connected_slaves:0", "connected_slaves:1")
    (finding,) = found(attached, (b"min-replicas-to-write", b"1", b"min-replicas-max-lag", lag))
    assert finding == (
        f"min-replicas-max-lag is {lag.decode()}: for {long} seconds a primary that lost touch goes on granting what "
        "its successor grants as well; set min-replicas-to-write 1 and min-replicas-max-lag 2"
    )
    assert found(attached, RuntimeError("NOPERM")) == []
