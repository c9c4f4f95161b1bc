"""docs/rules.md tells the truth: its files are sound, its table of limits is that of the code, its examples exist."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path

import pytest

from penstock import Quota
from penstock.rules import document, model, shorthand
from penstock.rules.conditions import All, Any, Cidr, Equals, Glob, Not, OneOf, Prefix, Present
from penstock.rules.model import CostFrom, Rule, RuleFile
from penstock.rules.parser import load, parse

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "rules.md").read_text(encoding="utf-8")
FILES = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = sorted((DOCS / "examples" / "rules").glob("*.yaml"))


@pytest.mark.parametrize("text", FILES)
def test_every_file_on_the_page_is_sound(text: str) -> None:
    assert isinstance(parse(text), RuleFile)


def test_the_page_shows_many_files_and_every_field() -> None:
    assert len(FILES) > 8
    for record in (RuleFile, Rule, model.Override, model.Tiers, CostFrom, model.EntryOptions, model.Response):
        for name, field in record.model_fields.items():
            assert re.search(rf"\b{field.alias or name}\b", PAGE), f"{record.__name__}.{name}"


def test_the_tests_in_the_table_of_match_can_be_read() -> None:
    rows = re.findall(r"^\| `((?:method|path|ip|api_key): .+?)` \|", PAGE, re.MULTILINE)
    assert len(rows) == 7
    for row in rows:
        parse(f"rules: [{{id: a, key: ip, quota: 1/minute, match: {{{row}}}}}]")


def test_the_bounds_on_the_page_are_those_of_the_code() -> None:
    bounds = dict(re.findall(r"^\| ([a-z `,]+) \| ([\d,]+)(?: each)? \|$", PAGE, re.MULTILINE))
    assert {name: int(number.replace(",", "")) for name, number in bounds.items()} == {
        "bytes in a file": document.MAX_BYTES,
        "values in it": document.MAX_VALUES,
        "levels of nesting": document.MAX_DEPTH,
        "rules, and overrides": model.MAX_RULES,
        "quotas of a rule, parts of a key": shorthand.MAX_QUOTAS,
        "values in a list of a `match`": shorthand.MAX_VALUES,
        "characters in a value": shorthand.MAX_VALUE,
    }
    assert shorthand.MAX_KEY_PARTS == shorthand.MAX_QUOTAS


def test_every_example_is_on_the_page_and_the_other_way_round() -> None:
    assert set(re.findall(r"\(examples/rules/(.+?)\)", PAGE)) == {path.name for path in EXAMPLES}


# ---------------------------------------------------------------- what the examples mean


def _example(name: str) -> dict[str, Rule]:
    return {rule.id: rule for rule in load(DOCS / "examples" / "rules" / f"{name}.yaml").rules}


def _quotas(*texts: str) -> tuple[Quota, ...]:
    return tuple(Quota.parse(text) for text in texts)


def test_a_thousand_a_minute_for_every_api_key_else_by_address() -> None:
    (rule,) = _example("per-api-key").values()
    assert (rule.key, rule.quotas, rule.match) == ((("api_key", "ip"),), _quotas("1000/minute"), None)


def test_each_endpoint_has_a_limit_of_its_own() -> None:
    rules = _example("per-endpoint")
    assert rules["search"].match == Prefix("path", "/v1/search")
    assert rules["export"].match == All((Glob("path", "/v1/*/export"), Equals("method", "POST")))
    assert [str(quota) for rule in rules.values() for quota in rule.quotas] == ["20/minute", "5/hour", "600/minute"]


def test_free_paid_and_enterprise() -> None:
    (rule,) = _example("tiers").values()
    assert rule.tiers is not None
    assert rule.tiers.by == "tier"
    assert rule.tiers.quotas == {
        "free": _quotas("100/minute"),
        "paid": _quotas("1000/minute"),
        "enterprise": _quotas("10000/minute", "500/second burst 1000"),
    }


def test_an_exact_window_and_a_pause_between_two() -> None:
    (rule,) = _example("min-interval").values()
    assert rule.quotas == _quotas("100/minute rolling_window min_interval 100ms")
    assert [part.algorithm for part in rule.quotas[0].parts] == ["rolling_window", "min_interval"]


def test_fifty_at_a_time_for_every_user() -> None:
    (rule,) = _example("concurrency").values()
    assert (rule.key, rule.quotas) == ((("user",),), _quotas("50 concurrent ttl 30s"))


def test_address_user_and_endpoint_each_and_together() -> None:
    rules = _example("composite")
    assert [rule.key for rule in rules.values()] == [
        (("ip",),),
        (("user",),),
        (("endpoint",),),
        (("ip",), ("user",), ("endpoint",)),
    ]
    assert rules["per-user"].match == Present("user")


def test_some_are_exempt_and_some_are_refused() -> None:
    rules = _example("blocklist")
    assert [rule.action for rule in rules.values()] == ["allow", "deny", "limit"]
    assert rules["office"].order < rules["blocklist"].order < rules["api"].order
    assert rules["office"].match == Cidr("ip", (ip_network("198.51.100.0/24"), ip_network("2001:db8:1::/48")))
    blocked = rules["blocklist"].match
    assert isinstance(blocked, Any)
    assert blocked.conditions[1] == Any((Prefix("user_agent", "badbot/"), Prefix("user_agent", "scraper/")))


def test_logins_are_closed_in_doubt() -> None:
    rules = _example("logins").values()
    assert {rule.on_failure for rule in rules} == {"closed"}
    assert {rule.response.headers for rule in rules} == {"hidden"}


def test_a_cost_that_the_request_says_and_an_exception_until_friday() -> None:
    file = load(DOCS / "examples" / "rules" / "tokens.yaml")
    assert file.rules[0].cost == CostFrom(entry="tokens", most=8000, default=500)
    assert file.rules[0].deadline == 0.02
    (override,) = file.overrides
    assert override.who == {"owner": ("acme",)}
    assert override.until_us == round(datetime(2026, 6, 5, 16, tzinfo=UTC).timestamp()) * 1_000_000


def test_a_shared_counter_and_a_limit_on_trial() -> None:
    rules = _example("shadow")
    assert rules["reports"].shared == rules["exports"].shared == "heavy"
    assert rules["stricter"].mode == "shadow"
    assert rules["stricter"].match == All((Prefix("path", "/v1/"), Not(OneOf("method", ("GET", "HEAD")))))
