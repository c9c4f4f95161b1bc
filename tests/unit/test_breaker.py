"""The breaker: what opens it, what closes it, and what it lets through in between."""

import pytest

from penstock.engine.breaker import CLOSED, HALF_OPEN, OPEN, Breaker, Limits, State, check_limits
from penstock.errors import InvalidOption
from penstock.events import BreakerChanged
from penstock.model import Failed
from penstock.stores.redis.config import Node, read_url
from penstock.stores.redis.errors import unanswered
from penstock.stores.redis.guard import Guards, RedisGuard
from tests.integration.support import in_threads

LIMITS = Limits()


class Case:
    """A breaker, its time, and what it told."""

    def __init__(self, limits: Limits = LIMITS, chance: float = 1.0) -> None:
        self.told: list[tuple[State, State, str]] = []
        self.breaker = Breaker(limits, lambda *told: self.told.append(told), lambda: chance)
        self.now = 1_000.0

    @property
    def state(self) -> State:
        return self.breaker.state

    def fail(self, times: int = 1) -> None:
        for _ in range(times):
            self.breaker.failed(self.now, self.now, "no answer")

    def succeed(self, times: int = 1, took: float = 0.001) -> None:
        for _ in range(times):
            self.breaker.succeeded(self.now - took, self.now)

    def opened(self) -> "Case":
        self.fail(LIMITS.failures)
        assert self.state == OPEN
        return self

    def probe(self) -> float:
        """When a probe began that was let through."""
        assert self.breaker.admits(self.now)
        return self.now


def test_failures_in_a_row_open_it_and_one_success_between_does_not() -> None:
    case = Case()
    case.fail(4)
    case.succeed()
    case.fail(4)
    assert case.state == CLOSED
    case.fail()
    assert case.state == OPEN
    assert case.told == [(CLOSED, OPEN, "5 failures in a row, the last one: no answer")]


@pytest.mark.parametrize("bad", ["failed", "slow"])
def test_half_of_twenty_calls_that_fail_or_are_slow_open_it(bad: str) -> None:
    case = Case()
    case.succeed(10)
    for number in range(10):
        assert case.state == CLOSED, number
        if bad == "slow":
            case.succeed(took=LIMITS.slow + 0.001)
        else:
            case.fail()
            if number < 9:
                case.breaker._streak = 0  # others are answered in between, too early to count again
    assert case.state == OPEN
    assert case.breaker.why.startswith("10 of 20 calls failed or were slow")


def test_what_is_older_than_the_window_does_not_count() -> None:
    case = Case()
    case.succeed(9, took=1)
    case.now += LIMITS.window + 1
    case.succeed(10)
    case.succeed(9, took=1)
    assert case.state == CLOSED
    case.succeed(took=1)
    assert case.state == OPEN


@pytest.mark.untraced
def test_threads_may_fail_at_once_while_seconds_pass() -> None:
    """Each call is of another second, so that the window turns while others look at it."""
    breaker = Case(Limits(failures=1_000_000, calls=1_000_000, window=1_500.0)).breaker

    def fail(number: int) -> None:
        for second in range(1_500):
            breaker.failed(second, second, "no answer")

    in_threads(fail, 4)
    assert breaker.state == CLOSED


def test_few_calls_prove_nothing() -> None:
    case = Case()
    case.succeed(LIMITS.calls - 1, took=1)
    assert case.state == CLOSED


def test_nobody_passes_until_it_is_time_and_then_a_few() -> None:
    case = Case().opened()
    case.now += LIMITS.dwell - 0.001
    assert not case.breaker.admits(case.now)
    case.now += 0.001
    assert [case.breaker.admits(case.now) for _ in range(5)] == [True, True, True, False, False]
    assert case.state == HALF_OPEN


def test_it_closes_when_probes_are_answered() -> None:
    case = Case().opened()
    case.now += LIMITS.dwell
    began = case.probe()
    case.breaker.succeeded(began, case.now)
    assert case.state == HALF_OPEN
    began = case.probe()
    case.breaker.succeeded(began, case.now)
    assert case.state == CLOSED
    assert [state for _, state, _ in case.told] == [OPEN, HALF_OPEN, CLOSED]


@pytest.mark.parametrize("how", ["fails", "is slow", "never comes back"])
def test_it_opens_again_when_a_probe(how: str) -> None:
    case = Case().opened()
    case.now += LIMITS.dwell
    began = case.probe()
    if how == "fails":
        case.breaker.failed(began, case.now, "no answer")
    elif how == "is slow":
        case.breaker.succeeded(began, case.now + LIMITS.slow + 0.001)
    else:
        case.now += LIMITS.probing + 0.001
        assert not case.breaker.admits(case.now)
    assert case.state == OPEN
    assert not case.breaker.admits(case.now)


@pytest.mark.parametrize("end", ["succeeded", "failed"])
def test_what_was_asked_before_it_opened_does_not_count(end: str) -> None:
    case = Case()
    began = case.now - 0.03
    case.opened()
    case.now += LIMITS.dwell
    case.probe()
    for _ in range(10):
        if end == "succeeded":
            case.breaker.succeeded(began, case.now)
        else:
            case.breaker.failed(began, case.now, "no answer")
    assert case.state == HALF_OPEN


def dwells(case: Case, times: int) -> list[float]:
    """How long it stays open, time after time, if every probe fails."""
    found = []
    for _ in range(times):
        opened = case.now
        while not case.breaker.admits(case.now):
            case.now += 0.001
        found.append(case.now - opened)
        case.breaker.failed(case.now, case.now, "no answer")
    return found


def test_it_stays_open_longer_each_time_but_never_a_second() -> None:
    found = dwells(Case().opened(), 10)
    assert found == sorted(found)
    assert found[0] == pytest.approx(0.5, abs=0.002)
    assert found[-1] == pytest.approx(0.8, abs=0.002)


