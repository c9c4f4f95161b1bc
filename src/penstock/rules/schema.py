"""The JSON Schema of a file of rules, made from the model and published as docs/penstock.schema.json."""

from __future__ import annotations

import json
from typing import Any

from penstock.rules.model import RuleFile
from penstock.rules.schema_shapes import DEFINITIONS, MATCH

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NAMED = ("$defs", "patternProperties", "properties")


def schema() -> dict[str, Any]:
    """Return the schema, by which editors check and complete files of rules."""
    made: dict[str, Any] = _plain(RuleFile.model_json_schema())
    made["$defs"]["Rule"]["properties"]["match"] |= MATCH  # pydantic resolves only its own references
    made["$defs"] |= DEFINITIONS
    return {"$schema": DIALECT, "title": "Penstock rules", **made}


def text() -> str:
    """Return the schema as it is published."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _plain(shape: Any) -> Any:
    """Return a shape without titles, which only repeat names, and without null, which a file cannot contain."""
    if isinstance(shape, list):
        return [_plain(each) for each in shape]
    if not isinstance(shape, dict):
        return shape
    kept: dict[str, Any]
    kept = {name: _named(value) if name in NAMED else _plain(value) for name, value in shape.items()}
    kept = {name: value for name, value in kept.items() if not _noise(name, value)}
    alternatives = kept.get("anyOf", [])
    if {"type": "null"} in alternatives:
        rest = [each for each in alternatives if each != {"type": "null"}]
        del kept["anyOf"]
        kept |= rest[0] if len(rest) == 1 else {"anyOf": rest}
    return kept


def _named(shapes: dict[str, Any]) -> dict[str, Any]:
    """Return shapes by field names, which are not keywords: a field may be called `default`."""
    return {name: _plain(shape) for name, shape in shapes.items()}


def _noise(name: str, value: object) -> bool:
    return (name == "title" and isinstance(value, str)) or (
        name == "default" and (value is None or isinstance(value, dict))
    )
