"""A client of a service returns what a limiter returns, field for field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import Limiter, ManualClock, Verdict
from penstock.client.address import Address
from penstock.client.store import ServiceCalls, ServiceStore
from tests.rig.processes import DEADLINE
from tests.service.client_support import served

QUOTAS = (
    "3/minute",
    "5/10 seconds fixed_window count denied",
    "4/minute rolling_window penalty 5s",
    "10/second burst 20",
    "6/minute gcra min_interval 2s",
    "2/second queue 3",
    "2 concurrent ttl 30s",
    "7/day Europe/Berlin",
    "5/minute; 2 concurrent ttl 10s",
)
COSTS = (1, 1, 1, 2, 3)
VERBS = (
    *("acquire", "acquire", "acquire", "acquire_all", "peek"),
    *("refund", "renew", "release", "settle", "reset", "pass"),
)

steps = st.lists(
    st.tuples(
        st.sampled_from(VERBS),
        st.sampled_from(QUOTAS),
        st.sampled_from(("alice", ("alice", "search"))),
        st.sampled_from(COSTS),
        st.sampled_from((None, None, "one", "two")),
        st.floats(0, 40).map(lambda seconds: round(seconds, 3)),
    ),
    min_size=1,
    max_size=12,
)


@pytest.fixture(scope="module")
def asked() -> Iterator[tuple[Limiter, ManualClock]]:
    """A limiter on a service, without the deny cache, which repeats refusals of other calls."""
    clock = ManualClock()
    with served(clock=clock) as (running, _):
        store = ServiceStore(ServiceCalls(Address(running.url), DEADLINE), clock)
        yield Limiter(store, clock=clock, layers=()), clock
        store.close()


def _shown(verdict: Verdict) -> object:
    """Return all fields but marks, which belong to the store."""
    return [(*one.answer[:6], one.at_us, one.key, one.quota, one.cost) for one in (verdict, *verdict.decisions)]


def _did(asked: Limiter, charged: dict[Any, Verdict], step: tuple[Any, ...], name: str) -> object:
    verb, quota, key, cost, request_id, _ = step
    key = (name, *key) if isinstance(key, tuple) else (name, key)
    last = charged.get((quota, key))
    try:
        if verb == "acquire":
            verdict = asked.acquire(key, quota, cost, request_id)
            if verdict:
                charged[quota, key] = verdict
            return _shown(verdict)
        if verb == "acquire_all":
            other = (name, "other"), "5/minute fixed_window name other", 1
            verdict = asked.acquire_all([(key, quota, cost), other], id=request_id)
            if verdict:
                charged[quota, key] = verdict
            return _shown(verdict)
        if verb == "peek":
            return _shown(asked.peek(key, quota, cost))
        if verb == "reset":
            asked.reset(key, quota)
            return None
        if last is None or verb == "pass":
            return None
        if verb == "settle":
            return asked.settle(last, cost)
        if verb == "renew":
            return asked.renew(last)
        return asked.refund(last) if verb == "refund" else asked.release(last)
    except ValueError as error:
        return type(error)


_numbers = iter(range(10**9))


@settings(max_examples=max(settings().max_examples // 8, 1))
@given(history=steps)
@example(history=[("acquire", QUOTAS[0], "alice", cost, "one", 0.0) for cost in (1, 2)])  # an id remembers its cost
def test_service_decides_as_a_limiter_does(asked: tuple[Limiter, ManualClock], history: list[tuple[Any, ...]]) -> None:
    through, clock = asked
    name = str(next(_numbers))
    limiter = Limiter(clock=clock)
    here: dict[Any, Verdict] = {}
    there: dict[Any, Verdict] = {}
    for step in history:
        if step[0] == "pass":
            clock.advance(step[5])
        assert _did(through, there, step, name) == _did(limiter, here, step, name), step
