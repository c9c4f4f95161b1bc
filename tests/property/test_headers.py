"""Laws of what clients are told, on generated quotas and histories. Structured fields are read by a strict parser."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ManualClock, Quota, Verdict
from penstock.headers import HeaderWriter
from penstock.model import Acquire, Ask, Decision
from penstock.quota import RATES
from penstock.stores import MemoryStore

START = 1_700_000_000.123_456
TRIPLES = {"draft6": "RateLimit", "x-seconds": "X-RateLimit", "x-epoch": "X-RateLimit"}

# ---------------------------------------------------------------- structured fields, RFC 8941

STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
PARAMETER = re.compile(r"; *([a-z*][a-z0-9_.*-]*)=(-?[0-9]{1,15})(?![0-9.])")
COMMA = re.compile(r"[ \t]*,[ \t]*")


class Item(NamedTuple):
    """A string with parameters that are integers; all that our fields may hold."""

    name: str
    parameters: dict[str, int]


def read_list(field: str) -> list[Item]:
    """The items of a structured list; fails on anything that RFC 8941 would not let pass, or that we never send."""
    assert field.isascii()
    items = []
    at = 0
    while True:
        name = STRING.match(field, at)
        assert name, f"no string at {at} of {field!r}"
        at = name.end()
        parameters: dict[str, int] = {}
        while parameter := PARAMETER.match(field, at):
            assert parameter[1] not in parameters, f"{parameter[1]} twice in {field!r}"
            parameters[parameter[1]] = int(parameter[2])
            at = parameter.end()
        items.append(Item(name[1], parameters))
        if at == len(field):
            return items
        comma = COMMA.match(field, at)
        assert comma, f"no comma at {at} of {field!r}"
        at = comma.end()


@pytest.mark.parametrize(
    "field",
    ["", "a", '"a', '"a",', '"a" "b"', '"a";', '"a";Q=1', '"a";q=1.5', '"a";q=', '"a";q=1;q=2', '"é"', '"a\\b"'],
)
def test_the_parser_of_these_tests_is_strict(field: str) -> None:
    with pytest.raises(AssertionError):
        read_list(field)


# ---------------------------------------------------------------- histories


class Request(NamedTuple):
    """What one client asks again and again, with the pause in microseconds before each time."""

    asks: tuple[Ask, ...]
    pauses: list[int]


PERIODS = st.sampled_from([7, 100_000, 750_001, 1_000_000, 1_500_000, 60_000_000, 61_500_000, 86_400_000_000])
OPTIONS = ["", "min_interval 20ms", "min_interval 1500ms", "penalty 90s", "penalty 1ms min_interval 1s", "count denied"]
NAMES = ["", "", "name api", "name api-2", "name api-min-interval"]
PAUSES = st.sampled_from([0, 0, 1, 999_999, 1_000_000, 7_654_321]) | st.integers(0, 10**8)


@st.composite
def quotas(draw: st.DrawFn) -> Quota:
    algorithm = draw(st.sampled_from(RATES))
    burst = draw(st.integers(0, 100)) if algorithm in ("token_bucket", "gcra") else 0
    return Quota.parse(
        f"{draw(st.integers(1, 50))}/{draw(PERIODS)} microseconds {algorithm} {f'burst {burst}' if burst else ''} "
        f"{draw(st.sampled_from(OPTIONS))} {draw(st.sampled_from(NAMES))}"
    )


@st.composite
def requests(draw: st.DrawFn) -> Request:
    asks = {}
    for number, quota in enumerate(draw(st.lists(quotas(), min_size=1, max_size=3))):
        key = draw(st.sampled_from(["secret-alice", f"secret-{number}"]))
        cost, advisory = draw(st.integers(1, quota.capacity)), draw(st.sampled_from([False, False, True]))
        for part in quota.parts:
            asks[key, part.identity] = Ask(key, part, 1 if part.flat else cost, advisory)
    return Request(tuple(asks.values()), draw(st.lists(PAUSES, min_size=1, max_size=6)))


class Told(NamedTuple):
    """A verdict, and the store and clock with which to look into its future."""

    verdict: Verdict
    request: Request
    store: MemoryStore
    clock: ManualClock

    def passes_after(self, micros: int) -> bool:
        """Whether the same request would pass then, without other requests."""
        now = self.clock.micros
        self.clock.micros = now + micros
        (later,) = self.store.run([Acquire(self.request.asks, dry=True)])
        self.clock.micros = now
        assert isinstance(later, Verdict)
        return bool(later)


def history(request: Request) -> Iterator[Told]:
    """Each answer in turn, before the next question is asked."""
    clock = ManualClock(START)
    store = MemoryStore(clock=clock)
    for pause in request.pauses:
        clock.micros += pause
        (verdict,) = store.run([Acquire(request.asks)])
        assert isinstance(verdict, Verdict)
        yield Told(verdict, request, store, clock)


def listed(verdict: Verdict) -> list[Decision]:
    """The decisions that structured fields tell, in their order."""
    return [d for d in verdict.decisions if not d.advisory and not (d.quota.flat and d.quota.period < 1)]


# ---------------------------------------------------------------- laws


@given(requests())
def test_every_refusal_has_its_wait_in_whole_seconds_and_no_admission_has_one(request: Request) -> None:
    for told in history(request):
        headers = dict(HeaderWriter("none").headers(told.verdict))
        assert headers.keys() == (set() if told.verdict else {"Retry-After", "Cache-Control"})
        if not told.verdict:
            assert re.fullmatch(r"[1-9][0-9]*", headers["Retry-After"])
            assert told.passes_after(int(headers["Retry-After"]) * 1_000_000)


@given(requests())
def test_policies_have_unique_names_and_never_promise_more_than_their_quotas(request: Request) -> None:
    verdict = next(history(request)).verdict
    headers = dict(HeaderWriter("ietf").headers(verdict))
    policies = read_list(headers["RateLimit-Policy"]) if listed(verdict) else []
    assert len({policy.name for policy in policies}) == len(policies)
    for decision, policy in zip(listed(verdict), policies, strict=True):
        assert policy.parameters.keys() == {"q", "w"}
        (q, w), quota = policy.parameters.values(), decision.quota
        assert w >= 1
        assert q * quota.period_us <= quota.limit * w * 1_000_000 < (q + 1) * quota.period_us


@given(requests())
def test_remaining_units_agree_with_the_policy_and_with_retry_after(request: Request) -> None:
    writer = HeaderWriter("ietf")
    for told in history(request):
        headers = dict(writer.headers(told.verdict))
        assert ("RateLimit" in headers) == ("RateLimit-Policy" in headers) == bool(listed(told.verdict))
        if not listed(told.verdict):
            continue
        policies, limits = read_list(headers["RateLimit-Policy"]), read_list(headers["RateLimit"])
        for decision, policy, limit in zip(listed(told.verdict), policies, limits, strict=True):
            assert limit.name == policy.name
            assert limit.parameters.keys() == {"r", "t"}
            (q, w), (r, t) = policy.parameters.values(), limit.parameters.values()
            assert 0 <= r <= q
            assert t >= decision.more_after
            assert not decision or r * w <= t * q, "spreading r over t would exceed the policy"
            if not decision and decision.retry_after_us == told.verdict.retry_after_us:
                assert t <= int(headers["Retry-After"])


@given(requests(), st.sampled_from(sorted(TRIPLES)))
def test_a_triple_is_three_whole_numbers_and_a_refused_client_may_trust_its_reset(request: Request, name: str) -> None:
    writer = HeaderWriter(name)
    for told in history(request):
        headers = dict(writer.headers(told.verdict))
        if not listed(told.verdict):
            continue
        numbers = [headers[f"{TRIPLES[name]}-{field}"] for field in ("Limit", "Remaining", "Reset")]
        assert all(re.fullmatch(r"0|[1-9][0-9]*", number) for number in numbers)
        limit, remaining, reset = map(int, numbers)
        assert remaining <= limit
        if not told.verdict:
            assert told.passes_after(reset * 1_000_000 - (told.verdict.at_us if name == "x-epoch" else 0))


@given(requests())
def test_no_client_ever_reads_a_key_and_memory_changes_nothing(request: Request) -> None:
    dialects = ["ietf", "draft6", "x-epoch"]
    writer = HeaderWriter(dialects)
    for told in history(request):
        headers = writer.headers(told.verdict)
        assert headers == HeaderWriter(dialects).headers(told.verdict)
        assert "secret" not in str(headers)
        assert told.verdict or b"secret" not in writer.body(told.verdict)
