"""The shapes of short forms in the JSON Schema of rules, for editors.

A schema checks shapes and not meanings: it accepts a quota of 100 a fortnight, which `penstock rules check` does not.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from penstock.quota.text import NAME as ENTRY_NAME
from penstock.rules.shorthand import MAX_KEY_PARTS, MAX_QUOTAS, MAX_VALUE, MAX_VALUES

Shape: TypeAlias = dict[str, Any]


def _list_of(item: Shape, most: int, least: int = 1) -> Shape:
    return {"type": "array", "items": item, "minItems": least, "maxItems": most}


def _one_or_more(item: Shape, most: int = MAX_VALUES) -> Shape:
    return {"anyOf": [item, _list_of(item, most)]}


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$"
ENTRY_PATTERN = rf"^(?!(any|all|not)$){ENTRY_NAME.pattern}$"

NAME: Shape = {"type": "string", "pattern": NAME_PATTERN}
ENTRY: Shape = {"type": "string", "pattern": ENTRY_PATTERN}
DURATION: Shape = {"type": "string", "pattern": r"^\s*[0-9]+\s*[A-Za-zµμ]+\s*$", "examples": ["20ms"]}
INSTANT: Shape = {"type": "string", "format": "date-time", "examples": ["2026-06-05T18:00:00Z"]}
VALUE: Shape = {
    "anyOf": [
        {"type": "string", "minLength": 1, "maxLength": MAX_VALUE},
        {"type": "integer"},
        {"type": "boolean"},
    ]
}

_QUOTA: Shape = {
    "type": "string",
    "minLength": 1,
    "examples": ["100/minute", "10/second burst 20", "5 concurrent ttl 30s"],
}
QUOTAS = _one_or_more(_QUOTA, MAX_QUOTAS)

_PART: Shape = {"type": "string", "minLength": 1, "examples": ["ip", "api_key | ip"]}
KEY: Shape = {"anyOf": [_PART, _list_of(_PART, MAX_KEY_PARTS, least=0)]}

WHO: Shape = {
    "type": "object",
    "propertyNames": ENTRY,
    "additionalProperties": _one_or_more(VALUE),
    "minProperties": 1,
}

MATCH: Shape = {"$ref": "#/$defs/Match"}
_TEST: Shape = {"$ref": "#/$defs/Test"}
_TEXT: Shape = {"type": "string", "minLength": 1, "maxLength": MAX_VALUE}

DEFINITIONS: dict[str, Shape] = {
    "Match": {
        "type": "object",
        "description": "Entries and what is asked of them; all of it must hold.",
        "properties": {
            "any": {"type": "array", "items": MATCH, "minItems": 1, "description": "At least one of these holds."},
            "all": {"type": "array", "items": MATCH, "minItems": 1, "description": "Every one of these holds."},
            "not": {**MATCH, "description": "This does not hold."},
        },
        "propertyNames": {"pattern": rf"^{ENTRY_NAME.pattern}$"},
        "additionalProperties": _TEST,
        "minProperties": 1,
    },
    "Test": {
        "description": "A value: equals it. A list: is one of it. Else what is named, all of it.",
        "anyOf": [
            *VALUE["anyOf"],
            _list_of(VALUE, MAX_VALUES),
            {
                "type": "object",
                "properties": {
                    "equals": {**VALUE, "description": "The entry is this text."},
                    "in": {**_list_of(VALUE, MAX_VALUES), "description": "The entry is one of these."},
                    "prefix": {**_one_or_more(VALUE), "description": "The entry starts with this, or one of these."},
                    "glob": {
                        **_one_or_more(VALUE),
                        "description": "The entry fits a pattern: * within a segment, ** across segments.",
                    },
                    "cidr": {**_one_or_more(_TEXT), "description": "The entry is an address in this network."},
                    "present": {"type": "boolean", "description": "Whether the entry is there."},
                    "not": {**_TEST, "description": "This does not hold of the entry."},
                },
                "additionalProperties": False,
                "minProperties": 1,
            },
        ],
    },
}
