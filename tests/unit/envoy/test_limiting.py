"""`ShouldRateLimit`: answers as of envoyproxy/ratelimit for a cost of 1, and what is different on purpose."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from google.protobuf.json_format import MessageToDict

from penstock.engine.protocols import Done
from penstock.errors import StoreError
from penstock.model import Failed, Op, Verdict
from penstock.service.envoy.config_files import Options
from penstock.service.envoy.plans import Conduct
from tests.unit.envoy.support import OK, OVER, Asked, Bench, request

LIMITS = """
domain: edge
descriptors:
  - {key: two, rate_limit: {unit: minute, requests_per_unit: 2, name: pair}}
  - {key: five, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: none, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: big, rate_limit: {unit: second, requests_per_unit: 4294967295}}
"""

QUOTAS = """
domain: edge
descriptors:
  - {key: a, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: b, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: c, rate_limit: {unit: day, requests_per_unit: 2}}
"""


def test_a_window_is_the_unit_of_the_clock() -> None:
    bench = Bench(LIMITS)
    bench.clock.set(1_700_000_040 + 20.5)  # 1_700_000_040 is a whole minute
    first = bench.one("edge", {"two": "x"})
    assert first.overall_code == OK
    (status,) = first.statuses
    assert (status.code, status.limit_remaining, status.duration_until_reset.seconds) == (OK, 1, 40)
    limit = status.current_limit
    assert (limit.requests_per_unit, limit.unit, limit.name) == (2, 2, "pair")
    assert bench.codes(2, "edge", {"two": "x"}) == [OK, OVER]
    assert bench.codes(1, "edge", {"two": "y"}) == [OK]
    bench.clock.advance(39.4)
    assert bench.codes(1, "edge", {"two": "x"}) == [OVER]
    bench.clock.advance(0.1)
    assert bench.codes(1, "edge", {"two": "x"}) == [OK]


def test_refusal_has_the_rest_and_the_time_to_retry_after() -> None:
    bench = Bench(LIMITS)
    bench.codes(2, "edge", {"two": "x"})
    refusal = bench.one("edge", {"two": "x"})
    (status,) = refusal.statuses
    assert (status.code, status.limit_remaining) == (OVER, 0)
    assert status.duration_until_reset.seconds == 60 - 1_700_000_000 % 60
    (header,) = refusal.response_headers_to_add
    assert (header.key, header.value) == ("retry-after", str(60 - 1_700_000_000 % 60))
    assert not Bench(LIMITS, Conduct(retry_after=False)).one("edge", {"none": "x"}).response_headers_to_add


def test_request_without_a_limit_passes() -> None:
    bench = Bench(LIMITS)
    for answer in (bench.one("edge", {"other": "x"}), bench.one("elsewhere", {"two": "x"}, {"five": "x"})):
        assert answer.overall_code == OK
        assert all(status.code == OK and not status.HasField("current_limit") for status in answer.statuses)
        assert all(status.limit_remaining == 0 for status in answer.statuses)


def test_unlimited_passes_and_a_limit_of_zero_refuses() -> None:
    bench = Bench(LIMITS)
    (status,) = bench.one("edge", {"free": "x"}).statuses
    assert (status.code, status.limit_remaining, status.HasField("current_limit")) == (OK, 2**32 - 1, False)
    never = bench.one("edge", {"none": "x"})
    (status,) = never.statuses
    assert (never.overall_code, status.code, status.limit_remaining) == (OVER, OVER, 0)
    assert status.HasField("current_limit")
    assert status.duration_until_reset.seconds == 86_400 - 1_700_000_000 % 86_400


def test_largest_limit_is_shown_exactly() -> None:
    (status,) = Bench(LIMITS).one("edge", {"big": "x"}).statuses
    assert (status.current_limit.requests_per_unit, status.limit_remaining) == (2**32 - 1, 2**32 - 2)


def test_one_descriptor_over_its_limit_refuses_the_request() -> None:
    bench = Bench(LIMITS)
    bench.codes(2, "edge", {"two": "x"})
    answer = bench.one("edge", {"five": "x"}, {"two": "x"}, {"other": "x"})
    assert answer.overall_code == OVER
    assert [status.code for status in answer.statuses] == [OK, OVER, OK]
    assert answer.statuses[0].limit_remaining == 4  # charged all the same, as the original does
    assert bench.one("edge", {"five": "x"}).statuses[0].limit_remaining == 3


def test_all_or_nothing_charges_nothing_when_one_descriptor_is_over() -> None:
    bench = Bench(LIMITS, Conduct(all_or_nothing=True))
    bench.codes(2, "edge", {"two": "x"})
    answer = bench.one("edge", {"five": "x"}, {"two": "x"}, {"none": "x"}, {"other": "x"})
    assert [status.code for status in answer.statuses] == [OK, OVER, OVER, OK]
    assert bench.one("edge", {"five": "x"}).statuses[0].limit_remaining == 4


def test_all_or_nothing_counts_a_descriptor_that_comes_twice_twice() -> None:
    bench = Bench(LIMITS, Conduct(all_or_nothing=True))
    assert [s.limit_remaining for s in bench.one("edge", {"five": "x"}, {"five": "x"}).statuses] == [3, 3]
    assert bench.codes(2, "edge", {"five": "x"}, {"five": "x"}) == [OK, OVER]


def test_all_or_nothing_with_shadows_and_peeks() -> None:
    bench = Bench(LIMITS, Conduct(all_or_nothing=True))
    assert bench.codes(3, "edge", {"shadow": "x"}, {"five": "x"}) == [OK, OK, OK]
    answer = bench.one("edge", ({"five": "x"}, 0), ({"five": "x"}, 9), {"shadow": "x"}, {"big": "x"})
    assert [s.code for s in answer.statuses] == [OK, OVER, OK, OK]
    assert [s.limit_remaining for s in answer.statuses] == [2, 0, 0, 2**32 - 1]
    only = bench.one("edge", ({"five": "x"}, 0))
    assert only.statuses[0].limit_remaining == 2


@pytest.mark.parametrize("hopeless", [{"none": "x"}, ({"two": "x"}, 3)])
def test_all_or_nothing_charges_nothing_beside_what_never_fits(hopeless: object) -> None:
    bench = Bench(LIMITS, Conduct(all_or_nothing=True))
    assert bench.codes(3, "edge", {"five": "x"}, hopeless) == [OVER, OVER, OVER]
    assert bench.one("edge", {"five": "x"}).statuses[0].limit_remaining == 4


def test_all_or_nothing_charges_what_passes_in_quota_mode() -> None:
    bench = Bench(QUOTAS, Conduct(all_or_nothing=True))
    assert bench.codes(4, "edge", {"a": "x"}, {"b": "x"}) == [OK, OK, OK, OVER]


@pytest.mark.parametrize(("hits", "left"), [(0, 4), (1, 4), (3, 2), (5, 0)])
def test_hits_are_what_a_request_costs_and_0_means_1(hits: int, left: int) -> None:
    assert Bench(LIMITS).one("edge", {"five": "x"}, hits=hits).statuses[0].limit_remaining == left


def test_a_descriptor_may_have_hits_of_its_own_and_0_means_0() -> None:
    bench = Bench(LIMITS)
    answer = bench.one("edge", ({"five": "x"}, 2), ({"two": "x"}, 0), hits=3)
    assert [status.limit_remaining for status in answer.statuses] == [3, 2]
    assert bench.one("edge", ({"five": "x"}, 0)).statuses[0].limit_remaining == 3
    bench.codes(2, "edge", {"two": "x"})
    assert bench.codes(2, "edge", ({"two": "x"}, 0)) == [OVER, OVER]  # nothing is left


def test_refused_hits_are_not_charged() -> None:
    bench = Bench(LIMITS)
    assert bench.one("edge", {"five": "x"}, hits=3).overall_code == OK
    assert bench.one("edge", {"five": "x"}, hits=3).overall_code == OVER
    assert bench.one("edge", {"five": "x"}, hits=2).overall_code == OK


def test_refused_hits_are_charged_if_that_is_wanted() -> None:
    bench = Bench(LIMITS, options=Options(count_denied=True))
    assert bench.one("edge", {"five": "x"}, hits=3).overall_code == OK
    assert bench.one("edge", {"five": "x"}, hits=3).overall_code == OVER
    assert bench.one("edge", {"five": "x"}, hits=2).overall_code == OVER
    assert bench.one("edge", ({"five": "x"}, 0)).overall_code == OVER  # as cost that is known afterwards needs it


@pytest.mark.parametrize("all_or_nothing", [False, True])
@pytest.mark.parametrize("hits", [6, 2**64 - 1])
def test_more_refused_hits_than_a_limit_has_use_it_up_if_they_are_charged(hits: int, all_or_nothing: bool) -> None:
    bench = Bench(LIMITS, Conduct(all_or_nothing=all_or_nothing), Options(count_denied=True))
    assert bench.one("edge", ({"five": "x"}, hits)).overall_code == OVER
    assert bench.codes(2, "edge", {"five": "x"}) == [OVER, OVER]
    bench.clock.advance(3_600)
    assert bench.one("edge", {"five": "x"}).overall_code == OK


@pytest.mark.parametrize("hits", [6, 2**32, 2**64 - 1])
def test_more_hits_than_a_limit_has_are_refused_and_change_nothing(hits: int) -> None:
    bench = Bench(LIMITS)
    answer = bench.one("edge", ({"five": "x"}, hits))
    assert (answer.overall_code, answer.statuses[0].limit_remaining) == (OVER, 0)
    assert answer.statuses[0].duration_until_reset.seconds > 0
    assert bench.one("edge", {"five": "x"}).statuses[0].limit_remaining == 4


def test_a_shadow_is_counted_and_never_refuses() -> None:
    bench = Bench(LIMITS)
    assert bench.codes(3, "edge", {"shadow": "x"}) == [OK, OK, OK]
    (status,) = bench.one("edge", {"shadow": "x"}).statuses
    assert (status.code, status.limit_remaining) == (OK, 0)
    assert {c.name: c.hits for c in bench.method.counts.read() if c.title == "edge.shadow"} == {
        "total_hits": 4,
        "over_limit": 3,
        "near_limit": 1,
        "within_limit": 1,
        "shadow_mode": 3,
    }


def test_the_whole_service_may_be_in_shadow_mode() -> None:
    bench = Bench(LIMITS, Conduct(shadow_mode=True))
    answer = [bench.one("edge", {"two": "x"}) for _ in range(3)][-1]
    assert (answer.overall_code, answer.statuses[0].code) == (OK, OVER)


REPLACING = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1, name: base}}
  - {key: plan, value: gold, rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: base}]}}
  - {key: plan, value: free, rate_limit: {unlimited: true, replaces: [{name: base}]}}
"""


