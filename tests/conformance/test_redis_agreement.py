"""Plan and script keep every law, and agree with the Python algorithms on every history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clock import SECOND, ManualClock, Micros
from penstock.model import Acquire, Ask
from penstock.quota import ALGORITHMS, CALENDAR, CONCURRENCY, MIN_INTERVAL, Quota
from tests.conformance.redis_server import PlannedStore, running_server
from tests.conformance.side_by_side import LIMITS, PERIODS, Move, SideBySide, UnforgettingStore, moves

# A round trip to a server costs many times what the memory store does.
FEWER = max(10, settings().max_examples // 10)

_namespaces = count()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running_server() as port:
        yield port


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, CALENDAR, CONCURRENCY, MIN_INTERVAL])
@settings(max_examples=2 * FEWER)
@given(limit=st.sampled_from(LIMITS), period=st.sampled_from(PERIODS), history=st.lists(moves, max_size=25))
def test_script_and_python_agree_on_every_history(
    port: int, algorithm: str, limit: int, period: Micros, history: list[Move]
) -> None:
    clock = ManualClock()
    with closing(PlannedStore(port, clock, str(next(_namespaces)))) as store:
        both = SideBySide(algorithm, limit, period, clock, UnforgettingStore(clock), store)
        for move in history:
            both.make(move)


@pytest.fixture
def both(port: int) -> Iterator[SideBySide]:
    clock = ManualClock()
    with closing(PlannedStore(port, clock, str(next(_namespaces)))) as store:
        yield SideBySide("rolling_window", 10, 10 * SECOND, clock, UnforgettingStore(clock), store)


def test_a_part_of_an_entry_in_the_midst_of_a_log_is_given_back(both: SideBySide) -> None:
    for _ in range(3):
        both.run(Acquire((Ask("a", both.quotas[0], 3),)))
        both.clock.advance(1)
    for units in (1, 1, 1):
        both.amend("refund", 1, units)
        both.run(*(Acquire((Ask("a", both.quotas[0], cost),), dry=True) for cost in range(11)))
    both.run(Acquire((Ask("a", both.quotas[0], 4),)), Acquire((Ask("a", both.quotas[0], 8),)))


def test_a_log_is_searched_by_rank_for_the_instant_at_which_enough_is_free(both: SideBySide) -> None:
    quota = Quota.parse("200/minute rolling_window")
    for number in range(60):
        both.clock.micros += 1_000 * (number % 3)
        both.run(Acquire((Ask("a", quota, 1 + number % 5),)))
    both.run(*(Acquire((Ask("a", quota, cost),), dry=True) for cost in range(201)))


def test_a_hold_that_is_renewed_keeps_its_record(both: SideBySide) -> None:
    places = Acquire((Ask("a", Quota.parse("2 concurrent ttl 50s")),), id=b"id")
    both.run(places)
    for _ in range(4):
        both.clock.advance(40)
        both.amend("renew", 0, None)
        both.run(places)
    both.clock.advance(60)
    both.run(places)


def test_what_is_flat_is_given_back_with_the_last_part(both: SideBySide) -> None:
    asks = tuple(Ask("a", part, 1 if part.flat else 4) for part in Quota.parse("9/minute min_interval 9s").parts)
    both.run(Acquire(asks, id=b"id"))
    for units in (1, 2, 0, 1, 1):
        both.amend("refund", 0, units)
        both.run(Acquire(asks, dry=True))
