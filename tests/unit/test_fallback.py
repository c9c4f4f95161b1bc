"""The fallback: who answers when the store cannot, what is marked, and what the store hears when it is back."""

from typing import Any

import pytest

from penstock import Limiter, ManualClock, Quota, StoreError, Verdict
from penstock.clock import SECOND
from penstock.engine.engine import Engine
from penstock.errors import InvalidOption
from penstock.events import Degraded
from penstock.headers import HeaderWriter, status_of
from penstock.layers import DenyCache, Fallback
from penstock.layers.fallback import LOG_EVERY, share_of
from penstock.layers.hosts import BELIEVED_AFTER, EVERY, FORGOTTEN_AFTER, KEY, PLACES, Hosts
from penstock.model import Acquire, Amend, Amended, Ask, Failed, Grant, OnFailure, Op, Outcome, Reset
from tests.unit.flaky import Flaky

QUOTA = Quota.parse("10/minute fixed_window")


def acquire(key: str = "ann", cost: int = 1, quota: Quota = QUOTA, **more: Any) -> Acquire:
    return Acquire((Ask(key, quota, cost),), **more)


class Fleet:
    """Hosts over one store; each has its own fallback."""

    def __init__(self, hosts: int = 1, behaviour: OnFailure = "local", **options: Any) -> None:
        self.clock = ManualClock(1_700_000_040)  # the beginning of a minute
        self.store = Flaky(self.clock)
        self.told: list[Any] = []
        self.known = [DenyCache() for _ in range(hosts)]
        self.layers = [Fallback(behaviour, known=known, hook=self.told.append, **options) for known in self.known]
        self.drivers = [
            Engine(self.store, [known, layer], self.clock, behaviour)
            for known, layer in zip(self.known, self.layers, strict=True)
        ]
        self._not_in_passing()

    def settle_in(self) -> None:
        """Let every host announce itself, and count the others."""
        for _ in range(2):
            self.keep_house()
            self.clock.advance(EVERY / SECOND)

    def keep_house(self) -> None:
        for driver in self.drivers:
            driver.run_due()
        self._not_in_passing()

    def _not_in_passing(self) -> None:
        """What is due is done by hand here."""
        for driver in self.drivers:
            driver._chain.due_at = 2**63

    def run(self, op: Op, host: int = 0) -> Outcome:
        (outcome,) = self.drivers[host].run([op])
        return outcome

    def ask(self, key: str = "ann", cost: int = 1, host: int = 0, **more: Any) -> Verdict:
        verdict = self.run(acquire(key, cost, **more), host)
        assert isinstance(verdict, Verdict), verdict
        return verdict

    def used(self, key: str = "ann", quota: Quota = QUOTA) -> int:
        """What the store knows of."""
        (verdict,) = self.store.inner.run([Acquire((Ask(key, quota, 0),), dry=True)])
        assert isinstance(verdict, Verdict)
        return quota.capacity - verdict.remaining


def test_while_the_store_answers_nothing_changes() -> None:
    fleet = Fleet()
    verdict = fleet.ask()
    assert (verdict.source, verdict.degraded, fleet.used(), fleet.told) == ("store", False, 1, [])


def test_open_lets_everybody_pass_and_says_so() -> None:
    fleet = Fleet(behaviour="open")
    fleet.store.up = False
    verdicts = [fleet.ask(cost=10) for _ in range(50)]
    assert all(verdicts)
    assert {verdict.source for verdict in verdicts} == {"open"}
    assert fleet.told[0] == Degraded("open", 1, "the store is away")
    assert fleet.layers[0].answered == {"open": 50}


def test_closed_lets_nobody_pass_and_does_not_call_it_a_limit() -> None:
    fleet = Fleet(behaviour="closed")
    fleet.store.up = False
    verdict = fleet.ask()
    assert (bool(verdict), verdict.source, verdict.retry_after, verdict.receipt) == (False, "closed", 1.0, None)
    writer = HeaderWriter()
    assert status_of(verdict) == 503
    assert writer.headers(verdict) == [("Retry-After", "1"), ("Cache-Control", "no-store")]
    assert writer.problem(verdict) == {
        "type": "about:blank",
        "title": "Service Unavailable",
        "status": 503,
        "detail": "Cannot be decided now: try again in 1 second.",
    }
    fleet.store.up = True
    assert fleet.ask(), "what was not refused for a limit is not repeated"


