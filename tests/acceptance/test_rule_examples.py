"""The rule files of the documentation do what they say when they are enforced."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import Limiter, ManualClock
from penstock.enforcer import Enforcer
from penstock.rules.api_keys import KeyDirectory, KeyRecord, KeyTable, hash_key
from penstock.rules.parser import load
from penstock.rules.ruleset import RuleSet
from penstock.stores.memory.store import MemoryStore

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "rules"
SECRET = b"0123456789abcdef"


class Example:
    """An example in force, with some known keys."""

    def __init__(self, name: str, **keys: KeyRecord) -> None:
        self.clock = ManualClock(datetime(2026, 6, 5, 12, tzinfo=UTC).timestamp())
        table = KeyTable((hash_key(key, SECRET), record) for key, record in keys.items())
        self.enforcer = Enforcer(
            RuleSet(load(EXAMPLES / f"{name}.yaml")),
            Limiter(MemoryStore(clock=self.clock)),
            directory=KeyDirectory(table, SECRET),
        )

    def admitted(self, tries: int, **descriptor: Any) -> int:
        return sum(bool(self.enforcer.check(descriptor)) for _ in range(tries))


def test_a_thousand_a_minute_for_every_api_key_and_by_address_without_one() -> None:
    example = Example("per-api-key", one=KeyRecord("acme"), two=KeyRecord("acme"))
    assert example.admitted(1_010, api_key="one", ip="192.0.2.1") == 1_000
    assert example.admitted(1_010, api_key="two", ip="192.0.2.1") == 1_000
    assert sum(example.admitted(1, api_key=f"made up {n}", ip="192.0.2.2") for n in range(1_010)) == 1_000
    assert example.admitted(1, ip="192.0.2.2") == 0
    assert example.admitted(1, ip="::ffff:192.0.2.2") == 0
    assert example.admitted(1, ip="192.0.2.3") == 1


def test_each_endpoint_has_its_own_limit_and_all_have_one_together() -> None:
    example = Example("per-endpoint")
    assert example.admitted(30, user="u", path="/v1/search/books") == 20
    assert example.admitted(30, user="u", path="/v1/reports/export", method="POST") == 5
    assert example.admitted(700, user="u", path="/v1/else") == 600 - 25


def test_free_paid_and_enterprise_keys() -> None:
    tiers = {"free": 100, "paid": 1_000, "enterprise": 1_000}  # enterprise: its burst, at one instant
    example = Example("tiers", **{tier: KeyRecord("acme", tier) for tier in tiers})
    for tier, most in tiers.items():
        assert example.admitted(most + 5, api_key=tier, ip="192.0.2.1", path="/v1/x") == most
    assert example.admitted(70, api_key="none", tier="enterprise", ip="192.0.2.1", path="/v1/x") == 60
    assert example.admitted(200, ip="192.0.2.1", path="/health") == 200


def test_an_interval_between_two_and_an_exact_window() -> None:
    example = Example("min-interval")
    vote = {"user": "u", "path": "/v1/votes", "method": "POST"}
    assert example.admitted(3, **vote) == 1
    assert example.enforcer.check(vote).reason == "too_close"
    passed = 1
    for _ in range(110):
        example.clock.advance(0.1)
        passed += example.admitted(1, **vote)
    assert passed == 100
    assert example.enforcer.check(vote).reason == "rate"


def test_fifty_at_a_time_for_every_user() -> None:
    example = Example("concurrency")
    holds = [example.enforcer.hold({"user": "u"}) for _ in range(51)]
    assert [bool(hold) for hold in holds] == [True] * 50 + [False]
    assert example.enforcer.hold({"user": "v"})
    holds[0].release()
    assert example.enforcer.hold({"user": "u"})


def test_address_user_and_endpoint_each_and_together() -> None:
    example = Example("composite")
    one = {"ip": "192.0.2.1", "user": "u", "endpoint": "/a"}
    assert example.admitted(40, **one) == 30
    assert example.enforcer.check(one).rule == "per-user-at-an-endpoint"
    assert sum(example.admitted(30, **{**one, "endpoint": f"/{n}"}) for n in range(10)) == 200 - 30
    assert example.enforcer.check({**one, "endpoint": "/new"}).rule == "per-user"
    assert sum(example.admitted(30, ip="192.0.2.1", user=f"u{n}", endpoint="/a") for n in range(10)) == 300 - 200
    assert example.enforcer.check({**one, "user": "new"}).rule == "per-address"


def test_a_blocklist_and_an_exemption() -> None:
    example = Example("blocklist")
    for blocked in ({"ip": "203.0.113.9"}, {"ip": "2001:db8:bad::1"}, {"ip": "192.0.2.1", "user_agent": "badbot/2"}):
        ruling = example.enforcer.check(blocked)
        assert (bool(ruling), ruling.reason, ruling.message) == (False, "blocked", "This address is blocked.")
    assert example.admitted(200, ip="198.51.100.1") == 200
    assert example.admitted(110, ip="192.0.2.1") == 100


def test_five_logins_for_an_address_and_for_an_account_however_it_is_spelt() -> None:
    example = Example("logins")
    login = {"path": "/login", "method": "POST"}
    spellings = ("José", "jose\u0301", "JOSÉ", "JoSe\u0301", "josé", "José")
    tries = [example.admitted(1, ip=f"192.0.2.{n}", account=name, **login) for n, name in enumerate(spellings)]
    assert tries == [1, 1, 1, 1, 1, 0]
    assert example.admitted(10, ip="192.0.2.99", account="else", **login) == 5
    assert example.enforcer.rules.match(login, 0).course.on_failure == "closed"


def test_a_cost_from_the_request_and_an_exception_until_friday() -> None:
    example = Example("tokens", a=KeyRecord("acme"), g=KeyRecord("globex"))
    ask = {"path": "/v1/completions", "tokens": 8_000}
    assert example.admitted(20, api_key="g", **ask) == 12
    assert example.admitted(200, api_key="a", **ask) == 125
    example.clock.set(datetime(2026, 6, 5, 16, tzinfo=UTC).timestamp())
    assert example.enforcer.check({"api_key": "a", **ask}).limit == 100_000


def test_a_shared_counter_and_a_stricter_limit_on_trial() -> None:
    example = Example("shadow")
    assert example.admitted(60, user="u", path="/v1/reports", method="GET") == 60
    assert example.admitted(60, user="u", path="/v1/exports", method="GET") == 40
    posts = [example.enforcer.check({"user": "v", "path": "/v1/x", "method": "POST"}) for _ in range(12)]
    assert all(posts)
    assert [bool(post.would_refuse) for post in posts] == [False] * 10 + [True] * 2


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: str(path.stem))
def test_every_example_can_be_enforced_and_explained(path: Path) -> None:
    enforcer = Enforcer(RuleSet(load(path)), Limiter())
    assert str(enforcer.explain({"path": "/v1/x", "user": "u", "ip": "192.0.2.1"}))