@pytest.mark.parametrize("plan", ["gold", "free"])
def test_a_limit_may_replace_another_for_a_request(plan: str) -> None:
    bench = Bench(REPLACING)
    assert bench.codes(3, "edge", {"user": "x"}, {"plan": plan}) == [OK, OK, OK]
    answer = bench.one("edge", {"user": "x"}, {"plan": plan})
    assert not answer.statuses[0].HasField("current_limit")
    assert bench.codes(2, "edge", {"user": "x"}, {"plan": "other"}) == [OK, OVER]


def test_in_quota_mode_one_quota_that_is_left_suffices() -> None:
    bench = Bench(QUOTAS)
    assert bench.codes(4, "edge", {"a": "x"}, {"b": "x"}) == [OK, OK, OK, OVER]
    assert bench.codes(3, "edge", {"b": "y"}, {"c": "y"}) == [OK, OK, OVER]  # c is no quota: over is over
    assert Bench(LIMITS, Conduct(quota_mode=True)).codes(3, "edge", {"two": "x"}, {"five": "x"}) == [OK, OK, OK]


def test_headers_show_the_descriptor_that_is_nearest_its_limit() -> None:
    bench = Bench(LIMITS, Conduct(headers=("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset")))

    def headers() -> dict[str, str]:
        answer = bench.one("edge", {"five": "x"}, {"two": "x"}, {"free": "x"})
        return {header.key: header.value for header in answer.response_headers_to_add}

    until = str(60 - 1_700_000_000 % 60)
    assert headers() == {"ratelimit-limit": "2", "ratelimit-remaining": "1", "ratelimit-reset": until}
    headers()
    assert headers() == {
        "ratelimit-limit": "2",
        "ratelimit-remaining": "0",
        "ratelimit-reset": until,
        "retry-after": until,
    }
    assert not bench.one("edge", {"other": "x"}).response_headers_to_add


