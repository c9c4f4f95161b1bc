"""Every mistake that one can make in a file of rules has a file here, and beside it exactly what is said of it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.errors import InvalidInput, InvalidRules
from penstock.rules.parser import load, parse

MISTAKES = sorted((Path(__file__).parent / "mistakes").glob("*.yaml"))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda path: path.stem)
def test_each_mistake_has_exactly_this_message(mistake: Path) -> None:
    with pytest.raises(InvalidRules) as caught:
        load(mistake)
    assert str(caught.value).splitlines() == mistake.with_suffix(".txt").read_text(encoding="utf-8").splitlines()


def test_every_mistake_has_a_message() -> None:
    assert len(MISTAKES) > 60
    words = {path.stem for path in MISTAKES[0].parent.glob("*.txt")}
    assert words == {path.stem for path in MISTAKES}


def test_the_sound_file_that_the_mistakes_are_made_in_is_read() -> None:
    rules = parse("rules:\n  - id: api\n    key: ip\n    quota: 100/minute\n")
    assert [rule.id for rule in rules.rules] == ["api"]


def test_a_fault_can_be_taken_apart() -> None:
    with pytest.raises(InvalidRules) as caught:
        parse("rules:\n  - id: api\n    key: ip\n    quota: 1/eon\n", "limits.yaml")
    (fault,) = caught.value.faults
    assert (fault.file, fault.line, fault.path, fault.value) == ("limits.yaml", 4, "rules[0].quota", "'1/eon'")
    assert fault.problem == "unknown unit 'eon' at column 3"
    assert fault.expected.startswith("microsecond, millisecond, second")


def test_invalid_rules_are_an_input_error_and_travel_between_processes() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse("rules: []")
    assert isinstance(caught.value, InvalidRules)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.faults == caught.value.faults
    assert str(again) == str(caught.value)


def test_identities_in_overrides_are_in_no_message() -> None:
    with pytest.raises(InvalidRules) as caught:
        load(MISTAKES[0].parent / "override_for_nobody.yaml")
    assert "never_quoted" not in str(caught.value)
