"""From a descriptor to what is asked: which rules, whose counter, which quota, what cost."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import Quota
from penstock.clock import SECOND
from penstock.errors import CostExceedsLimit, InvalidCost, InvalidRequest
from penstock.model import check_key
from tests.unit.rules.support import NOW, asks_of, rule_set

IP = {"ip": "192.0.2.7"}


def asked(rules: Any, descriptor: dict[str, Any], now: int = NOW, cost: int = 1) -> list[tuple[Any, str, int]]:
    return [(ask.key, str(ask.quota), ask.cost) for ask in asks_of(rules.match(descriptor, now, cost))]


def matching(rules: Any, **descriptor: Any) -> list[str]:
    return [rule.id for rule in rules.match(descriptor, NOW).course.limits]


# ---------------------------------------------------------------- which rules


def test_rules_apply_by_order_then_as_they_stand_in_the_file() -> None:
    rules = rule_set({"id": "third", "order": 5}, {"id": "first", "order": -1}, {"id": "second", "order": -1})
    assert matching(rules, ip="192.0.2.7") == ["first", "second", "third"]


def test_a_rule_that_stops_is_the_last_but_only_where_it_matches() -> None:
    rules = rule_set({"id": "search", "match": {"path": "/search"}, "stop": True}, {"id": "rest"})
    assert matching(rules, path="/search") == ["search"]
    assert matching(rules, path="/other") == ["rest"]


def test_a_rule_that_is_off_is_not_there() -> None:
    assert matching(rule_set({"id": "off", "mode": "off", "stop": True}, {"id": "on"})) == ["on"]


@pytest.mark.parametrize("order", [-1, 1])
def test_a_rule_that_denies_or_allows_decides_alone_wherever_it_stands(order: int) -> None:
    for action in ("deny", "allow"):
        rules = rule_set({"id": "limit"}, {"id": "alone", "order": order, "action": action, "match": IP})
        plan = rules.match(IP, NOW)
        assert (plan.posed, plan.course.decided_by and plan.course.decided_by.id) == ((), "alone")
        assert matching(rules, ip="192.0.2.8") == ["limit"]


def test_of_several_that_decide_alone_the_first_does() -> None:
    rules = rule_set(
        {"id": "deny", "order": 1, "action": "deny", "match": IP}, {"id": "allow", "action": "allow", "match": IP}
    )
    decided_by = rules.match(IP, NOW).course.decided_by
    assert decided_by is not None
    assert decided_by.id == "allow"


def test_a_stop_before_it_keeps_a_rule_from_denying() -> None:
    rules = rule_set({"id": "limit", "stop": True}, {"id": "deny", "order": 1, "action": "deny", "match": IP})
    assert matching(rules, **IP) == ["limit"]


def test_a_denial_in_shadow_mode_only_reports() -> None:
    rules = rule_set({"id": "limit"}, {"id": "deny", "action": "deny", "mode": "shadow", "match": IP})
    course = rules.match(IP, NOW).course
    assert course.decided_by is None
    assert [rule.id for rule in course.would_block] == ["deny"]
    assert [rule.id for rule in course.limits] == ["limit"]


def test_the_strictest_failure_behaviour_shortest_deadline_and_highest_priority_of_all_rules_hold() -> None:
    rules = rule_set(
        {"id": "a", "on_failure": "open", "deadline": "20ms", "priority": "low"},
        {"id": "b", "on_failure": "closed", "priority": "high"},
        {"id": "c", "on_failure": "local", "deadline": "5ms"},
        {"id": "shadow", "on_failure": "closed", "mode": "shadow", "match": {"path": "/only"}},
    )
    course = rules.match(IP, NOW).course
    assert (course.on_failure, course.deadline, course.priority) == ("closed", 5_000, "high")
    bare = rule_set({"id": "a"}).match(IP, NOW).course
    assert (bare.on_failure, bare.deadline, bare.priority) == (None, None, "normal")


def test_a_rule_in_shadow_mode_decides_nothing_about_failures() -> None:
    rules = rule_set({"id": "a", "on_failure": "open"}, {"id": "b", "mode": "shadow", "on_failure": "closed"})
    assert rules.match(IP, NOW).course.on_failure == "open"


def test_the_same_request_is_remembered_and_another_is_not_taken_for_it() -> None:
    rules = rule_set({"id": "a", "match": {"path": "/a"}}, {"id": "b", "match": {"path": "/b"}})
    for _ in range(2):
        assert matching(rules, path="/a") == ["a"]
        assert matching(rules, path="/b") == ["b"]
        assert matching(rules) == []


def test_what_is_remembered_is_bounded_in_number_and_in_size() -> None:
    rules = rule_set({"id": "a", "match": {"path": {"prefix": "/"}}})
    for number in range(10_000):
        rules.match({"path": f"/{number}"}, NOW)
    assert len(rules._remembered) <= 4_096
    rules._remembered.clear()
    assert matching(rules, path="/" * 100_000) == ["a"]
    assert not rules._remembered


# ---------------------------------------------------------------- whose counter


def test_two_rules_never_share_a_counter_unless_they_say_so() -> None:
    rules = rule_set({"id": "a"}, {"id": "b"}, {"id": "c", "shared": "a"})
    keys = [ask.key for ask in asks_of(rules.match(IP, NOW))]
    assert len(set(keys)) == 3


def test_a_rule_with_a_name_that_looks_like_anothers_key_has_another_counter() -> None:
    one = asks_of(rule_set({"id": "a", "key": ["user", "ip"]}).match({"user": "u", "ip": "192.0.2.7"}, NOW))[0].key
    two = asks_of(rule_set({"id": "a", "key": "user"}).match({"user": "u ip=192.0.2.7"}, NOW))[0].key
    assert one != two


def test_the_first_entry_present_makes_the_key_with_its_name() -> None:
    rules = rule_set({"id": "a", "key": "api_key | ip"})
    assert asked(rules, {"api_key": "192.0.2.7", "ip": "192.0.2.7"})[0][0] == "a api_key=192.0.2.7"
    assert asked(rules, IP)[0][0] == "a ip=192.0.2.7"
    assert asked(rules, {"api_key": "", **IP})[0][0] == "a ip=192.0.2.7"


def test_requests_without_the_entries_share_one_counter() -> None:
    rules = rule_set({"id": "a", "key": ["api_key | ip", "user"]})
    assert asked(rules, {})[0][0] == asked(rules, {"ip": "nowhere", "user": ""})[0][0] == ("a", "api_key|ip", "user")


def test_an_empty_key_is_one_counter_for_all_requests() -> None:
    rules = rule_set({"id": "a", "key": []})
    assert asked(rules, IP)[0][0] == asked(rules, {})[0][0] == "a"


def test_editing_match_tiers_or_amounts_keeps_the_counter() -> None:
    before = rule_set({"id": "a", "quota": "100/minute"})
    after = rule_set(
        {
            "id": "a",
            "match": {"path": {"prefix": "/"}},
            "quota": "50/minute",
            "tiers": {"quota": {"paid": "900/minute"}},
        }
    )
    first = asks_of(before.match(IP, NOW))[0]
    for descriptor in ({"path": "/v1"}, {"path": "/v1", "tier": "paid"}):
        second = asks_of(after.match(descriptor | IP, NOW))[0]
        assert (second.key, second.quota.identity) == (first.key, first.quota.identity)


def test_rules_that_share_a_counter_ask_it_once_by_the_smallest_limit_and_largest_cost() -> None:
    rules = rule_set(
        {"id": "a", "shared": "s", "quota": "100/minute", "cost": 3},
        {"id": "b", "shared": "s", "quota": "50/minute", "cost": 2},
        {"id": "c", "shared": "s", "quota": "10/minute", "mode": "shadow"},
    )
    plan = rules.match(IP, NOW)
    assert asked(rules, IP) == [("=s ip=192.0.2.7", "50/minute", 3)]
    assert [rule.id for rule in plan.owners] == ["b"]


def test_a_long_value_is_digested_so_that_keys_stay_short_and_different() -> None:
    rules = rule_set({"id": "a", "key": "user"}, {"id": "b", "key": ["user", "ip"]})
    long, other = "x" * 100_000, "x" * 99_999 + "y"
    keys = [ask.key for text in (long, other) for ask in asks_of(rules.match({"user": text, **IP}, NOW))]
    assert len(set(keys)) == 4
    for key in keys:
        assert check_key(key) == key
        assert len(str(key)) < 300


@pytest.mark.parametrize("value", ["\x00", "a\r\nb", "{tag}", "‮abc", "\ud800", "é" * 100, "😀" * 190, "😀" * 5_000])
def test_hostile_texts_make_sound_keys(value: str) -> None:
    for key in [
        ask.key
        for ask in asks_of(
            rule_set({"id": "a", "key": "user"}, {"id": "b", "key": ["user", "ip"]}).match({"user": value}, NOW)
        )
    ]:
        assert check_key(key) == key


# ---------------------------------------------------------------- which quota


TIERED = {
    "id": "a",
    "key": "owner | ip",
    "quota": "60/minute",
    "tiers": {"quota": {"free": "100/minute", "paid": ["1000/minute", "10/second name burst"]}},
}


def test_the_tier_chooses_the_quotas_and_without_one_the_rules_own_apply() -> None:
    rules = rule_set(TIERED)
    assert [text for _, text, _ in asked(rules, {"tier": "free"})] == ["100/minute"]
    assert [text for _, text, _ in asked(rules, {"tier": "paid"})] == ["1000/minute", "10/second name burst"]
    assert [text for _, text, _ in asked(rules, {"tier": "gold"})] == ["60/minute"]
    assert [text for _, text, _ in asked(rules, {})] == ["60/minute"]


def test_an_override_holds_for_its_own_until_its_instant() -> None:
    until = datetime(2026, 6, 5, 18, tzinfo=UTC)
    instant = int(until.timestamp()) * SECOND
    rules = rule_set(
        TIERED,
        overrides=[
            {
                "rule": "a",
                "for": {"owner": ["acme", "umbrella"], "tier": "free"},
                "quota": "5000/minute",
                "until": until,
            }
        ],
    )
    special = {"owner": "acme", "tier": "free"}
    assert asked(rules, special, instant - 1)[0][1] == "5000/minute"
    assert asked(rules, special, instant)[0][1] == "100/minute"
    assert asked(rules, {"owner": "acme", "tier": "paid"}, instant - 1)[0][1] == "1000/minute"
    assert asked(rules, {"owner": "globex", "tier": "free"}, instant - 1)[0][1] == "100/minute"


def test_the_first_of_several_overrides_holds() -> None:
    until = datetime(2026, 6, 5, tzinfo=UTC)
    rules = rule_set(
        {"id": "a", "key": "owner"},
        overrides=[
            {"rule": "a", "for": {"owner": "acme"}, "quota": quota, "until": until}
            for quota in ("5/minute", "9/minute")
        ],
    )
    assert asked(rules, {"owner": "acme"})[0][1] == "5/minute"


def test_a_minimal_interval_is_a_counter_of_its_own_and_costs_one() -> None:
    rules = rule_set({"id": "a", "quota": "10/minute min_interval 2s", "cost": 3})
    assert [(text, cost) for _, text, cost in asked(rules, IP)] == [("10/minute", 3), ("min_interval 2s", 1)]


# ---------------------------------------------------------------- what cost


@pytest.mark.parametrize(
    ("tokens", "cost"),
    [
        (None, 20),
        ("", 20),
        ("50", 50),
        (50, 50),
        ("0", 10),
        ("5", 10),
        ("500", 400),
        ("9" * 5_000, 400),
        ("-5", 400),
        ("1.5", 400),
        ("many", 400),
        ("٣", 400),
        ("²", 400),
        (" 50", 400),
    ],
)
def test_a_cost_from_an_entry_is_held_between_its_bounds(tokens: Any, cost: int) -> None:
    rules = rule_set(
        {"id": "a", "quota": "1000/minute", "cost": {"entry": "tokens", "least": 10, "most": 400, "default": 20}}
    )
    assert asked(rules, {"tokens": tokens})[0][2] == cost


def test_the_callers_cost_counts_as_often_as_the_rule_says() -> None:
    rules = rule_set({"id": "a", "cost": 5, "quota": "100/minute"}, {"id": "b", "quota": "2 concurrent"})
    assert [cost for _, _, cost in asked(rules, IP, cost=3)] == [15, 1]


@pytest.mark.parametrize("cost", [0, -1, True, 1.0, "1", None, 10**400])
def test_a_cost_that_is_none_is_refused(cost: Any) -> None:
    with pytest.raises(InvalidCost):
        rule_set({"id": "a"}).match(IP, NOW, cost)


def test_a_cost_that_never_fits_is_an_error_and_not_a_refusal() -> None:
    with pytest.raises(CostExceedsLimit, match="admits at most 100"):
        rule_set({"id": "a"}).match(IP, NOW, 101)


# ---------------------------------------------------------------- the set


def test_the_version_names_the_content() -> None:
    def version(**fields: Any) -> str:
        return rule_set({"id": "a", **fields}).version

    assert version() == version()
    until = datetime(2026, 6, 5, tzinfo=UTC)
    overridden = [
        rule_set(
            {"id": "a"}, overrides=[{"rule": "a", "for": {"owner": owner}, "quota": "1/minute", "until": until}]
        ).version
        for owner in ("acme", "globex")
    ]
    others = [
        version(quota="101/minute"),
        version(match={"path": "/a"}),
        version(match={"path": {"prefix": "/a"}}),
        version(tags=["x"]),
        rule_set({"id": "a"}, entries={"user": {"fold_case": True}}).version,
        *overridden,
    ]
    assert len({version(), *others}) == len(others) + 1


def test_an_empty_set_matches_nothing() -> None:
    rules = rule_set(empty=True)
    assert (len(rules), rules.match(IP, NOW).posed) == (0, ())


@pytest.mark.parametrize("descriptor", [None, "path=/v1", ["path"], 7])
def test_a_descriptor_that_is_no_mapping_is_the_callers_fault(descriptor: Any) -> None:
    with pytest.raises(InvalidRequest, match="descriptor: expected a mapping"):
        rule_set({"id": "a"}).match(descriptor, NOW)


@pytest.mark.parametrize("value", [b"bytes", ["list"], 1.5, object()])
def test_an_entry_that_is_no_text_is_the_callers_fault_and_is_not_quoted(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^entry 'user': expected text, not \w+$"):
        rule_set({"id": "a", "key": "user"}).match({"user": value}, NOW)


def test_entries_that_no_rule_looks_at_are_not_looked_at() -> None:
    assert asked(rule_set({"id": "a"}), {**IP, "other": object()})[0][0] == "a ip=192.0.2.7"


def test_quotas_of_one_text_are_one_object() -> None:
    assert asks_of(rule_set({"id": "a"}).match(IP, NOW))[0].quota is Quota.parse("100/minute")


def test_a_rule_in_shadow_mode_sets_no_deadline_and_no_priority() -> None:
    course = (
        rule_set(
            {"id": "trial", "mode": "shadow", "priority": "critical", "deadline": "1ms"},
            {"id": "api", "priority": "low", "deadline": "50ms"},
        )
        .match(IP, NOW)
        .course
    )
    assert (course.priority, course.deadline) == ("low", 50_000)


def test_of_several_overrides_that_hold_the_first_in_the_file_applies() -> None:
    until = "2100-01-01T00:00:00Z"
    whom = [{"owner": "other"}, {"tier": "gold"}, {"owner": "acme"}]
    overrides = [{"rule": "a", "for": who, "quota": f"{at}/minute", "until": until} for at, who in enumerate(whom, 1)]
    plan = rule_set({"id": "a"}, overrides=overrides).match({"owner": "acme", "tier": "gold"}, NOW)
    assert [ask.quota.limit for ask in asks_of(plan)] == [2]