def test_raise_leaves_it_to_the_caller() -> None:
    fleet = Fleet(behaviour="raise")
    fleet.store.up = False
    assert isinstance(fleet.run(acquire()), Failed)


def test_a_request_says_what_happens_to_it() -> None:
    fleet = Fleet(behaviour="open")
    fleet.store.up = False
    sources = [fleet.ask(on_failure=behaviour).source for behaviour in ("local", "open", "closed", None)]
    assert sources == ["local", "open", "closed", "open"]
    assert isinstance(fleet.run(acquire(on_failure="raise")), Failed)


@pytest.mark.parametrize(("hosts", "each"), [(1, 10), (2, 5), (3, 3), (4, 2), (20, 1)])
def test_hosts_share_the_limit(hosts: int, each: int) -> None:
    fleet = Fleet(hosts)
    fleet.settle_in()
    assert {layer.hosts.number for layer in fleet.layers} == {hosts}
    fleet.store.up = False
    granted = [sum(fleet.ask(host=host).allowed for _ in range(20)) for host in range(hosts)]
    assert granted == [each] * hosts


def test_a_host_that_is_gone_does_not_count_for_long() -> None:
    fleet = Fleet(2)
    fleet.settle_in()
    fleet.drivers.pop()
    for _ in range(FORGOTTEN_AFTER + 2 * BELIEVED_AFTER // SECOND):
        fleet.clock.advance(1)
        fleet.keep_house()
    assert fleet.layers[0].hosts.number == 1


@pytest.mark.parametrize("gone", [0, 600], ids=["at once", "after an outage"])
def test_a_store_that_comes_back_empty_does_not_make_a_host_the_only_one(gone: int) -> None:
    """The first to announce itself is seen alone; it must not take the whole limit if the store fails again."""
    fleet = Fleet(4)
    fleet.settle_in()
    fleet.store.up = False
    fleet.clock.advance(gone)
    fleet.keep_house()
    fleet.store.up = True
    fleet.clock.advance(EVERY / SECOND)
    fleet.store.inner.run([Reset(KEY, PLACES)])
    numbers = set()
    for _ in range(20):
        fleet.clock.advance(1)
        for driver in fleet.drivers:
            driver.run_due()
            numbers |= {layer.hosts.number for layer in fleet.layers}
    assert numbers == {4}


def test_clock_that_is_set_back_makes_no_falling_number_of_hosts_believed() -> None:
    clock = ManualClock()
    hosts = Hosts()

    def see(number: int) -> None:
        clock.advance(EVERY / SECOND)
        look = Verdict(((True, PLACES.limit - number, 0, 0, 0, 0, -1), clock.micros, KEY, PLACES, 0, ()))
        hosts.heard([look, look], clock.micros)

    for number in (4, 1):
        see(number)
    clock.set(clock.micros / SECOND - 3_600)
    see(1)
    assert hosts.number == 4
    for _ in range(BELIEVED_AFTER // EVERY):
        see(1)
    assert hosts.number == 1


def test_hosts_that_begin_together_know_of_one_another_a_second_later() -> None:
    fleet = Fleet(4)
    fleet.keep_house()
    fleet.clock.advance(1)
    fleet.keep_house()
    assert {layer.hosts.number for layer in fleet.layers} == {4}


def test_a_host_that_lost_its_place_takes_another() -> None:
    fleet = Fleet()
    fleet.settle_in()
    fleet.clock.advance(FORGOTTEN_AFTER + 1)
    fleet.settle_in()
    assert fleet.layers[0].hosts.number == 1
    assert fleet.layers[0].hosts.age(fleet.clock.micros) == EVERY


def test_the_last_number_stands_and_has_an_age() -> None:
    fleet = Fleet(2)
    fleet.settle_in()
    fleet.store.up = False
    before = fleet.layers[0].hosts.age(fleet.clock.micros)
    fleet.clock.advance(600)
    fleet.keep_house()
    assert fleet.layers[0].hosts.number == 2
    assert before is not None
    assert fleet.layers[0].hosts.age(fleet.clock.micros) == before + 600 * SECOND


def test_if_nobody_knows_how_many_there_are_each_takes_the_least() -> None:
    fleet = Fleet()
    fleet.store.up = False
    assert [fleet.ask().allowed for _ in range(3)] == [True, False, False]
    assert fleet.layers[0].hosts.number is None


def test_who_says_how_many_hosts_there_are_need_not_count() -> None:
    layer = Fallback(hosts=5)
    assert layer.share(QUOTA).limit == 2
    assert layer.due(0).ops == []


@pytest.mark.parametrize(
    ("text", "hosts", "share"),
    [
        ("100/minute", 4, "25/minute"),
        ("100/minute", 50, "10/minute"),
        ("100/minute", None, "10/minute"),
        ("1/minute", 4, "1/minute"),
        ("10/second burst 40", 4, "2/second burst 10"),
        ("10/second queue 39", 4, "2/second queue 9"),
        ("8 concurrent ttl 30s", 4, "2 concurrent ttl 30s"),
        ("100/month calendar Europe/Berlin", 4, "25/month calendar Europe/Berlin"),
        ("10/minute penalty 5m name x", 2, "5/minute penalty 5m name x"),
    ],
)
def test_what_a_share_is(text: str, hosts: int | None, share: str) -> None:
    quota = Quota.parse(text)
    assert share_of(quota, hosts) == Quota.parse(share)
    assert share_of(quota, hosts).identity == quota.identity


def test_a_local_answer_speaks_of_the_quota_that_was_asked() -> None:
    fleet = Fleet(hosts=2)
    fleet.settle_in()
    fleet.store.up = False
    other = Quota.parse("100/hour")
    verdict = fleet.run(Acquire((Ask("ann", QUOTA, 2), Ask("bob", other, 2, advisory=True))))
    assert isinstance(verdict, Verdict)
    assert (verdict.source, verdict.quota, verdict.key, verdict.remaining) == ("local", QUOTA, "ann", 3)
    assert [(d.key, d.quota, d.cost, d.advisory) for d in verdict.decisions] == [
        ("ann", QUOTA, 2, False),
        ("bob", other, 2, True),
    ]


def test_what_is_dearer_than_the_share_is_refused() -> None:
    fleet = Fleet(hosts=2)
    fleet.settle_in()
    fleet.store.up = False
    assert not fleet.ask(cost=6)
    assert fleet.ask(cost=5)


def test_who_was_refused_before_stays_refused() -> None:
    fleet = Fleet()
    fleet.settle_in()
    for _ in range(11):
        fleet.ask()
    fleet.clock.advance(5)  # the deny cache no longer repeats it, but knows
    fleet.store.up = False
    verdict = fleet.ask()
    assert (bool(verdict), verdict.source) == (False, "local")
    assert verdict.retry_after == pytest.approx(60 - fleet.clock.micros / SECOND % 60)
    assert fleet.ask("bob")
    fleet.clock.advance(verdict.retry_after)
    assert fleet.ask()


def test_the_same_id_is_the_same_answer() -> None:
    fleet = Fleet()
    fleet.settle_in()
    fleet.store.up = False
    one, two = fleet.ask(cost=4, id=b"x"), fleet.ask(cost=4, id=b"x")
    assert one == two
    assert fleet.ask().remaining == 5


class TestWhatIsGivenBack:
    def test_local_charges_come_back_locally(self) -> None:
        fleet = Fleet()
        fleet.settle_in()
        fleet.store.up = False
        verdict = fleet.ask(cost=10)
        assert verdict.receipt is not None
        assert verdict.receipt.source == "local"
        assert fleet.run(Amend(verdict.receipt, "refund", 4)) == Amended((4,))
        assert fleet.ask(cost=4)
        fleet.store.up = True
        fleet.keep_house()
        assert fleet.used() == 10

    def test_a_local_reservation_is_settled_locally(self) -> None:
        fleet = Fleet()
        fleet.settle_in()
        fleet.store.up = False
        verdict = fleet.ask(cost=4, id=b"x")
        assert verdict.receipt is not None
        assert fleet.run(Amend(verdict.receipt, "settle", 6)) == Amended((-2,))
        fleet.store.up = True
        fleet.keep_house()
        assert fleet.used() == 6

    @pytest.mark.parametrize("behaviour", ["open", "local"])
    def test_places_are_held_and_released_whoever_granted_them(self, behaviour: OnFailure) -> None:
        places = Quota.parse("2 concurrent ttl 30s")
        fleet = Fleet(behaviour=behaviour)
        fleet.settle_in()
        fleet.store.up = False
        verdict = fleet.ask(quota=places)
        assert verdict.receipt is not None
        assert fleet.run(Amend(verdict.receipt, "renew")) == Amended((1,))
        fleet.store.up = True
        assert fleet.run(Amend(verdict.receipt, "release")) in (Amended((1,)), Amended((0,)))
        assert fleet.store.inner.counters <= 2, "the store heard nothing of it"

    def test_what_the_store_could_not_take_back_it_takes_back_later(self) -> None:
        places = Quota.parse("2 concurrent ttl 30s")
        fleet = Fleet()
        fleet.settle_in()
        held, reserved = fleet.ask(quota=places), fleet.ask(cost=8, id=b"x")
        assert held.receipt
        assert reserved.receipt
        fleet.store.up = False
        assert fleet.run(Amend(held.receipt, "release")) == Amended((0,))
        assert fleet.run(Amend(reserved.receipt, "settle", 3)) == Amended((0,))
        assert fleet.run(Amend(held.receipt, "renew")) == Amended((1,)), "held, as far as anybody knows"
        assert (fleet.used(), fleet.used(quota=places)) == (8, 1)
        fleet.store.up = True
        fleet.keep_house()
        assert (fleet.used(), fleet.used(quota=places)) == (3, 0)

    def test_a_refund_that_may_have_been_done_is_not_done_again(self) -> None:
        fleet = Fleet()
        fleet.settle_in()
        verdict = fleet.ask(cost=8)
        assert verdict.receipt
        fleet.store.up, fleet.store.charged = False, "unknown"
        assert fleet.run(Amend(verdict.receipt, "refund")) == Amended((0,))
        fleet.store.up = True
        fleet.keep_house()
        assert fleet.used() == 8

    @pytest.mark.parametrize("id", [None, b"x"])
    def test_postponed_refund_whose_reply_is_lost_takes_effect_once(self, id: bytes | None) -> None:
        fleet = Fleet()
        fleet.settle_in()
        other, verdict = fleet.ask(cost=2), fleet.ask(cost=6, id=id)
        assert other
        assert verdict.receipt
        fleet.store.up = False
        fleet.run(Amend(verdict.receipt, "refund"))
        fleet.store.up, fleet.store.loses_replies = True, True
        fleet.clock.advance(2)
        fleet.keep_house()
        assert fleet.used() == 2, "it was done, and the reply was lost"
        fleet.store.loses_replies = False
        fleet.clock.advance(2)
        fleet.keep_house()
        assert fleet.used() == 2

    def test_to_forget_is_not_pretended(self) -> None:
        fleet = Fleet()
        fleet.settle_in()
        fleet.store.up = False
        fleet.ask(cost=10)
        assert isinstance(fleet.run(Reset("ann", QUOTA)), Failed)
        assert fleet.ask(cost=10), "but here it was forgotten"

    def test_a_partial_grant_is_left_to_the_store(self) -> None:
        fleet = Fleet()
        fleet.settle_in()
        fleet.store.up = False
        assert isinstance(fleet.run(Grant("ann", QUOTA, 1, 2)), Failed)


class TestWhatTheStoreIsTold:
    @pytest.mark.parametrize("text", ["10/minute fixed_window", "10/minute", "10/minute rolling_window"])
    def test_what_was_admitted_counts_when_it_is_back(self, text: str) -> None:
        quota = Quota.parse(text)
        fleet = Fleet()
        fleet.settle_in()
        fleet.ask(cost=2, quota=quota)
        fleet.store.up = False
        fleet.clock.advance(1)
        assert fleet.ask(cost=7, quota=quota)
        fleet.store.up = True
        fleet.clock.advance(1)
        fleet.keep_house()
        assert fleet.used(quota=quota) == 9
        fleet.keep_house()
        assert fleet.used(quota=quota) == 9
        assert len(fleet.layers[0].unreported) == 0

    def test_a_bucket_is_told_what_it_is_owed(self) -> None:
        quota = Quota.parse("100/minute gcra")
        fleet = Fleet()
        fleet.settle_in()
        fleet.store.up = False
        for _ in range(50):
            fleet.clock.advance(0.3)
            assert fleet.ask(quota=quota)
        fleet.store.up = True
        fleet.clock.advance(1)
        fleet.keep_house()
        assert fleet.used(quota=quota) == pytest.approx(50 - 100 * 15.7 / 60, abs=1)

    def test_a_window_that_is_over_is_over(self) -> None:
        fleet = Fleet()
        fleet.settle_in()
        fleet.store.up = False
        fleet.ask(cost=7)
        fleet.clock.advance(60)
        fleet.ask(cost=1)
        fleet.store.up = True
        fleet.keep_house()
        assert fleet.used() == 1

    def test_what_cannot_be_told_now_is_told_later_unless_it_may_have_been(self) -> None:
        fleet = Fleet()
        fleet.settle_in()
        fleet.store.up = False
        for charged, left in (("no", 1), ("unknown", 0)):
            fleet.ask(cost=2)
            fleet.store.charged = charged
            fleet.clock.advance(1)
            fleet.keep_house()
            assert len(fleet.layers[0].unreported) == left
        assert fleet.layers[0].unreported.lost == 4

    @pytest.mark.untraced
    def test_memory_is_bounded_and_what_had_no_room_is_counted(self) -> None:
        fleet = Fleet(max_keys=4_096)
        fleet.settle_in()
        fleet.store.up = False
        for number in range(10_000):
            fleet.ask(f"k{number}")
        layer = fleet.layers[0]
        assert len(layer.unreported) == 4_096
        assert layer.unreported.lost == 10_000 - 4_096
        assert layer._local is not None
        assert layer._local.counters <= 4_096


def test_threads_whose_clocks_were_read_in_another_order_log_once_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    layer = Fallback()
    for now in (5 * SECOND, 5 * SECOND - 1, 5 * SECOND + 1, 4 * SECOND):
        layer.warn(1, "the store is away", now)
    assert len(caplog.records) == 1
    layer.warn(1, "the store is away", 5 * SECOND + LOG_EVERY)
    assert caplog.messages[1:] == ["4 requests were answered without the store: the store is away"]


def test_it_is_logged_but_not_all_the_time(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet(behaviour="open")
    fleet.store.up = False
    for _ in range(100):
        fleet.ask("a secret identity")
    assert len(caplog.records) == 1
    fleet.clock.advance(LOG_EVERY / SECOND)
    fleet.ask()
    assert caplog.messages[1] == "100 requests were answered without the store: the store is away"
    assert "identity" not in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"behaviour": "fail"}, "on_failure 'fail': expected one of local, open, closed, raise"),
        ({"hosts": 0}, "hosts 0: expected a whole number, at least 1, or None to count them"),
        ({"hosts": True}, "hosts True: expected a whole number, at least 1, or None to count them"),
        ({"max_keys": 1}, "max_keys 1: expected a whole number, at least 4096"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption) as error:
        Fallback(**options)
    assert str(error.value) == message


class TestLimiter:
    """What a limiter has over a shared store, by default and by choice."""

    def test_by_default_this_host_decides(self, clock: ManualClock) -> None:
        store = Flaky(clock)
        limiter = Limiter(store, clock=clock)
        assert limiter.acquire("ann", "20/minute").source == "store"
        store.up = False
        assert limiter.acquire("ann", "20/minute").source == "local"

    def test_by_choice_an_error_is_raised(self, clock: ManualClock) -> None:
        store = Flaky(clock)
        limiter = Limiter(store, clock=clock, on_failure="raise")
        store.up = False
        with pytest.raises(StoreError, match="the store is away"):
            limiter.acquire("ann", "20/minute")

    def test_holds_and_reservations_survive_an_outage(self, clock: ManualClock) -> None:
        store = Flaky(clock)
        limiter = Limiter(store, clock=clock, on_failure="open")
        with limiter.hold("ann", "2 concurrent ttl 30s") as hold, limiter.reserve("ann", "100/minute", 10) as reserved:
            store.up = False
            assert hold.renew()
            assert reserved.settle(5) == Amended((0,))
            with limiter.hold("ann", "2 concurrent ttl 30s") as another:
                assert another.verdict.source == "open"
        with pytest.raises(StoreError):
            limiter.reset("ann", "100/minute")

    @pytest.mark.parametrize("value", ["fail", "", 1])
    def test_unknown_behaviours_are_refused(self, value: Any) -> None:
        with pytest.raises(InvalidOption, match=r"^on_failure .*: expected one of local, open, closed, raise$"):
            Limiter(on_failure=value)

    def test_a_behaviour_is_said_once(self, clock: ManualClock) -> None:
        with pytest.raises(InvalidOption, match="on_failure: the layers decide that"):
            Limiter(Flaky(clock), on_failure="open", layers=[Fallback("open")])

    def test_what_the_store_should_know_is_told_before_the_limiter_closes(self, clock: ManualClock) -> None:
        store = Flaky(clock)
        limiter = Limiter(store, clock=clock, layers=[Fallback(hosts=1)])
        store.up = False
        assert limiter.acquire("ann", "20/minute", 7).source == "local"
        store.up = True
        limiter.close()
        assert Limiter(store, clock=clock, layers=()).peek("ann", "20/minute").remaining == 13
