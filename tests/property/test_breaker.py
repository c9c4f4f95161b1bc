"""Laws of the breaker, on generated histories: it is never stuck, never lets a crowd through, and comes back."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.breaker import CLOSED, HALF_OPEN, LONGEST_DWELL, OPEN, Breaker, Limits, State

LIMITS = Limits()
LONGEST = LIMITS.dwell * LONGEST_DWELL

steps = st.lists(
    st.tuples(st.sampled_from(["ask", "ok", "slow", "fail", "lose", "pass"]), st.floats(0.001, 2.0)), max_size=60
)


class World:
    """A breaker, and the calls that were let through and have not ended."""

    def __init__(self, chance: float) -> None:
        self.now = 0.0
        self.calls: list[float] = []
        self.told: list[tuple[float, State, State]] = []
        self.breaker = Breaker(LIMITS, lambda was, state, _: self.told.append((self.now, was, state)), lambda: chance)

    def ask(self) -> bool:
        if self.breaker.state != CLOSED and not self.breaker.admits(self.now):
            return False
        self.calls.append(self.now)
        return True

    def step(self, what: str, span: float) -> None:
        if what == "ask":
            self.ask()
        elif what == "pass":
            self.now += span
        elif self.calls:
            began = self.calls.pop(0)
            self.now = max(self.now, began) + (LIMITS.slow if what == "slow" else 0.001)
            if what == "fail":
                self.breaker.failed(began, self.now, "no answer")
            elif what != "lose":
                self.breaker.succeeded(began, self.now)


@given(steps, st.floats(0, 1))
def test_transitions_are_of_three_kinds_and_reported_in_order(history: list[tuple[str, float]], chance: float) -> None:
    world = World(chance)
    for what, span in history:
        world.step(what, span)
    state: State = CLOSED
    for _, was, now in world.told:
        assert was == state
        assert (was, now) in [(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, OPEN), (HALF_OPEN, CLOSED)]
        state = now
    assert state == world.breaker.state


@given(steps, st.floats(0, 1))
def test_a_breaker_closes_soon_after_calls_succeed_again(history: list[tuple[str, float]], chance: float) -> None:
    world = World(chance)
    for what, span in history:
        world.step(what, span)
    was_open, began = world.breaker.state != CLOSED, world.now
    while world.breaker.state != CLOSED:
        if world.ask():
            world.breaker.succeeded(world.calls.pop(), world.now)
        world.now += 0.01
        # a lost probe may have to be given up first, and the breaker to be sat out
        assert world.now - began <= LIMITS.probing + LONGEST + 0.1
    assert not was_open or world.told[-1][2] == CLOSED


@given(steps, st.floats(0, 1))
def test_a_breaker_that_is_not_closed_admits_few_calls_at_once(history: list[tuple[str, float]], chance: float) -> None:
    world = World(chance)
    for _ in range(LIMITS.failures):
        world.breaker.failed(world.now, world.now, "no answer")
    world.now += LIMITS.dwell
    let_through = [world.now for _ in range(20) if world.ask()]
    assert len(let_through) == LIMITS.probes
    opened_at = None
    for what, span in history:
        world.step(what, span)
        if world.told[-1][2] == OPEN:
            opened_at = world.told[-1][0]
        if opened_at is not None and world.breaker.state == OPEN and world.now < opened_at + LIMITS.dwell * 0.75:
            assert not world.ask()
