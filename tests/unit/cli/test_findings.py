"""What `penstock doctor` makes of facts."""

from __future__ import annotations

import pytest

from penstock.cli.findings import (
    Finding,
    Level,
    Owned,
    ServerAnswers,
    of_files,
    of_packages,
    of_server,
    of_service,
    parted,
    worst,
)
from penstock.clock import SECOND, Micros

NOW: Micros = 1_700_000_000 * SECOND
SOUND = {"valkey_version": "9.1.0", "redis_version": "7.2.4", "role": "master", "aof_enabled": "1", "maxmemory": "1000"}


def _asked(facts: dict[str, str], skew: Micros = 0, trip: Micros = 200, commands: str = "") -> ServerAnswers:
    info = "\r\n".join(f"{name}:{value}" for name, value in (SOUND | facts).items()).encode()
    return ServerAnswers([info, []], NOW, NOW + trip // 2 + skew, NOW + trip, commands)


def _found(asked: ServerAnswers) -> list[tuple[Level, str]]:
    return [(finding.level, finding.says) for finding in of_server("db:6379", asked)]


def test_good_server_is_reported_as_fine() -> None:
    assert _found(_asked({})) == [("fine", "valkey 9.1.0, master, all settings are good")]


@pytest.mark.parametrize(
    ("facts", "level", "says", "advice"),
    [
        ({"maxmemory_policy": "allkeys-lru"}, "problem", "counters vanish", "maxmemory-policy noeviction"),
        ({"role": "slave"}, "problem", "is a replica", ""),
        ({"evicted_keys": "7"}, "problem", "7 keys were evicted", "more memory"),
        ({"used_memory": "950"}, "warning", "95 % of maxmemory", "raise maxmemory"),
        ({"maxmemory": "0"}, "note", "maxmemory is not set", "below the memory of the machine"),
        ({"rdb_last_bgsave_status": "err"}, "problem", "refuses all writes", "disk space"),
        ({"aof_enabled": "0"}, "note", "a restart forgets", "appendonly yes"),
        ({"valkey_version": "8.0.1"}, "warning", "CVE-2025-49844", "update to 8.0.6"),
    ],
)
def test_harmful_settings_are_found_with_a_remedy(facts: dict[str, str], level: Level, says: str, advice: str) -> None:
    found = [finding for finding in of_server("db:6379", _asked(facts)) if finding.level != "fine"]
    assert [finding.level for finding in found] == [level]
    assert says in found[0].says
    assert advice in found[0].advice


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (_asked({}, skew=2 * SECOND), "its clock is 2 s ahead of this host's"),
        (_asked({}, skew=-3 * SECOND), "its clock is 3 s behind this host's"),
        (_asked({}, trip=8_000), "a round trip takes 8 ms"),
        (_asked({}, commands="cmdstat_evalsha:calls=9,usec=27000,usec_per_call=3000.00"), "scripts take 3 ms"),
    ],
)
def test_slow_round_trips_and_wrong_clocks_are_found(asked: ServerAnswers, says: str) -> None:
    ((level, said),) = _found(asked)
    assert level == "warning"
    assert says in said


def test_a_slow_answer_does_not_make_a_clock_wrong() -> None:
    assert all("clock" not in says for _, says in _found(_asked({}, skew=SECOND, trip=2 * SECOND)))


def test_server_that_denies_info_is_no_problem() -> None:
    found = of_server("db:6379", ServerAnswers([Exception("NOPERM"), []], NOW, NOW, NOW))
    assert [finding.level for finding in found] == ["warning"]
    assert "its user may not ask INFO" in found[0].says


def test_secrets_that_others_may_read_are_a_problem() -> None:
    found = of_files([Owned("key.pem", 0o100640, True), Owned("key2.pem", 0o100600, True)])
    assert found == [
        Finding(
            "file key.pem", "problem", "holds secrets, and its mode 640 lets other users access it", "chmod 600 key.pem"
        ),
        Finding("file key2.pem", "fine", "mode 600"),
    ]


def test_world_writable_rules_are_a_problem() -> None:
    assert [one.level for one in of_files([Owned("a", 0o100666, False), Owned("b", 0o100644, False)])] == [
        "problem",
        "fine",
    ]


def test_packages_that_are_too_old_or_missing_are_named() -> None:
    found = of_packages({"redis": "5.0.1", "uvloop": None}, {"redis": "6.0"})
    assert [(one.level, one.says) for one in found] == [
        ("problem", "redis 5.0.1 is too old: expected 6.0 or newer"),
        ("note", "uvloop is not installed"),
    ]
    assert [one.level for one in of_packages({"redis": "6.10"}, {"redis": "6.9"})] == ["fine"]


@pytest.mark.parametrize(
    ("status", "told", "level", "says"),
    [
        (200, {"status": "ready", "degraded": []}, "fine", "ready"),
        (200, {"status": "degraded", "degraded": ["rules: refused"]}, "warning", "degraded: rules: refused"),
        (503, {"status": "draining", "degraded": []}, "warning", "is draining, and takes no more requests"),
        (404, {}, "problem", "answers 404"),
        (200, {}, "problem", "the reply is not that of a service"),
    ],
)
def test_finding_of_a_service_follows_its_readiness(
    status: int, told: dict[str, object], level: Level, says: str
) -> None:
    ((_, found, said, _),) = of_service("host:8080", status, told)
    assert (found, said) == (level, says)


def test_highest_level_decides_the_exit_code() -> None:
    levels: list[Level] = ["fine", "warning", "note"]
    assert worst([Finding("", level, "") for level in levels]) == "warning"
    assert worst([]) == "fine"


def test_message_is_split_into_fact_and_advice() -> None:
    assert parted("a: b; set c") == ("a: b", "set c")
    assert parted("no secret (set one)") == ("no secret", "set one")
    assert parted("plain") == ("plain", "")
