"""Laws of the rate limit service: it counts as the original does, survives any bytes, and converts without loss."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import Fault, InvalidRules
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet
from penstock.service.envoy import answers
from penstock.service.envoy.config import UNITS, Entry
from penstock.service.envoy.config_files import File, read
from penstock.service.envoy.convert import convert
from penstock.service.envoy.plans import Conduct
from penstock.service.envoy.protocol import RateLimitResponse
from tests.unit.envoy.support import OK, OVER, Asked, Bench, request

ONE = """
domain: d
descriptors: [{key: k, rate_limit: {unit: %s, requests_per_unit: %d}}, {key: other, rate_limit: {unit: hour,
  requests_per_unit: 3}}]
"""


CONFIG = Bench.config(ONE % ("day", 7))


class Original:
    """envoyproxy/ratelimit for one limit: a counter per window of the unit, incremented whatever it says."""

    def __init__(self, unit: str, requests: int) -> None:
        self._length, self._requests = UNITS[unit].seconds, requests
        self._counts: Counter[tuple[str, int]] = Counter()

    def hit(self, value: str, now: float) -> tuple[int, int, int]:
        """Code, remaining and seconds until reset."""
        window = int(now) // self._length
        self._counts[value, window] += 1
        left = self._requests - self._counts[value, window]
        return (OK if left >= 0 else OVER), max(left, 0), self._length - int(now) % self._length


@given(
    st.sampled_from(sorted(UNITS)),
    st.integers(0, 4),
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3_000_000)), max_size=12),
)
def test_requests_of_one_hit_are_answered_as_the_original_answers_them(
    unit: str, requests: int, hits: list[tuple[str, float]]
) -> None:
    bench, original = Bench(ONE % (unit, requests)), Original(unit, requests)
    for value, pause in hits:
        bench.clock.advance(pause if pause > 1_000 else pause / 1_000)
        (status,) = bench.one("d", {"k": value}).statuses
        told = status.code, status.limit_remaining, status.duration_until_reset.seconds
        assert told == original.hit(value, bench.clock.micros / 1_000_000)


VALID = request("d", {"k": "v"}, ({"other": "w"}, 2), ({"k": "z"}, (5, 3)), hits=2)


def damaged(seed: int) -> bytes:
    """Bytes of any kind: random ones, and a request that something happened to. Drawn here, for speed."""
    draw = Random(seed)
    if draw.random() < 0.3:
        return draw.randbytes(draw.randrange(200))
    data = bytearray(VALID)
    for _ in range(draw.randint(1, 3)):
        at, kind = draw.randrange(len(data)), draw.randrange(12)
        if kind > 1:
            data[at] = draw.randrange(128)
        elif kind == 1:
            del data[at : at + draw.randint(1, 9)]
        else:
            data[at:at] = draw.randbytes(draw.randint(1, 9))
    return bytes(data)


BENCHES = [Bench(CONFIG), Bench(CONFIG, Conduct(all_or_nothing=True))]
AT_ONCE = 5
"""Inputs in an example, so that 10,000 examples are 50,000 inputs."""


@given(st.lists(st.integers(0, 2**63), min_size=AT_ONCE, max_size=AT_ONCE), st.sampled_from(BENCHES))
def test_any_bytes_are_answered_or_fail_and_failures_change_nothing(seeds: list[int], bench: Bench) -> None:
    asked = [Asked(damaged(seed)) for seed in seeds]
    before = [_left(bench, key, value) for key, value in COUNTED]
    bench.method.handle(asked)
    for one in asked:
        assert len(one.answers) + len(one.failures) == 1
        if one.answers:
            assert one.response.overall_code in (OK, OVER)
        else:
            assert one.failures[0][0] == 3
    if not any(one.answers for one in asked):
        assert [_left(bench, key, value) for key, value in COUNTED] == before


COUNTED = [("k", "v"), ("other", "w")]


def _left(bench: Bench, key: str, value: str) -> int:
    remaining: int = bench.one("d", ({key: value}, 0)).statuses[0].limit_remaining
    return remaining


def test_some_damaged_requests_are_answered_and_some_fail() -> None:
    """The negative control: both branches above are taken."""
    asked = [Asked(damaged(seed)) for seed in range(200)]
    Bench(CONFIG).method.handle(asked)
    assert 10 < sum(bool(one.answers) for one in asked) < 180


@given(st.one_of(st.binary(max_size=300), st.text(max_size=300).map(lambda text: text.encode(errors="replace"))))
def test_any_file_is_a_configuration_or_has_located_faults(content: bytes) -> None:
    faults: tuple[Fault, ...] = ()
    try:
        config = read([File("any.yaml", content)])
    except InvalidRules as error:
        faults = error.faults
    else:
        assert all(config.domains)
    assert all(fault.file == "any.yaml" for fault in faults)


KEYS, VALUES, PATTERNS = ["a", "b"], ["x", "xy", "yx"], ["x*", "*", "y*"]


@st.composite
def levels(draw: st.DrawFn, depth: int = 2) -> list[dict[str, Any]]:
    """Descriptors of a configuration."""
    pairs = draw(
        st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(["", *VALUES, *PATTERNS])), unique=True, max_size=5)
    )
    found = []
    for key, value in pairs:
        one: dict[str, Any] = {"key": key} | ({"value": value} if value else {})
        if draw(st.booleans()):
            one["rate_limit"] = {"unit": "day", "requests_per_unit": draw(st.integers(0, 9))}
        if depth > 1 and draw(st.booleans()):
            one["descriptors"] = [below for below in draw(levels(depth - 1)) if below["key"] != key]
        if "*" in value and draw(st.booleans()):
            one["share_threshold"] = True
        found.append(one)
    return found


DESCRIPTORS = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([*VALUES, "z", "x*"])), min_size=1, max_size=2)


@settings(max_examples=settings().max_examples // 5)  # a set of rules is made for each
@given(levels(), st.lists(DESCRIPTORS.filter(lambda d: len({key for key, _ in d}) == len(d)), min_size=1, max_size=4))
def test_rules_limit_what_the_configuration_limited(written: list[dict[str, Any]], asked: list[list[Entry]]) -> None:
    config = read([File("c.yaml", json.dumps({"domain": "d", "descriptors": written}).encode())])
    rules = RuleSet(parse(convert(config).text))
    for entries in asked:
        found = config.find("d", entries)
        plan = rules.match({**dict(entries), "domain": "d", "entries": ",".join(key for key, _ in entries)}, 0, 1)
        if found is None or (found.limit.quota is None and found.limit.unlimited):
            assert not plan.posed
            assert plan.course.decided_by is None
        elif found.limit.quota is None:
            assert plan.course.decided_by is not None
            assert plan.course.decided_by.rule.action == "deny"
        else:
            assert [ask[1] for ask in plan.posed] == [found.limit.quota]


UINT32 = st.integers(0, 2**32 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@given(st.sampled_from([1, 2]), UINT32, st.integers(0, 7), NAMES, UINT32, st.integers(0, 2**40))
def test_a_status_written_by_hand_is_what_protobuf_writes(
    code: int, requests: int, unit: int, name: str, remaining: int, seconds: int
) -> None:
    response = RateLimitResponse(overall_code=code)
    status = response.statuses.add(code=code, limit_remaining=remaining)
    status.current_limit.SetInParent()
    status.current_limit.requests_per_unit = requests
    status.current_limit.unit = unit
    status.current_limit.name = name
    if seconds:
        status.duration_until_reset.seconds = seconds
    response.response_headers_to_add.add(key="retry-after", value=str(seconds))
    current = answers.current_limit(requests, unit, name)
    written = answers.OVERALL[code] + answers.status(code, current, remaining, seconds)
    written += answers.header(answers.header_name("retry-after"), seconds)
    assert written == response.SerializeToString(deterministic=True)