def test_requests_may_bring_a_limit_along() -> None:
    bench = Bench(LIMITS)
    brought = ({"any": "x"}, (1, 3))
    answer = bench.one("edge", brought)
    assert answer.statuses[0].current_limit.requests_per_unit == 1
    assert answer.statuses[0].current_limit.unit == 3
    assert bench.codes(1, "edge", brought) == [OVER]
    assert bench.codes(2, "edge", ({"shadow": "x"}, (1, 2))) == [OK, OVER]  # what is brought is no shadow
    assert bench.codes(2, "elsewhere", brought) == [OK, OK]  # a domain that nobody configured
    assert bench.codes(1, "edge", ({"any": "x"}, (0, 3))) == [OVER]


def test_metadata_of_limits_that_were_kept_is_sent_on_demand() -> None:
    text = """
    domain: edge
    descriptors:
      - {key: a, metadata: {team: red, to: {x: 1}, tags: [x, true]}, rate_limit: {unit: day, requests_per_unit: 1}}
      - {key: b, metadata: {team: blue, to: {x: 2, y: 3}}, rate_limit: {unit: day, requests_per_unit: 5}}
    """
    bench = Bench(text, Conduct(dynamic_metadata=True))
    asked = {"domain": "edge", "descriptors": [{"entries": ["a=x"]}, {"entries": ["b=x"], "hitsAddend": 1}]}
    said = [MessageToDict(bench.one("edge", {"a": "x"}, ({"b": "x"}, 1)).dynamic_metadata) for _ in range(2)]
    assert said[0] == {**asked, "metadata": {"team": "red", "to": {"x": 1, "y": 3}, "tags": ["x", True]}}
    assert said[1] == {**asked, "metadata": {"team": "blue", "to": {"x": 2, "y": 3}}}
    other = MessageToDict(bench.one("edge", {"other": "x"}, hits=2).dynamic_metadata)
    assert other == {"domain": "edge", "descriptors": [{"entries": ["other=x"]}], "hitsAddend": 2}
    assert not Bench(text).one("edge", {"b": "x"}).HasField("dynamic_metadata")


