"""A set of rules that was replaced is freed by later requests, a little by each."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.rules.ruleset import AT_ONCE, MOST, RuleSet, retire, retired, sweep
from tests.unit.rules.support import NOW, rule_set

MANY = 600


@pytest.fixture(autouse=True)
def _nothing_left_from_others() -> Iterator[None]:
    retired.clear()
    yield
    retired.clear()


def large() -> RuleSet:
    shapes: list[dict[str, Any]] = [
        {"path": {"prefix": "/v1/{0}/"}},
        {"path": "/v2/{0}"},
        {"path": {"glob": "/v3/{0}/*"}},
        {"ip": {"cidr": "10.0.{0}.0/24"}},
    ]
    return rule_set(
        *(
            {"id": f"{kind}-{number}", "match": _filled(shape, number)}
            for kind, shape in enumerate(shapes)
            for number in range(MANY if kind < 3 else 250)
        )
    )


def _filled(shape: Any, number: int) -> Any:
    if isinstance(shape, dict):
        return {name: _filled(value, number) for name, value in shape.items()}
    return shape.format(number)


@pytest.mark.untraced
def test_the_rules_of_a_dropped_set_are_freed_by_later_requests() -> None:
    old, current = large(), rule_set({"id": "current"})
    first, last = weakref.ref(old.file.rules[0]), weakref.ref(old.file.rules[-1])
    del old
    assert first() is not None
    requests = 0
    while retired:
        assert [rule.id for rule in current.match({}, NOW).course.limits] == ["current"]
        requests += 1
    assert requests > 3 * MANY / AT_ONCE
    assert (first(), last()) == (None, None)


@pytest.mark.untraced
def test_a_set_in_use_stays_whole() -> None:
    rules = large()
    held = rules
    del rules
    assert not retired
    descriptor = {"path": "/v1/7/x", "ip": "10.0.7.1"}
    assert [rule.id for rule in held.match(descriptor, NOW).course.limits] == ["0-7", "3-7"]


def test_a_plan_outlives_its_set() -> None:
    rules = large()
    plan = rules.match({"path": "/v2/7"}, NOW)
    del rules
    while retired:
        sweep()
    assert [rule.id for rule in plan.owners] == ["1-7"]


def test_small_sets_are_freed_at_once_and_sweeping_nothing_does_nothing() -> None:
    retire([1, 2, 3])
    assert not retired
    sweep()


def test_a_set_that_was_never_finished_leaves_nothing() -> None:
    RuleSet.__new__(RuleSet).__del__()
    assert not retired


@pytest.mark.untraced
def test_sets_that_are_replaced_without_requests_do_not_pile_up() -> None:
    for version in range(MOST):
        rule_set(*({"id": f"r{number}", "match": {"path": f"/{version}/{number}"}} for number in range(300)))
    assert len(retired) <= MOST
    retired.clear()
