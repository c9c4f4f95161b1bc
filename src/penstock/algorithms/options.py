"""The options `count denied` and `penalty`, for any algorithm: refusals that change the state."""

from __future__ import annotations

from penstock.algorithms.base import Bound, State, Step
from penstock.clock import Micros
from penstock.model import NOT_CHARGED, Answer


def counting_denied(inner: Bound) -> Bound:
    """Charge refused requests as well, so that a client that keeps retrying stays refused."""

    def decide(state: State, cost: int, now: Micros) -> Step:
        step = inner.decide(state, cost, now)
        allowed = step[0][0]
        if allowed or not cost:
            return step
        charged = inner.force(state, cost, now)
        return inner.peek(charged, cost, now)

    return inner._replace(decide=decide)


def penalised(inner: Bound, plain: Bound, penalty: Micros) -> Bound:
    """Shut a key out for `penalty` after a refusal. State: (shut out until, the algorithm's own state).

    Requests while it is shut out do not prolong the penalty, or a client that retries faster would be shut out for
    ever. They are not charged either: there the `plain` algorithm decides, and not `inner`, which may count denied.
    """

    def decide(state: State, cost: int, now: Micros) -> Step:
        until, below = (0, None) if state is None else state
        if until > now:
            return shut_out(state, cost, now)
        answer, after = inner.decide(below, cost, now)
        if answer[0]:
            return answer, (0, after)
        return refused(answer, penalty), (now + penalty, after)

    def peek(state: State, cost: int, now: Micros) -> Step:
        until, below = (0, None) if state is None else state
        answer, _ = shut_out(state, cost, now) if until > now else inner.peek(below, cost, now)
        return answer, state

    def shut_out(state: State, cost: int, now: Micros) -> Step:
        until, below = state
        answer, after = plain.decide(below, cost, now)
        if answer[0] or not cost:
            answer, after = plain.peek(below, cost, now)
        if until - now > penalty:  # the clock was stepped back, or the penalty was shortened
            until = now + penalty
        same = until == state[0] and after is below
        return refused(answer, until - now), state if same else (until, after)

    def refused(answer: Answer, left: Micros) -> Answer:
        _, _, retry_after, reset_after, more_after, _, _ = answer
        return False, 0, max(retry_after, left), max(reset_after, left), max(more_after, left), 0, NOT_CHARGED

    def force(state: State, cost: int, now: Micros) -> State:
        until, below = (0, None) if state is None else state
        return until, inner.force(below, cost, now)

    def refund(state: State, units: int, mark: int, now: Micros) -> tuple[int, State]:
        until, below = state
        back, below = (0, None) if below is None else inner.refund(below, units, mark, now)
        return back, (until, below)

    def report(state: State, units: int, at: Micros, now: Micros) -> tuple[int, State]:
        until, below = (0, None) if state is None else state
        charged, after = inner.report(below, units, at, now)
        return charged, (until, after) if charged else state

    def expiry(state: State) -> Micros:
        until: Micros
        until, below = state
        return until if below is None else max(until, inner.expiry(below))

    def renew(state: State, mark: int, now: Micros) -> State:
        until, below = state
        renewed = inner.renew(below, mark, now) if inner.renew and below is not None else None
        return None if renewed is None else (until, renewed)

    return Bound(decide, peek, force, refund, report, expiry, renew if inner.renew else None)
