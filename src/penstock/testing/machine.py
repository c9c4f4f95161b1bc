"""The state machine: generated histories on which a store must keep every law.

While time moves forward, every field of every outcome must equal the oracle's. Beside that each history checks, without
the oracle: `retry_after` is sufficient and minimal, a dry run charges nothing, a reset gives a full budget, and in the
end each algorithm's promise over every span of what was admitted.

After a step back of the clock the design promises inequalities, so these are checked, and the story goes on with
counters that were reset. While a counter's state lies ahead of now by at most one period, time stands still at the
state's own instant (windows, token bucket) or the level grows up to a full burst (GCRA); state further ahead is pulled
back to now. So a refusal lasts at most one period longer than it would without the step, and not longer at all when
the step was a big one.

What happens together is one batch where that shows no less: for a store that lives elsewhere each call takes time. And
each step is one number, for a rule and its arguments drawn one by one would take Hypothesis longer than all the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import ClassVar, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from penstock.clock import ManualClock, Micros
from penstock.engine.protocols import Store
from penstock.model import MAX_COST, Acquire, Amend, Ask, Charge, Grant, Op, Receipt, Reset, Verdict
from penstock.quota import BUCKETS, CONCURRENCY, MIN_INTERVAL, Quota
from penstock.testing.agreement import Held, SideBySide
from penstock.testing.oracle.calendar import period_of
from penstock.testing.world import COSTS, LIMITS, SPENDS, WAITS, World, limits, scales, themes

DRAINING = (*BUCKETS, MIN_INTERVAL, "leaky_bucket")
CHOICES = 16
OUTCOMES = 6


class MachineStep(NamedTuple):
    """What happens next: a method of `Laws`, and its arguments."""

    name: str
    numbers: tuple[int, ...]

    def __repr__(self) -> str:
        return f"{self.name}{self.numbers if len(self.numbers) > 1 else f'({self.numbers[0]})'}"


STEPS: dict[str, tuple[int, tuple[int, ...]]] = {
    "acquire": (3, (SPENDS,)),
    "batch": (1, (SPENDS, SPENDS, SPENDS)),
    "acquire_once": (3, (SPENDS,)),
    "request": (4, (SPENDS, CHOICES)),
    "grant": (2, (SPENDS, COSTS, 2)),
    "ask_again": (1, (CHOICES,)),
    "start_over": (1, (CHOICES,)),
    "peek": (1, (SPENDS, 2)),
    "refund": (3, (CHOICES, OUTCOMES)),
    "settle": (3, (CHOICES, OUTCOMES)),
    "release": (2, (CHOICES, 2)),
    "renew": (2, (CHOICES, WAITS)),
    "report": (2, (SPENDS, WAITS, WAITS)),
    "reset": (1, (SPENDS,)),
    "advance": (3, (WAITS,)),
    "wait_as_told": (2, (SPENDS,)),
    "change_limit": (1, (len(LIMITS),)),
    "step_back": (1, (WAITS, SPENDS)),
}
"""How often each of them happens, in relation to the others, and how many values each argument has."""

NAMES = tuple(chain.from_iterable(repeat(name, weight) for name, (weight, _) in STEPS.items()))
MOST = 2**24 - 1
"""More than any step needs, and not so large that Hypothesis prefers small numbers."""


@st.composite
def steps(draw: st.DrawFn) -> MachineStep:
    """Any step, as one number."""
    number, which = divmod(draw(st.integers(0, MOST)), len(NAMES))
    numbers = []
    for values in STEPS[NAMES[which]][1]:
        number, value = divmod(number, values)
        numbers.append(value)
    return MachineStep(NAMES[which], tuple(numbers))


class Laws(RuleBasedStateMachine):
    """One history of one algorithm. Subclasses name the algorithm and make the store."""

    algorithm: ClassVar[str]
    make_store: ClassVar[Callable[[ManualClock], Store]]

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = type(self).make_store(self.clock)
        self.both = SideBySide(self.store, self.clock)
        self.once: list[tuple[Acquire, Held | None]] = []  # requests with an id that may be asked again
        self.chapter = 0  # ids are not used again after the counters they were used with were changed or reset

    @initialize(limit=limits, scale=scales, theme=themes)
    def begin(self, limit: int, scale: int, theme: int) -> None:
        self.world = World.of(self.algorithm, limit, scale, theme)
        self.clock.micros = self.world.start

    def teardown(self) -> None:
        self.both.check_promises()
        self.store.close()

    @rule(step=steps())
    def take(self, step: MachineStep) -> None:
        getattr(self, step.name)(*step.numbers)

    def acquire(self, spend: int) -> None:
        self.both.acquire(*self.world.asks(spend))

    def batch(self, first: int, second: int, third: int) -> None:
        self.both.run(*(Acquire(self.world.asks(spend)) for spend in (first, second, third)))

    def acquire_once(self, spend: int) -> None:
        """With an id, and twice. Other counters may see the same id, which means nothing to them."""
        asks = self.world.asks(spend)
        told = self._run_once(asks, 0)
        if not told:
            self.clock.micros += told.retry_after_us
            assert self._run_once(asks, 0), "a refusal was remembered"

    def request(self, spend: int, choice: int) -> None:
        """Three quotas of two keys in one request, some of them advisory; at times with an id."""
        asks = {
            (ask.key, ask.quota.identity): ask
            for number in range(3)
            for ask in self.world.asks((spend + number) % SPENDS, advisory=bool(choice >> number & 1))
        }
        if choice < 8:
            self.both.acquire(*asks.values())
            return
        cost = min((ask.cost for ask in asks.values() if not ask.quota.flat), default=1)
        self._run_once([ask if ask.quota.flat else ask._replace(cost=cost) for ask in asks.values()], choice)

    def _run_once(self, asks: Sequence[Ask], name: int) -> Verdict:
        cost = max(ask.cost for ask in asks)
        op = Acquire(tuple(asks), id=f"{self.chapter}:{cost}:{name}".encode())
        *_, verdict = self.both.run(op, op)
        assert isinstance(verdict, Verdict)
        self.once.append((op, self.both.held[-1] if verdict.receipt else None))
        return verdict

    def grant(self, spend: int, most: int, once: int) -> None:
        """From little to as much as there may be; with an id it is granted twice, and charged once."""
        ask = self.world.asks(spend)[0]
        least = 1 if ask.quota.flat else min(ask.cost, ask.quota.capacity)
        extra = (0, 1, 2, least, ask.quota.capacity, MAX_COST - least)[most]
        op = Grant(*ask[:2], least, least if ask.quota.flat else least + extra)
        self.both.run(op)
        if once:
            named = op._replace(id=f"{self.chapter}:{least}:{most}:grant".encode())
            self.both.run(named, named)

    def ask_again(self, choice: int) -> None:
        op, _ = self._one_asked(choice)
        self.both.run(op)

    def start_over(self, choice: int) -> None:
        """Refunded and repeated it is another request, which the old receipt does not reach."""
        op, held = self._one_asked(choice)
        if held is not None and held in self.both.held:
            give_back = Amend(held.receipt, "refund")
            self._amend(held, give_back, op, give_back, Amend(held.receipt, "settle", 0))

    def _one_asked(self, choice: int) -> tuple[Acquire, Held | None]:
        if not self.once:
            self.acquire_once(choice)
        return self.once[-1 - choice % len(self.once)]

    def peek(self, spend: int, nothing: int) -> None:
        asks = self.world.asks(spend)
        verdict = self.both.acquire(*(ask._replace(cost=0) if nothing else ask for ask in asks), dry=True)
        assert verdict.receipt is None

    def refund(self, choice: int, outcome: int) -> None:
        """Some units of a receipt, or all of them; twice, if that must be noticed."""
        held = self._one_held(choice)
        cost = held.receipt.cost
        op = Amend(held.receipt, "refund", (None, 1, min(2, cost), cost // 2 + 1, cost, None)[outcome])
        self._amend(held, *[op] * (1 + held.charged.has_id))

    def settle(self, choice: int, outcome: int) -> None:
        """For less, for the same, for more, for far too much; a second time with another cost, which has no effect."""
        held = self._one_held(choice, lambda held: held.charged.has_id)
        cost = held.receipt.cost
        actual = (0, cost // 2, cost, cost + 1, 3 * cost + 2, MAX_COST)[outcome]
        self._amend(held, Amend(held.receipt, "settle", actual), Amend(held.receipt, "settle", actual // 2 + 1))

    def release(self, choice: int, again: int) -> None:
        if self.algorithm != CONCURRENCY:
            return self.refund(choice, again)
        held = self._one_held(choice, lambda held: held.has_place)
        return self._amend(held, *[Amend(held.receipt, "release")] * (1 + again))

    def renew(self, choice: int, wait: int) -> None:
        self.advance(wait)
        if self.algorithm != CONCURRENCY:
            return self.settle(choice, wait % OUTCOMES)
        held = self._one_held(choice, lambda held: held.has_place)
        return self._amend(held, Amend(held.receipt, "renew"))

    def report(self, spend: int, first: int, second: int) -> None:
        """Twice in one receipt: what happened elsewhere, and when is not in order."""
        asks, now = self.world.asks(spend), self.clock.micros
        instants = [max(0, now - self.world.age(which, now)) for which in (first, second)]
        most = (1, 1, 3, MAX_COST)[second % 4]  # more than can be had at once, and at times far too much
        costs = [ask.cost if ask.quota.flat else min(ask.cost * most, MAX_COST) for ask in asks]
        charges = [Charge(*ask[:2], cost, at) for at in instants for ask, cost in zip(asks, costs, strict=True)]
        self.both.run(Amend(Receipt(tuple(charges)), "report"), Acquire(asks, dry=True))

    def _amend(self, held: Held, *ops: Op) -> None:
        """Amend, and look at all counters that it may have changed."""
        self.both.run(*ops, Acquire(held.charged.asks, dry=True))

    def reset(self, spend: int) -> None:
        asks = self.world.asks(spend)
        *_, after = self.both.run(*(Reset(ask.key, ask.quota) for ask in asks), Acquire(asks, dry=True))
        assert isinstance(after, Verdict)
        assert all(d.remaining == d.quota.capacity for d in after.decisions)
        self._turn_the_page()

    def advance(self, wait: int) -> None:
        self.clock.micros += self.world.duration(wait, self.clock.micros)

    def wait_as_told(self, spend: int) -> None:
        """`retry_after` is minimal (a microsecond earlier it is refused) and sufficient."""
        asks = self.world.asks(spend)
        told = self.both.acquire(*asks)
        if not told:
            self.clock.micros += told.retry_after_us - 1
            assert not self.both.acquire(*asks, dry=True), "retry_after was not minimal"
            self.clock.micros += 1
            assert self.both.acquire(*asks), "retry_after was not sufficient"

    def change_limit(self, choice: int) -> None:
        """All quotas change their amounts. What was used stays used, for the counters are the same."""
        self.world = self.world.with_limit(LIMITS[choice])
        self._turn_the_page()
        if (
            self.algorithm == "rolling_window"
        ):  # what is counted as denied displaces entries of a log that was shortened
            self.both.check_promises()
        if self.algorithm in (*DRAINING, CONCURRENCY):  # beside places stands a bucket
            # A receipt of a bucket says how fast its units drained when they were charged, not since. And a bucket owes
            # at most its burst: lowered and raised again, it may give the difference again.
            self.both.held.clear()
            self.both.check_promises()

    def step_back(self, wait: int, spend: int) -> None:
        asks = self.world.asks(spend)
        standing_still = self.both.run(*(Acquire((ask,), dry=True) for ask in asks))
        back = self.world.duration(wait, self.clock.micros)
        self.clock.micros = max(0, self.clock.micros - back)
        after = self._alone(*(Acquire((ask,), dry=True) for ask in asks))
        for ask, before, now in zip(asks, standing_still, after, strict=True):
            assert isinstance(before, Verdict)
            self._check_after_step_back(ask, before, now)
        self._check_waiting_after_step_back(asks)
        self.both.run(*(Reset(ask.key, ask.quota) for ask in self.world.everywhere()))
        self._turn_the_page()

    def _check_after_step_back(self, ask: Ask, before: Verdict, after: Verdict) -> None:
        stepped = self._ahead(ask) > _horizon(ask.quota)
        assert 0 <= after.remaining <= ask.quota.capacity
        if not stepped:
            assert after.remaining <= before.remaining, "time going back gave more than time standing still"
            assert before.allowed or not after.allowed, "time going back admitted more than time standing still"
        longest = _longest_refusal(ask.quota) + (0 if stepped else _horizon(ask.quota))
        assert after.retry_after_us <= longest, f"{ask.quota}: refused for {after.retry_after_us} after a step back"
        if after.allowed and (not ask.quota.flat or after.remaining <= 10):
            # However far the clock was stepped, exactly the remaining units can be charged.
            costs = [1] * after.remaining if ask.quota.flat else [after.remaining]
            *all_of_it, more = self._alone(*(Acquire((ask._replace(cost=cost),)) for cost in [*costs, 1]))
            assert all(all_of_it), f"{ask.quota}: less than the {after.remaining} that were said to be left"
            assert not more, f"{ask.quota}: more than the {after.remaining} that were said to be left"

    def _check_waiting_after_step_back(self, asks: tuple[Ask, ...]) -> None:
        """No refusal may last longer than its `retry_after`, least of all until the clock has caught up."""
        (told,) = self._alone(Acquire(asks))
        if not told:
            self.clock.micros += told.retry_after_us
            (then,) = self._alone(Acquire(asks))
            assert then, f"refused again after {told.retry_after_us}, as told after a step back"

    def _turn_the_page(self) -> None:
        self.once.clear()
        self.chapter += 1

    def _one_held(self, choice: int, fits: Callable[[Held], bool] = lambda held: True) -> Held:
        """The latest, mostly: what was charged long ago has often lost its meaning."""
        held = [held for held in self.both.held if fits(held)]
        if not held:
            for ask in self.world.asks(choice):
                self.both.run(Reset(ask.key, ask.quota))
            self.acquire_once(choice)
            held = [self.both.held[-1]]
        return held[-1 - choice % len(held)]

    def _alone(self, *ops: Op) -> list[Verdict]:
        """Ask the store, but not the oracle."""
        return [verdict for verdict in self.store.run(ops) if isinstance(verdict, Verdict)]

    def _ahead(self, ask: Ask) -> Micros:
        """How far the counter's state lies ahead of now; an aligned window lies where it begins."""
        written_at, quota = self.both.oracle.counter(ask).written_at, ask.quota
        if written_at is None:
            return 0
        if quota.calendar is not None:
            written_at = period_of(quota.calendar, written_at)[0]
        elif quota.algorithm in ("fixed_window", "sliding_window"):
            written_at -= written_at % quota.period_us
        return written_at - self.clock.micros


def _horizon(quota: Quota) -> Micros:
    """How far ahead of now a counter's state can lie unless the clock was stepped."""
    if quota.algorithm in DRAINING:
        return -(-quota.capacity * quota.period_us // quota.limit)
    return quota.period_us


def _longest_refusal(quota: Quota) -> Micros:
    """How long a refusal can last while time moves forward.

    A sliding window refuses for up to two periods: until the window it is in ends, and then until that is no longer
    the previous one.
    """
    longest = _horizon(quota) * (2 if quota.algorithm == "sliding_window" else 1)
    return max(longest, quota.penalty_us or 0)
