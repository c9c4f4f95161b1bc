"""The promise of local answers: over all hosts, at most one extra budget per key and outage, and a unit per host.

Generated outages, hosts and traffic; time stands in one window, so that every unit counts against the same budget. The
control is a fallback that admits every request: the checker must notice.
"""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.engine.engine import Engine
from penstock.layers import DenyCache, Fallback
from penstock.layers.fallback import FLOOR
from penstock.layers.hosts import EVERY
from penstock.model import Acquire, Ask, OnFailure, Verdict
from penstock.quota import Quota
from tests.unit.flaky import Flaky

LIMIT = 12
ALGORITHMS = ["fixed_window", "sliding_window", "rolling_window", "token_bucket", "gcra"]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 5), st.integers(1, 4)),
        st.tuples(st.sampled_from(["down", "up", "house"]), st.just(0), st.just(0)),
    ),
    max_size=80,
)


@dataclass
class Fleet:
    """Hosts over one store, and what they granted one key."""

    hosts: int
    algorithm: str
    behaviour: OnFailure = "local"
    outages: int = 0
    by_store: int = 0
    by_hosts: list[int] = field(default_factory=list)  # per outage

    def __post_init__(self) -> None:
        self.clock = ManualClock(1_700_000_000 // 86_400 * 86_400 + 3_600)
        self.store = Flaky(self.clock)
        self.quota = Quota.parse(f"{LIMIT}/day {self.algorithm}")
        self.drivers = []
        for _ in range(self.hosts):
            known = DenyCache()
            self.drivers.append(Engine(self.store, [known, Fallback(self.behaviour, known=known)], self.clock))
        self.keep_house()
        self.clock.advance(EVERY / 1_000_000)
        self.keep_house()

    def keep_house(self) -> None:
        for driver in self.drivers:
            driver.run_due()
            driver._chain.due_at = 2**63  # done by hand here, not in passing

    def step(self, what: str, host: int, cost: int) -> None:
        self.clock.advance(0.001)
        if what == "ask":
            (verdict,) = self.drivers[host % self.hosts].run([Acquire((Ask("ann", self.quota, cost),))])
            assert isinstance(verdict, Verdict)
            assert verdict.degraded == (not self.store.up) or not verdict.allowed
            if verdict and self.store.up:
                self.by_store += cost
            elif verdict:
                self.by_hosts[-1] += cost
        elif what == "house":
            self.keep_house()
        elif what == "down" and self.store.up:
            self.store.up = False
            self.by_hosts.append(0)
        elif what == "up":
            self.store.up = True

    def check(self) -> None:
        budget = max(LIMIT, self.hosts * math.ceil(LIMIT * FLOOR)) + self.hosts
        assert self.by_store <= LIMIT, f"the store granted {self.by_store} of {LIMIT}"
        for granted in self.by_hosts:
            assert granted <= budget, f"in one outage {granted} were granted, at most {budget} may be"


def run(fleet: Fleet, history: list[tuple[str, int, int]]) -> None:
    for what, host, cost in history:
        fleet.step(what, host, cost)
    fleet.check()


@settings(max_examples=settings().max_examples // 10)  # a store is made for each
@given(st.sampled_from(ALGORITHMS), st.integers(1, 4), steps)
def test_an_outage_costs_at_most_one_more_budget(
    algorithm: str, hosts: int, history: list[tuple[str, int, int]]
) -> None:
    run(Fleet(hosts, algorithm), history)


@given(
    st.sampled_from(ALGORITHMS),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=30),
)
def test_admissions_of_an_outage_are_counted_after_it(algorithm: str, hosts: int, asks: list[tuple[int, int]]) -> None:
    fleet = Fleet(hosts, algorithm)
    fleet.step("down", 0, 0)
    for host, cost in asks:
        fleet.step("ask", host, cost)
    fleet.step("up", 0, 0)
    for driver in fleet.drivers:
        driver.run([Acquire((Ask("somebody", fleet.quota, 1),))])
    fleet.keep_house()
    (verdict,) = fleet.store.inner.run([Acquire((Ask("ann", fleet.quota, 0),), dry=True)])
    assert isinstance(verdict, Verdict)
    assert verdict.remaining == max(LIMIT - fleet.by_hosts[0], 0)


def test_the_checker_notices_a_fallback_that_admits_everything() -> None:
    fleet = Fleet(2, "fixed_window", "open")
    with pytest.raises(AssertionError, match="in one outage 40 were granted, at most 14 may be"):
        run(fleet, [("down", 0, 0), *[("ask", 0, 4)] * 10])