def test_an_interval_and_a_burst_are_kept_too() -> None:
    text = """
    domain: edge
    descriptors:
      - {key: a, rate_limit: {unit: hour, requests_per_unit: 100, min_interval: 2s}}
      - {key: b, rate_limit: {unit: second, requests_per_unit: 1, burst: 3}}
    """
    bench = Bench(text)
    assert bench.codes(2, "edge", {"a": "x"}) == [OK, OVER]
    (status,) = bench.one("edge", {"a": "x"}).statuses
    assert (status.code, status.duration_until_reset.seconds) == (OVER, 2)
    bench.clock.advance(2)
    (status,) = bench.one("edge", {"a": "x"}).statuses
    assert (status.code, status.limit_remaining) == (OK, 98)
    assert bench.codes(4, "edge", {"b": "x"}) == [OK, OK, OK, OVER]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (request("", {"two": "x"}), "domain: empty"),
        (request("edge"), "0 descriptors: expected 1 to 256"),
        (request("edge", *[{"two": "x"}] * 257), "257 descriptors"),
        (request("edge", ({"two": "x"}, (1, 0))), "limit.unit 0"),
        (request("edge", ({"two": "x"}, (1, 99))), "limit.unit 99"),
        (b"\x0a\x02\xff\xfe", "expected a RateLimitRequest"),
        (b"\xff", "expected a RateLimitRequest"),
        (b"", "domain: empty"),
        (request("edge", {"two": "x"})[:-1], "expected a RateLimitRequest"),
        (b"\x0a\x04edge\x12\x02\x20\x01", "is_negative_hits"),
    ],
)
def test_invalid_request_fails_alone(data: bytes, text: str) -> None:
    bench = Bench(LIMITS)
    before, bad, after = bench.ask(request("edge", {"two": "x"}), data, request("edge", {"two": "x"}))
    assert [one.response.overall_code for one in (before, after)] == [OK, OK]
    assert not bad.answers
    ((status, said),) = bad.failures
    assert status == 3
    assert text in said


