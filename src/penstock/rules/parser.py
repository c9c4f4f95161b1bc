"""Parses the text of a file into a `RuleFile`, or into all of its faults.

    try:
        rules = parse(Path("penstock.yaml").read_bytes())
    except InvalidRules as error:
        for fault in error.faults:
            print(fault)  # penstock.yaml:14: rules[2].quota: '100/fortnight': unknown unit 'fortnight' ...

No content raises anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, ValidationError

from penstock.errors import Fault, InvalidRules, shown
from penstock.rules import document
from penstock.rules.document import Located
from penstock.rules.faults import HIDDEN, MAX_FLAWS, Flaw, Flawed, Path, unknown
from penstock.rules.model import (
    NAME,
    CostFrom,
    EntryOptions,
    Override,
    Response,
    Rule,
    RuleFile,
    Tiers,
    lost_overrides,
    repeated_ids,
)

DEFAULT_NAME = "penstock.yaml"

_MODELS: dict[Path, type[BaseModel]] = {
    (): RuleFile,
    ("rules",): Rule,
    ("rules", "cost"): CostFrom,
    ("rules", "tiers"): Tiers,
    ("rules", "response"): Response,
    ("overrides",): Override,
    ("entries",): EntryOptions,
}
_MISSING = {
    "id": "a name that no other rule has",
    "entry": "the name of an entry",
    "most": "the highest cost that is taken from the entry",
    "quota": "a quota, such as 100/minute",
    "rule": "the id of a rule",
    "for": "entries and their values, such as {owner: acme}",
    "until": "when it ends, such as 2026-06-05T18:00:00Z",
}
_TYPES = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "int_type": "a whole number",
    "mapping_type": "a mapping",
    "model_type": "a mapping of fields",
    "string_type": "text",
    "tuple_type": "a list",
}


def parse(content: bytes | str, file: str = DEFAULT_NAME) -> RuleFile:
    """Parse `content`; messages call it `file`."""
    data, located, whole = document.read(content)
    if whole and isinstance(data, document.Mapping):
        try:
            rules = RuleFile.model_validate(data)
            if not located:
                return rules
        except ValidationError as error:
            seen = {each.flaw.path for each in located}  # a blank or an alias was reported already
            flaws = islice(_flaws(error, data), MAX_FLAWS + 1)
            located += [Located(document.line_of(data, flaw.path), flaw) for flaw in flaws if flaw.path not in seen]
    elif not located:
        problem = "nothing in it" if data is None else ""
        located = [Located(0, Flaw((), data, problem, "a mapping with rules, or empty: true"))]
    raise InvalidRules(faults_of(located, file))


def load(path: str | FilePath) -> RuleFile:
    """Return the rules in a file."""
    path = FilePath(path)
    return parse(content(path), path.name)


def content(path: FilePath) -> bytes:
    """Read a file, at most as much as can be parsed. If it cannot be read, raise that as a fault."""
    try:
        with path.open("rb") as file:
            return file.read(document.MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InvalidRules([unreadable(path, error)]) from None


def unreadable(path: FilePath, error: Exception) -> Fault:
    """Return the fault of a file that is missing or not readable."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return Fault(path.name, 0, "", "", f"cannot be read: {why}", "a file with rules")


def version(content: bytes) -> str:
    """Return a digest that identifies the content of a file."""
    return blake2b(content, digest_size=8).hexdigest()


# ---------------------------------------------------------------- from pydantic's errors to faults


def _flaws(error: ValidationError, data: dict[str, object]) -> Iterator[Flaw]:
    crossed = False  # whether rules were compared with each other, which pydantic does only if each is valid
    for detail in error.errors(include_url=False):
        path: Path = detail["loc"]
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, Flawed) and path[-1:] == ("[key]",):  # pydantic's mark of an invalid name
            path = path[:-1]
        if isinstance(cause, Flawed):
            crossed = crossed or not path
            if path[-1:] == ("quotas",):  # for a default, pydantic has only the attribute name
                path = (*path[:-1], "quota")
            yield from (flaw.under(*path) for flaw in cause.flaws)
        else:
            yield _flaw(path, detail["type"], detail["input"], detail.get("ctx", {}), detail["msg"])
    if not crossed:
        yield from _crossed(data)


def _flaw(path: Path, kind: str, value: object, context: dict[str, Any], message: str) -> Flaw:
    match kind:
        case "missing":
            return Flaw(path, HIDDEN, "missing", _MISSING.get(str(path[-1]), "a value"))
        case "extra_forbidden":
            return Flaw(path, HIDDEN, *unknown("field", path[-1], _fields(path[:-1])))
        case "literal_error":
            return Flaw(path, value, "", str(context["expected"]).replace("'", ""))
        case "greater_than_equal":
            return Flaw(path, value, "", f"at least {context['ge']}")
        case "less_than_equal":
            return Flaw(path, value, "", f"at most {context['le']}")
        case "too_long":
            return Flaw(path, HIDDEN, f"{context['actual_length']} of them", f"at most {context['max_length']}")
        case "too_short":
            return Flaw(path, HIDDEN, "empty", f"at least {context['min_length']}")
        case "string_too_long":
            return Flaw(path, value, "too long", f"at most {context['max_length']} characters")
        case _:
            return Flaw(path, value, "", _TYPES.get(kind, message))


def _fields(path: Path) -> tuple[str, ...]:
    """Return the fields that may stand at `path`."""
    model = _MODELS[tuple(step for at, step in enumerate(path) if isinstance(step, str) and path[:at] != ("entries",))]
    return tuple(field.alias or name for name, field in model.model_fields.items())


def _crossed(data: dict[str, object]) -> Iterator[Flaw]:
    """Compare rules with each other although some of them are invalid."""
    ids = list(_named(data.get("rules"), "id"))
    yield from repeated_ids(ids)
    yield from lost_overrides(_named(data.get("overrides"), "rule"), dict.fromkeys(name for _, name in ids))


def _named(records: object, field: str) -> Iterator[tuple[int, str]]:
    for at, record in enumerate(records if isinstance(records, list) else ()):
        name = record.get(field) if isinstance(record, dict) else None
        if isinstance(name, str) and NAME.fullmatch(name):
            yield at, name


def faults_of(located: list[Located], file: str) -> Iterator[Fault]:
    """Yield at most `MAX_FLAWS` faults, in the order of the file."""
    located = sorted(located, key=lambda each: each.line)
    for line, flaw in located[:MAX_FLAWS]:
        yield Fault(file, line, _path(flaw.path), _shown(flaw.value), flaw.problem, flaw.expected)
    if len(located) > MAX_FLAWS:
        yield Fault(file, 0, "", "", "more faults than are listed", "none")


def _path(path: Path) -> str:
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if step.isprintable() and 0 < len(step) <= 64 else shown(step)
            text += f".{name}" if text else name
    return text


def _shown(value: object) -> str:
    if value is HIDDEN or value is None:
        return ""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "a list" if isinstance(value, list | tuple) else shown(value)
