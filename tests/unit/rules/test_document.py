"""What is read of YAML: few kinds of values, within bounds, each with its line."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidRules
from penstock.rules import document
from penstock.rules.faults import MAX_FLAWS
from penstock.rules.model import MAX_RULES
from penstock.rules.parser import parse


def _value(text: str) -> object:
    data = document.read(f"a: {text}").data
    assert isinstance(data, document.Mapping)
    return data["a"]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("off", "off"),
        ("no", "no"),
        ("True", "True"),
        ("true", True),
        ("false", False),
        ("0", 0),
        ("-12", -12),
        ("007", "007"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("1.10", "1.10"),
        ("1e3", "1e3"),
        (".inf", ".inf"),
        ("12:30:45", "12:30:45"),
        ("2026-01-01", "2026-01-01"),
        ("'5'", "5"),
        ('"true"', "true"),
        ("9" * 19, int("9" * 19)),
        ("9" * 5_000, "9" * 5_000),
    ],
)
def test_plain_words_are_texts(written: str, value: object) -> None:
    assert _value(written) == value
    assert type(_value(written)) is type(value)


def test_every_value_knows_its_line() -> None:
    data = document.read("rules:\n  - id: a\n    key:\n      - ip\n      - user\n").data
    assert document.line_of(data, ("rules",)) == 1
    assert document.line_of(data, ("rules", 0, "id")) == 2
    assert document.line_of(data, ("rules", 0, "key", 1)) == 5
    assert document.line_of(data, ("rules", 0, "quota")) == 2  # missing: where the rule starts
    assert document.line_of(data, ("rules", 7)) == 1


def test_a_byte_order_mark_is_no_mistake() -> None:
    assert parse(b"\xef\xbb\xbfempty: true\n").empty


def test_text_that_cannot_be_encoded_is_a_fault_with_its_line() -> None:
    with pytest.raises(InvalidRules, match=r"penstock\.yaml:2: not UTF-8"):
        parse("rules:\n  - id: \ud800\n")


def _faults(content: bytes | str) -> list[str]:
    with pytest.raises(InvalidRules) as caught:
        parse(content)
    return [str(fault) for fault in caught.value.faults]


def test_a_file_that_is_too_long_is_not_even_parsed() -> None:
    assert _faults(b"[" * (document.MAX_BYTES + 1)) == [
        "penstock.yaml: more than 8388608 bytes (expected at most 8388608)"
    ]


def test_too_many_values_stop_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_VALUES", 10)
    assert _faults("rules: [1, 2, 3, 4, 5, 6, 7, 8, 9]") == [
        "penstock.yaml:1: more than 10 values (expected at most 10)"
    ]


@pytest.mark.untraced
def test_a_deep_file_costs_no_more_than_its_first_levels() -> None:
    assert _faults("[" * 1_000_000) == ["penstock.yaml:1: more than 24 levels deep (expected at most 24 levels)"]
    assert len(_faults("? " * 100_000)) == 1


@pytest.mark.untraced
def test_too_many_rules_are_one_fault_and_are_not_looked_at() -> None:
    said = f"{MAX_RULES + 1} of them (expected at most {MAX_RULES})"
    records = "[" + "{}," * (MAX_RULES + 1) + "]"
    assert _faults(f"rules: {records}\noverrides: {records}") == [
        f"penstock.yaml:1: rules: {said}",
        f"penstock.yaml:2: overrides: {said}",
    ]


def test_an_alias_bomb_is_refused_without_unfolding() -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 60))
    faults = _faults(f"l0: &l0 [lol]\n{levels}\n")
    assert "penstock.yaml:2: l1[0]: an alias (expected the value itself: aliases are not followed)" in faults


def test_the_list_of_faults_is_bounded() -> None:
    faults = _faults("\n".join(f"field{n}: 1" for n in range(3 * MAX_FLAWS)))
    assert len(faults) == MAX_FLAWS + 1
    assert faults[-1] == "penstock.yaml: more faults than are listed (expected none)"
