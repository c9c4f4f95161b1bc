"""Several keys in one decision: whatever is asked, the answer is the oracle's, and all is charged or nothing."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock import AsyncLimiter, Limiter, ManualClock, Verdict
from penstock.model import Ask, Key
from penstock.quota import Quota
from penstock.testing.agreement import compare_verdict
from penstock.testing.oracle import Oracle
from tests.unit.support import finish

QUOTAS = (
    "3/second",
    "4/minute fixed_window",
    "5/10 seconds rolling_window",
    "3/second burst 6",
    "2/second gcra min_interval 300ms",
    "3/second leaky_bucket queue 2",
    "2 concurrent ttl 3s",
    "3/minute penalty 5s name penalised",
    "2/second count denied name counted",
    "50/day calendar",
)
KEYS: tuple[Key, ...] = ("a", "b", "c", ("rule", "a"), ("rule", "a", "b"), "rule a=1")
COUNTERS = [(key, quota) for key in KEYS for quota in QUOTAS]


def _asks(requests: list[tuple[Key, str, int]]) -> tuple[Ask, ...]:
    parsed = [(key, part, cost) for key, text, cost in requests for part in Quota.parse(text).parts]
    return tuple(Ask(key, part, 1 if part.flat else cost) for key, part, cost in parsed)


@given(seed=st.integers(0, 2**64 - 1), awaited=st.booleans())
def test_all_requests_are_decided_as_the_oracle_decides_them(seed: int, awaited: bool) -> None:
    random = Random(seed)
    clock = ManualClock()
    limiter, waiting, oracle = Limiter(clock=clock), AsyncLimiter(clock=clock), Oracle()
    counters = random.sample(COUNTERS, k=6)
    requests: list[tuple[Key, str, int]] = []
    for _ in range(12):
        if not requests or random.random() < 0.7:
            requests = [
                (key, quota, random.randint(1, 2)) for key, quota in random.sample(counters, k=random.randint(1, 5))
            ]
        id = random.choice((None, str(hash(tuple(requests)))))  # a repeated request has the costs that it had
        verdict: Verdict = (
            finish(waiting.acquire_all(requests, id=id)) if awaited else limiter.acquire_all(requests, id=id)
        )
        asks = _asks(requests)
        expected = oracle.acquire(asks, clock.micros, id=None if id is None else id.encode())
        compare_verdict(verdict, asks, expected.expected, expected.at)
        if verdict and random.random() < 0.3:
            back = finish(waiting.refund(verdict)) if awaited else limiter.refund(verdict)
            assert back.each == oracle.refund(expected.charged, None, clock.micros)
        clock.advance(random.choice((0, 0, 0.1, 0.5, 2)))