def test_chance_spreads_when_it_is_tried_again() -> None:
    assert dwells(Case(chance=0.0).opened(), 1)[0] == pytest.approx(0.375, abs=0.002)


def test_who_opens_soon_after_closing_stays_open_longer() -> None:
    case = Case().opened()
    for wait, expected in ((1.0, 0.625), (LIMITS.window + 1, 0.5)):
        case.now += LIMITS.dwell * 2
        for _ in range(LIMITS.passes):
            case.breaker.succeeded(case.probe(), case.now)
        assert case.state == CLOSED
        case.now += wait
        case.opened()
        opened = case.now
        while not case.breaker.admits(case.now):
            case.now += 0.001
        assert case.now - opened == pytest.approx(expected, abs=0.002)
        case.breaker.failed(case.now, case.now, "no answer")


def test_an_operator_keeps_it_open_or_closed() -> None:
    case = Case()
    case.breaker.force(OPEN)
    case.now += 100
    assert not case.breaker.admits(case.now)
    case.breaker.force(CLOSED)
    case.fail(100)
    assert case.state == CLOSED
    case.breaker.force(None)
    case.fail(5)
    assert case.state == OPEN
    assert [state for _, state, _ in case.told] == [OPEN, CLOSED, OPEN]
    with pytest.raises(InvalidOption, match=r"^breaker 'ajar': expected open, closed or None$"):
        case.breaker.force("ajar")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"failures": 0}, "breaker_failures 0: expected a whole number, at least 1"),
        ({"failures": True}, "breaker_failures True: expected a whole number, at least 1"),
        ({"calls": 2.5}, "breaker_calls 2.5: expected a whole number, at least 1"),
        ({"probes": -1}, "breaker_probes -1: expected a whole number, at least 1"),
        ({"share": 0}, "breaker_share 0: expected more than 0 and at most 1"),
        ({"share": 1.5}, "breaker_share 1.5: expected more than 0 and at most 1"),
        ({"slow": -1.0}, "breaker_slow -1.0: expected seconds, more than 0 and at most 3600"),
        ({"dwell": float("nan")}, "breaker_dwell nan: expected seconds, more than 0 and at most 3600"),
        ({"window": "long"}, "breaker_window 'long': expected seconds, more than 0 and at most 3600"),
    ],
)
def test_nonsense_is_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOption) as error:
        check_limits(LIMITS._replace(**changed))  # type: ignore[arg-type]
    assert str(error.value) == message


def test_settings_of_a_url() -> None:
    url = "redis://localhost?secret=x&deadline=0.1&waiting=7&breaker_failures=3&breaker_dwell=0.25"
    settings = read_url(url)
    assert settings.waiting == 7
    assert settings.breaker._replace(slow=0) == Limits(failures=3, dwell=0.25, slow=0)
    assert settings.breaker.slow == pytest.approx(0.08)
    for option, message in {
        "breaker_failures=many": "breaker_failures 'many': expected a whole number, at least 1",
        "breaker_share=2": "breaker_share 2.0: expected more than 0 and at most 1",
        "waiting=0": "waiting '0': expected a whole number, 1 to 1000000",
    }.items():
        with pytest.raises(InvalidOption) as error:
            read_url(f"redis://localhost?secret=x&{option}")
        assert str(error.value) == message


class TestGuard:
    @pytest.fixture
    def told(self) -> list[object]:
        return []

    @pytest.fixture
    def guard(self, told: list[object]) -> RedisGuard:
        return RedisGuard("here:6379", LIMITS, 4, told.append)

    def test_it_is_shut_while_the_breaker_is_not_closed(self, guard: RedisGuard, told: list[object]) -> None:
        assert not guard.shut
        failed = unanswered("no answer within the deadline", "here:6379")
        for _ in range(5):
            guard.unanswered(0.0, failed)
        assert guard.shut
        (event,) = told
        assert isinstance(event, BreakerChanged)
        assert event[:3] == ("here:6379", CLOSED, OPEN)
        refusal = guard.admit(0.0)
        assert isinstance(refusal, Failed)
        assert refusal.charged == "no"
        assert "not asked, because of 5 failures in a row" in str(refusal.error)

    def test_a_hook_that_fails_or_asks_back_does_no_harm(self, caplog: pytest.LogCaptureFixture) -> None:
        def hook(event: object) -> None:
            guard.force(None)
            raise RuntimeError("of the hook")

        guard = RedisGuard("here:6379", LIMITS, 4, hook)
        guard.force("open")
        assert not guard.shut
        assert "a hook failed on BreakerChanged" in caplog.text

    def test_guards_are_one_per_server_and_forced_together(self) -> None:
        guards = Guards(read_url("redis://localhost?secret=x"), lambda event: None)
        one = guards.of(Node("a", 1))
        assert guards.of(Node("a", 1)) is one
        guards.force("open")
        guards.of(Node("b", 1))
        assert guards.states() == {"a:1": OPEN, "b:1": OPEN}
        guards.keep([Node("b", 1)])
        assert guards.states() == {"b:1": OPEN}


@pytest.mark.parametrize(
    ("says", "state"),
    [("LOADING Redis is loading", OPEN), ("READONLY You can't", OPEN), ("NOSCRIPT No", CLOSED), ("ERR what", CLOSED)],
)
def test_a_server_that_serves_nobody_counts_as_failing(says: str, state: State) -> None:
    import hiredis

    guard = RedisGuard("here:6379", LIMITS, 4, lambda event: None)
    for _ in range(5):
        guard.replied(0.0, hiredis.ReplyError(says))
    assert guard.breaker.state == state
