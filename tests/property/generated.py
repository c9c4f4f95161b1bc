"""What the properties are stated over: any quota, and what may happen to one counter."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from penstock import Quota
from penstock.algorithms import Bound
from penstock.algorithms.base import State
from penstock.clock import SECOND, Micros
from penstock.model import Answer
from penstock.quota import BUCKETS, MAX_LIMIT, MAX_LOG, MAX_PERIOD, RATES

START: Micros = 1_700_000_000 * SECOND

durations = st.one_of(st.sampled_from([1, 2, 7, 10, 1_000, SECOND, 1_500_001, 60 * SECOND]), st.integers(1, MAX_PERIOD))
names = st.from_regex(r"[A-Za-z][A-Za-z0-9_.:-]{0,63}", fullmatch=True)


@st.composite
def quotas(draw: st.DrawFn, algorithms: tuple[str, ...] = RATES, *, bare: bool = False) -> Quota:
    """Any quota of one counter; `bare` without anything that a refusal leaves behind."""
    algorithm = draw(st.sampled_from(algorithms))
    most = MAX_LOG if algorithm == "rolling_window" else MAX_LIMIT
    limit, period = draw(st.one_of(st.integers(1, 10), st.integers(1, most))), draw(durations)
    burst = None
    if algorithm in BUCKETS and draw(st.booleans()):
        burst = draw(st.integers(1, min(MAX_LIMIT, MAX_PERIOD * limit // period)))
    penalty = None if bare else draw(st.one_of(st.none(), durations))
    return Quota(
        limit,
        period / SECOND,
        algorithm,
        burst=burst,
        penalty=None if penalty is None else penalty / SECOND,
        count_denied=not bare and draw(st.booleans()),
    )


class Move(NamedTuple):
    """An ask: after how long (in sixteenths of a period, and microseconds), and how dear (in eighths of what fits)."""

    sixteenths: int
    micros: int
    eighths: int

    def wait(self, quota: Quota) -> Micros:
        return quota.period_us * self.sixteenths // 16 + self.micros

    def cost(self, quota: Quota) -> int:
        return max(1, quota.capacity * self.eighths // 8)


moves = st.builds(Move, st.sampled_from([0, 0, 0, 1, 3, 8, 15, 16, 17, 32]), st.integers(0, 2), st.integers(0, 8))
histories = st.lists(moves, max_size=12)


class Past(NamedTuple):
    """A counter's state after a history, the instant it has come to, and what was answered on the way."""

    state: State
    now: Micros
    answers: tuple[Answer, ...] = ()


def live(bound: Bound, quota: Quota, history: list[Move]) -> Past:
    """What a store would have after asking for all of `history`."""
    past = Past(None, START)
    for move in history:
        now = past.now + move.wait(quota)
        answer, state = bound.decide(past.state, move.cost(quota), now)
        past = Past(state, now, (*past.answers, answer))
    return past
