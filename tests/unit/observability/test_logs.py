"""Logs: one line each, some refusals of many, never an identity."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import Limiter, ManualClock
from penstock.errors import InvalidOption
from penstock.events import LimitScaled, RulesLoaded, RulesRefused, Shedding
from penstock.observability.fanout import Hooks, Observers
from penstock.observability.logs import DenialLog, EventLog, Form, configure, hashed
from penstock.stores.memory.store import MemoryStore
from tests.unit.observability.support import enforcer

SECRET = b"of-the-test"
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    ours = logging.getLogger("penstock")
    before = ours.handlers[:], ours.level, ours.propagate
    yield io.StringIO()
    ours.handlers[:], ours.level, ours.propagate = before


@pytest.fixture
def lines(stream: io.StringIO) -> Lines:
    configure("json", "info", stream)

    def read() -> list[dict[str, Any]]:
        text = stream.getvalue()
        stream.seek(0)
        stream.truncate()
        return [json.loads(line) for line in text.splitlines()]

    return read


def test_a_line_of_json_holds_what_the_record_says(lines: Lines) -> None:
    logging.getLogger("penstock.redis").warning(
        "redis at %s:\nslow", "h:1", extra={"fields": {"took": 5, "level": "x"}}
    )
    (line,) = lines()
    assert line.pop("time").endswith("Z")
    message = "redis at h:1:\nslow"
    assert line == {"level": "warning", "logger": "penstock.redis", "message": message, "took": 5}


def test_an_exception_stays_on_its_line(lines: Lines) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("penstock.service").exception("a fault")
    (line,) = lines()
    assert line["error"].endswith("ValueError: no")


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_line_break_in_a_message_cannot_forge_a_line(stream: io.StringIO, form: Form) -> None:
    configure(form, "info", stream)
    logging.getLogger("penstock.service").info("path %s", "/x\r\n2026-01-01T00:00:00Z info penstock: all is well")
    starts = [line for line in stream.getvalue().splitlines() if line.startswith(("2", "{"))]
    assert len(starts) == 1


def test_text_is_for_people(stream: io.StringIO) -> None:
    configure("text", "info", stream)
    logging.getLogger("penstock.denials").info("refused", extra={"fields": {"rule": "api", "used": 5}})
    logging.getLogger("penstock.denials").debug("too much detail")
    assert stream.getvalue().split(" ", 1)[1] == "info penstock.denials: refused (rule=api, used=5)\n"


def test_forms_and_levels_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InvalidOption, match="log_format 'xml': expected json or text"):
        configure("xml")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="log_level 'loud': expected debug"):
        configure("json", "loud")
    with pytest.raises(InvalidOption, match="per_second 0: expected a whole number, at least 1"):
        DenialLog(SECRET, per_second=0)


def test_a_refusal_is_logged_with_a_hashed_key(lines: Lines) -> None:
    clock = ManualClock()
    rules = enforcer(clock, {"id": "api", "match": {"path": "/v1"}, "quota": "2/minute", "key": "api_key"})
    log = DenialLog(SECRET, clock=clock)
    rulings = [rules.check({"path": "/v1", "api_key": "sk-very-secret"}) for _ in range(3)]
    log.decided(rulings, 0)
    (line,) = lines()
    assert "sk-very-secret" not in json.dumps(line)
    assert line["key"] == hashed(rulings[2].key, SECRET)
    assert line["key"] != hashed(rulings[2].key, b"another")
    said = {name: line[name] for name in ("rule", "reason", "quota", "used", "cost", "source", "logger")}
    assert said == {
        "rule": "api",
        "reason": "rate",
        "quota": "2/minute",
        "used": 2,
        "cost": 1,
        "source": "store",
        "logger": "penstock.denials",
    }
    assert 0 < line["retry_after"] <= 120


def test_a_flood_of_refusals_is_a_trickle_of_lines(lines: Lines) -> None:
    clock = ManualClock()
    limiter = Limiter(MemoryStore(clock=clock), clock=clock)
    log = DenialLog(SECRET, per_second=3, clock=clock)
    limiter.acquire("k", "1/hour")
    log.decided([limiter.acquire("k", "1/hour") for _ in range(100)], 0)
    assert [line.get("left_out") for line in lines()] == [None] * 3
    clock.advance(1)
    log.decided([limiter.acquire("k", "1/hour") for _ in range(2)], 0)
    assert [line.get("left_out") for line in lines()] == [97, None]


def test_one_in_so_many_is_logged(lines: Lines) -> None:
    clock = ManualClock()
    limiter = Limiter(MemoryStore(clock=clock), clock=clock)
    log = DenialLog(SECRET, share=10, per_second=1_000, clock=clock)
    log.decided([limiter.acquire("k", "1/hour") for _ in range(101)], 0)
    assert len(lines()) == 10


def test_what_was_blocked_or_shed_has_no_quota_to_show(lines: Lines) -> None:
    clock = ManualClock()
    rules = enforcer(clock, {"id": "bad", "action": "deny", "match": {"path": "/bad"}})
    DenialLog(SECRET, clock=clock).decided([rules.check({"path": "/bad"}), rules.check({"path": "/"})], 0)
    (line,) = lines()
    assert (line["rule"], line["reason"], "quota" in line, "key" in line) == ("bad", "blocked", False, False)


def test_events_are_logged_by_how_bad_they_are(lines: Lines) -> None:
    log = EventLog()
    for event in (
        RulesLoaded("r.yaml", "v1"),
        RulesRefused("r.yaml", "v2", 3, "r.yaml:1: bad"),
        Shedding(0, 10, 1.23456, "cpu"),
        Shedding(10, 0, 0.5, "cpu"),
        LimitScaled("10/second", "5/second"),
        object(),
    ):
        log(event)
    found = lines()
    assert [line["level"] for line in found] == ["info", "error", "warning", "info", "info"]
    assert (found[1]["faults"], found[1]["why"]) == (3, "r.yaml:1: bad")
    assert found[2]["pressure"] == 1.235


def test_each_hook_is_called_although_others_fail() -> None:
    heard: list[object] = []

    def broken(event: Any) -> None:
        raise RuntimeError

    Hooks(broken, heard.append)("event")
    assert heard == ["event"]

    class Noted:
        def decided(self, verdicts: Any, took: int) -> None:
            heard.append(("decided", took))

        def answered(self, route: str, statuses: Any, took: int) -> None:
            heard.append((route, took))

    both = Observers(Noted(), Noted())
    both.decided([], 5)
    both.answered("check", [200], 7)
    assert heard[1:] == [("decided", 5)] * 2 + [("check", 7)] * 2
