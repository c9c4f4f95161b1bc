"""The published JSON Schema is what the model says, and agrees with the parser on shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from penstock.rules import document
from penstock.rules.schema import schema, text

ROOT = Path(__file__).resolve().parents[3]
MISTAKES = Path(__file__).parent / "mistakes"
EXAMPLES = sorted((ROOT / "docs" / "examples" / "rules").glob("*.yaml"))

SHAPELESS = (
    "unknown_field",
    "unknown_top_level_field",
    "rules_not_a_list",
    "rule_not_a_mapping",
    "missing_fields",
    "bad_id",
    "quota_a_number",
    "no_quota_in_list",
    "empty_match",
    "match_a_text",
    "unknown_test",
    "match_on_empty_text",
    "any_without_a_list",
    "present_a_text",
    "unknown_mode",
    "order_a_text",
    "stop_a_word",
    "cost_of_zero",
    "cost_with_a_fraction",
    "cost_without_most",
    "no_tiers",
    "tiers_without_quota",
    "bad_deadline",
    "unknown_priority",
    "bad_tags",
    "bad_ipv6_prefix",
    "override_without_an_end",
    "override_for_nobody",
)
"""Mistakes that show in the shape of a file, so that an editor can point them out."""


def test_the_published_schema_is_what_the_model_says() -> None:
    published = (ROOT / "docs" / "penstock.schema.json").read_text(encoding="utf-8")
    assert published == text(), "run `penstock rules schema > docs/penstock.schema.json`"


def test_every_reference_in_the_schema_resolves() -> None:
    made = schema()
    Draft202012Validator.check_schema(made)
    references = {part.split('"')[0] for part in json.dumps(made).split('"$ref": "#/$defs/')[1:]}
    assert references == set(made["$defs"])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_valid_files_match_the_schema(example: Path) -> None:
    assert [error.message for error in Draft202012Validator(schema()).iter_errors(_data(example))] == []


@pytest.mark.parametrize("name", SHAPELESS)
def test_a_mistake_that_shows_in_the_shape_is_one_for_the_schema_too(name: str) -> None:
    assert not Draft202012Validator(schema()).is_valid(_data(MISTAKES / f"{name}.yaml"))


def test_every_field_is_described() -> None:
    made = schema()
    for model in (made, *made["$defs"].values()):
        for name, field in model.get("properties", {}).items():
            assert field.get("description"), name


def _data(path: Path) -> object:
    return json.loads(json.dumps(document.read(path.read_bytes()).data))