def test_a_descriptor_without_entries_has_no_limit() -> None:
    assert Bench(LIMITS).one("edge", {}).overall_code == OK


def test_a_new_configuration_counts_at_once_and_keeps_what_was_counted() -> None:
    bench = Bench(LIMITS)
    assert bench.codes(3, "edge", {"two": "x"}) == [OK, OK, OVER]
    bench.source.current = bench.config(LIMITS.replace("requests_per_unit: 2,", "requests_per_unit: 3,"))
    assert bench.codes(2, "edge", {"two": "x"}) == [OK, OVER]


def test_plans_of_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.service.envoy.by_config.MAX_PLANS", 10)
    bench = Bench(LIMITS)
    for number in range(50):
        bench.one("edge", {"two": f"{number}"})
    bench.one("edge", {"two": "x" * 1_000})
    assert 0 < len(bench.method._plans) <= 10
    assert max(map(len, bench.method._plans)) <= 512


def test_deadline_of_the_store_is_shorter_for_callers_with_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.batch.monotonic", lambda: 100.0)
    bench = Bench(LIMITS)
    asked: list[tuple[int, int | None]] = []

    class Watched:
        def submit(self, ops: object, deadline: int | None, done: object) -> None:
            asked.append((len(ops), deadline))  # type: ignore[arg-type]

    bench.method._engine, bench.method._bind = Watched(), None  # type: ignore[assignment]
    data = request("edge", {"two": "x"})
    expiries = [None, 100.020, 100.004, 100.0035, 100.0031, 100.0001, None]
    bench.method.handle([Asked(data, expires) for expires in expiries])
    assert sorted(asked) == [(1, 1_000), (2, 2_000), (4, 3_000)]


class Failing:
    """A store that cannot answer the operations at some positions."""

    def __init__(self, bench: Bench, failing: set[int]) -> None:
        self._run, self._failing = bench.limiter.engine.run, failing

    def submit(self, ops: Sequence[Op], deadline: int | None, done: Done) -> None:
        outcomes = self._run(ops, deadline)
        failed = Failed(StoreError("gone", transient=True), "unknown")
        done([failed if at in self._failing else outcome for at, outcome in enumerate(outcomes)])


def test_request_fails_alone_if_neither_store_nor_fallback_decides() -> None:
    bench = Bench(LIMITS)
    bench.method._engine, bench.method._bind = Failing(bench, {1, 2}), None  # type: ignore[assignment]
    one, two, three = bench.ask(*[request("edge", {"two": "x"})] * 2, request("edge", {"two": "y"}, {"five": "y"}))
    assert one.response.overall_code == OK
    assert two.failures == three.failures == [(14, "the store could not answer")]


def test_error_while_answering_one_call_leaves_the_others_alone() -> None:
    class Broken(Asked):
        def answer(self, data: bytes) -> None:
            raise RuntimeError

    bench = Bench(LIMITS)
    bench.method._bind = None
    data = request("edge", {"two": "x"})
    broken, other = Broken(data), Asked(data)
    bench.method.handle([broken, other])
    assert broken.failures == [(13, "a fault of this server")]
    assert other.response.overall_code == OK


@pytest.mark.parametrize("bound", [True, False])
def test_observer_hears_of_every_batch(bound: bool) -> None:
    told: list[tuple[object, ...]] = []

    class Observer:
        def decided(self, verdicts: Sequence[Verdict], took: int) -> None:
            told.append(("decided", [verdict.allowed for verdict in verdicts]))

        def answered(self, route: str, statuses: Sequence[int], took: int) -> None:
            told.append((route, list(statuses)))

    bench = Bench(LIMITS)
    bench.method._observer = Observer()
    if not bound:
        bench.method._bind = None
    bench.ask(*[request("edge", {"two": "x"})] * 3)
    assert told == [("decided", [True, True, False]), ("ShouldRateLimit", [0, 0, 0])]
    told.clear()
    bench.ask(request("edge", {"other": "x"}), b"")
    assert told == [("ShouldRateLimit", [0, 3])]
