"""No module uses a private name of another module.

A name is private if it starts with one underscore, and a module's own if the module defines it: as a function, a class,
a variable, an attribute of `self` or a slot. Inheriting it from a class of another module does not make it one's own.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src" / "penstock"

# What modules still use of others, by module. Delete what is gone; add nothing: give the other module a public name.
ALLOWED: dict[str, set[str]] = {}

# Public in spite of the underscore.
PUBLIC = {"_asdict", "_field_defaults", "_fields", "_is_owned", "_make", "_replace"}  # NamedTuple, RLock

# Names of packages that offer no other.
OF_THIRD_PARTIES = {
    ("middleware/drf.py", "_request"),
    ("middleware/flask.py", "_get_current_object"),
    ("stores/redis/connection.py", "_sock"),
    ("stores/redis/connection.py", "_writer"),
}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=value):
                yield from (str(slot.value) for slot in ast.walk(value) if isinstance(slot, ast.Constant))


def _foreign(source: str) -> dict[str, list[int]]:
    """Return the private names that a module uses and does not define, with the lines of their uses."""
    tree = ast.parse(source)
    own = set(_defined(tree)) | PUBLIC
    found: defaultdict[str, list[int]] = defaultdict(list)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if _is_private(name) and name not in own:
                found[name].append(node.lineno)
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "penstock":
                for alias in names:
                    if _is_private(alias.name):
                        found[alias.name].append(node.lineno)
    return dict(found)


@cache
def _uses() -> dict[str, dict[str, list[int]]]:
    """Return, by module, what it uses of others and where."""
    uses = {}
    for file in sorted(SOURCES.rglob("*.py")):
        module = file.relative_to(SOURCES).as_posix()
        found = _foreign(file.read_text(encoding="utf-8"))
        uses[module] = {name: sorted(lines) for name, lines in found.items() if (module, name) not in OF_THIRD_PARTIES}
    return uses


def test_modules_use_private_names_of_others_only_where_allowed() -> None:
    new = [
        f"src/penstock/{module}:{line} uses {name}, which it does not define"
        for module, names in _uses().items()
        for name, lines in names.items()
        if name not in ALLOWED.get(module, set())
        for line in lines
    ]
    assert not new, "\n".join(["Give the module that defines the name a public one instead:", *new])


def test_allowed_uses_of_private_names_are_still_there() -> None:
    uses = _uses()
    gone = {module: names - uses.get(module, {}).keys() for module, names in ALLOWED.items()}
    told = [
        f"{module}: {', '.join(sorted(names)) or 'no name'}"
        for module, names in gone.items()
        if names or not ALLOWED[module]
    ]
    assert not told, "\n".join(["Good: these uses are gone. Delete them from ALLOWED in this file:", *told])


def test_attribute_of_another_object_is_foreign() -> None:
    assert _foreign("def close(store): store._links.clear()") == {"_links": [1]}


def test_inherited_attribute_is_foreign() -> None:
    assert _foreign("class Mine(Theirs):\n    def now(self): return self._clock()") == {"_clock": [2]}


def test_imported_private_name_is_foreign() -> None:
    assert _foreign("from penstock.engine import _Look, engine") == {"_Look": [1]}


def test_own_names_are_not_foreign() -> None:
    source = """
class Mine:
    __slots__ = ("_slot",)
    _constant = 1
    def __init__(self): self._set = 2
    def _method(self): return self._slot, self._constant, self._set, self._method, self.__class__
def of(other): return other._method()
"""
    assert _foreign(source) == {}


def test_methods_of_named_tuples_are_public() -> None:
    assert _foreign("def f(plan): return plan._replace(cost=2)") == {}
