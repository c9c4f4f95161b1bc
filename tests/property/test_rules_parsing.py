"""Whatever the bytes: rules, or a list of faults. Nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.errors import InvalidRules
from penstock.rules import document
from penstock.rules.model import RuleFile
from penstock.rules.parser import parse

EXAMPLES = [path.read_bytes() for path in sorted((Path(__file__).parents[2] / "docs/examples/rules").glob("*.yaml"))]
FIELDS = [
    *RuleFile.model_fields,
    *("id", "match", "key", "quota", "cost", "tiers", "mode", "order", "stop", "response", "tags", "action", "shared"),
    *("for", "until", "rule", "entry", "most", "least", "by", "any", "all", "not", "cidr", "glob", "prefix", "in"),
]
SCALARS = (
    *(None, True, False, 0, 1, -1, 100, 10**30, 1.5, "", " ", "x", "é\u2028", "a" * 2_000, "\x7f"),
    *("100/minute", "1/day calendar", "5 concurrent", "api_key | ip", "10.0.0.0/8", "::/0", "20ms", "limit", "deny"),
    *("2026-06-05T18:00:00Z", "0001-01-01T00:00:00+23:59", "api", "shadow", "***", "/v1/*"),
)
seeds = st.integers(0, 2**32).map(Random)  # drawing such data piece by piece costs ten times what parsing it does


def _made(random: Random, depth: int = 3) -> Any:
    """Anything that JSON can say, made of what rules are made of."""
    kind = random.random()
    if not depth or kind < 0.4:
        return random.choice(SCALARS)
    if kind < 0.6:
        return [_made(random, depth - 1) for _ in range(random.randrange(4))]
    return {random.choice(FIELDS): _made(random, depth - 1) for _ in range(random.randrange(4))}


def _check(content: bytes | str) -> None:
    """Rules, or faults that can be said, each on one line and about a line that there is (or just behind the last)."""
    try:
        assert isinstance(parse(content), RuleFile)
        return
    except InvalidRules as error:
        faults = error.faults
    text = content.decode("latin-1") if isinstance(content, bytes) else content
    assert faults
    for fault in faults:
        assert str(fault).isprintable(), str(fault)
        assert 0 <= fault.line <= len(text.splitlines()) + 2


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_parsed_or_refused(content: bytes) -> None:
    _check(content)


@given(st.text(alphabet="abc:-[]{}#&*!|>'\"%@`,? \t\n\ud800\u2028é0", max_size=60))
def test_arbitrary_yaml_is_parsed_or_refused(content: str) -> None:
    _check(content)


@given(seeds)
def test_arbitrary_data_is_read_as_rules_or_refused(random: Random) -> None:
    _check(json.dumps({random.choice(FIELDS): _made(random), "rules": _made(random), "overrides": _made(random)}))


@given(seeds)
def test_a_rule_with_any_field_replaced_is_read_or_refused(random: Random) -> None:
    rule = {"id": "api", "key": "ip", "quota": "100/minute", random.choice(FIELDS): _made(random)}
    override = {"rule": "api", "for": {"owner": "x"}, "quota": "1/minute", "until": "2026-06-05T18:00:00Z"}
    override[random.choice(FIELDS)] = _made(random)
    _check(json.dumps({"rules": [rule], "overrides": [override]}))


@given(seeds)
def test_rules_written_as_json_are_read_alike(random: Random) -> None:
    """JSON is YAML, so rules may come from programs that write JSON."""
    value = {"all": _made(random)}
    read = document.read(json.dumps(value))
    assume(read.whole and not read.flaws and "1.5" not in str(value))  # null is refused, and a fraction is a text
    assert json.loads(json.dumps(read.data), parse_int=str) == json.loads(json.dumps(value), parse_int=str)


@given(st.sampled_from(EXAMPLES), st.data())
def test_a_damaged_file_is_read_or_refused(content: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, min(len(content), start + 20)))
    _check(content[:start] + data.draw(st.binary(max_size=4)) + content[end:])
