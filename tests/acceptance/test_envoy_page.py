"""What docs/envoy.md says is true, and what envoyproxy/ratelimit's own documentation promises holds here as well."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.rules.parser import parse
from penstock.service.envoy import config_files
from penstock.service.envoy.environment import VARIABLES
from tests.unit.envoy.support import OK, OVER, Bench

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/envoy.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_variables_are_listed_as_they_are_read() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.*) \|$", PAGE, re.MULTILINE)
    assert dict(rows) == VARIABLES


def test_every_key_is_explained() -> None:
    for key in (*config_files.ROOT, *config_files.DESCRIPTOR, *config_files.RATE_LIMIT):
        assert re.search(rf"^\| .*`(rate_limit\.)?{key}[`.]", PAGE, re.MULTILINE), key


def test_the_shown_filter_is_that_of_the_complete_configuration() -> None:
    complete = " ".join((ROOT / "deploy/envoy-rls.yaml").read_text(encoding="utf-8").split())
    shown = next(block for block in BLOCKS if block.startswith("http_filters"))
    for line in shown.splitlines():
        assert " ".join(line.split()) in complete


def test_the_shown_rules_are_rules() -> None:
    (rules,) = [block for block in BLOCKS if block.startswith("rules:")]
    assert [rule.id for rule in parse(rules).rules] == ["per-address"]


def test_the_shown_configurations_do_what_the_page_says() -> None:
    edge, payments = [Bench(block) for block in BLOCKS if block.startswith("domain:")]
    assert edge.codes(11, "edge", {"remote_address": "192.0.2.7"}) == [OK] * 10 + [OVER]
    assert edge.codes(1, "edge", {"remote_address": "192.0.2.66"}) == [OVER]
    assert edge.codes(11, "edge", {"remote_address": "10.0.0.1"}) == [OK] * 11
    paths = [{"api_key": "k", "path": f"/v1/search{number}"} for number in range(21)]
    assert [edge.one("edge", path).overall_code for path in paths] == [OK] * 20 + [OVER]
    assert edge.one("edge", {"api_key": "k", "path": "/v1/other"}).overall_code == OK
    assert edge.codes(1_001, "edge", {"api_key": "k"}) == [OK] * 1_000 + [OVER]
    assert edge.codes(1, "edge", {"api_key": "k"}, {"plan": "gold"}) == [OK]
    assert payments.codes(6, "payments", {"card": "c"}) == [OK] * 5 + [OVER]


# ---------------------------------------------------------------- what the original's documentation promises


def _limit(requests: int, unit: str = "day", **more: str) -> dict[str, Any]:
    return {"unit": unit, "requests_per_unit": requests, **more}


def _bench(*descriptors: dict[str, Any]) -> Bench:
    return Bench(json.dumps({"domain": "shop", "descriptors": list(descriptors)}))


def test_entry_has_limits_per_value() -> None:
    bench = _bench(
        {"key": "table", "value": "users", "rate_limit": _limit(3, "second")},
        {"key": "table", "value": "rest", "rate_limit": _limit(2, "second")},
    )
    assert bench.codes(4, "shop", {"table": "users"}) == [OK, OK, OK, OVER]
    assert bench.codes(3, "shop", {"table": "rest"}) == [OK, OK, OVER]
    assert bench.codes(9, "shop", {"table": "orders"}) == [OK] * 9  # no such value, and no bare key


def test_nested_and_plain_entries_work_in_one_request() -> None:
    bench = _bench(
        {"key": "kind", "value": "advert", "descriptors": [{"key": "phone", "rate_limit": _limit(2)}]},
        {"key": "phone", "rate_limit": _limit(4)},
    )
    advert = {"kind": "advert", "phone": "555"}, {"phone": "555"}
    assert bench.codes(3, "shop", *advert) == [OK, OK, OVER]
    assert bench.codes(2, "shop", {"phone": "555"}) == [OK, OVER]  # adverts counted here too
    assert bench.codes(9, "shop", {"kind": "receipt", "phone": "555"}) == [OK] * 9


def test_every_address_is_limited_and_one_is_exempt() -> None:
    bench = _bench(
        {"key": "remote_address", "rate_limit": _limit(2, "second")},
        {"key": "remote_address", "value": "192.0.2.5", "rate_limit": _limit(0, "second")},
    )
    assert bench.codes(1, "shop", {"remote_address": "192.0.2.5"}) == [OVER]
    assert bench.codes(3, "shop", {"remote_address": "192.0.2.6"}) == [OK, OK, OVER]


def test_a_listed_value_without_a_limit_is_exempt() -> None:
    bench = _bench(
        {"key": "remote_address", "rate_limit": _limit(1)},
        {"key": "remote_address", "value": "192.0.2.9"},
    )
    assert bench.codes(5, "shop", {"remote_address": "192.0.2.9"}) == [OK] * 5
    assert bench.codes(2, "shop", {"remote_address": "192.0.2.8"}) == [OK, OVER]


def test_unlimited_values_beside_limited_ones() -> None:
    bench = _bench(
        {"key": "backend", "value": "directory", "rate_limit": _limit(1, "second")},
        {"key": "backend", "value": "cloud", "rate_limit": {"unlimited": True}},
    )
    assert bench.codes(2, "shop", {"backend": "directory"}) == [OK, OVER]
    assert bench.codes(9, "shop", {"backend": "cloud"}) == [OK] * 9


def test_a_specific_limit_in_place_of_a_general_one() -> None:
    bench = _bench(
        {"key": "user", "rate_limit": _limit(1, name="general")},
        {"key": "user", "value": "bob", "rate_limit": _limit(3, name="bob") | {"replaces": [{"name": "host"}]}},
        {"key": "host", "rate_limit": _limit(1, name="host")},
    )
    bob = {"user": "bob"}, {"host": "h"}
    assert bench.codes(4, "shop", *bob) == [OK, OK, OK, OVER]
    assert bench.codes(2, "shop", {"user": "eve"}, {"host": "h"}) == [OK, OVER]


def test_shadows_are_counted_and_reported() -> None:
    bench = _bench(
        {"key": "kind", "shadow_mode": True, "rate_limit": _limit(1)},
        {"key": "kind", "value": "strict", "rate_limit": _limit(1)},
    )
    assert bench.codes(3, "shop", {"kind": "new"}) == [OK] * 3
    assert bench.codes(2, "shop", {"kind": "strict"}) == [OK, OVER]
    assert ("shop.kind", "shadow_mode", 2) in list(bench.method.counts.read())


@pytest.mark.parametrize("shared", [False, True])
def test_patterns_count_by_value_unless_they_share(shared: bool) -> None:
    bench = _bench({"key": "path", "value": "/files/*", "share_threshold": shared, "rate_limit": _limit(1)})
    assert bench.codes(2, "shop", {"path": "/files/a"}) == [OK, OVER]
    assert bench.codes(1, "shop", {"path": "/files/b"}) == [OVER if shared else OK]
    assert bench.codes(9, "shop", {"path": "/other"}) == [OK] * 9


def test_values_show_in_metrics_where_that_is_asked_for() -> None:
    bench = _bench(
        {"key": "a", "value_to_metric": True, "descriptors": [{"key": "b", "rate_limit": _limit(1)}]},
        {"key": "c", "detailed_metric": True, "rate_limit": _limit(1)},
        {"key": "d", "rate_limit": _limit(1)},
    )
    bench.one("shop", {"a": "1", "b": "2"}, {"c": "3"}, {"d": "4"})
    titles = {count.title for count in bench.method.counts.read()}
    assert titles == {"shop.a_1.b", "shop.c_3", "shop.d"}
