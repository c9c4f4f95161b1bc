"""No two modules of the package define classes of the same name, so that one name means one thing."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src" / "penstock"

# Names that modules still share. Delete what is gone; add nothing: rename the class to what it is.
ALLOWED: dict[str, set[str]] = {}

# Bodies of the HTTP API: OpenAPI publishes these names.
PUBLISHED = "service/api/bodies.py"

# Every web framework has its own class of these names, in a module named after the framework.
OF_FRAMEWORKS = {"RateLimit", "RateLimitMiddleware"}


def _classes(source: str) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


@cache
def _shared() -> dict[str, set[str]]:
    """Return the class names that several modules define, each with these modules."""
    modules: defaultdict[str, set[str]] = defaultdict(set)
    for file in sorted(SOURCES.rglob("*.py")):
        module = file.relative_to(SOURCES).as_posix()
        for name in _classes(file.read_text(encoding="utf-8")):
            if module != PUBLISHED and not (name in OF_FRAMEWORKS and module.startswith("middleware/")):
                modules[name].add(module)
    return {name: where for name, where in modules.items() if len(where) > 1}


def test_class_names_are_defined_by_one_module_only() -> None:
    new = [
        f"{name}: {', '.join(sorted(where))}"
        for name, where in _shared().items()
        if not where <= ALLOWED.get(name, set())
    ]
    assert not new, "\n".join(["Rename one class of each of these to what it is:", *new])


def test_allowed_class_names_are_still_shared() -> None:
    gone = [
        f"{name}: {', '.join(sorted(where - _shared().get(name, set())))}"
        for name, where in ALLOWED.items()
        if where != _shared().get(name, set()) & where
    ]
    assert not gone, "\n".join(["Good: these are no longer shared. Delete them from ALLOWED in this file:", *gone])


def test_nested_classes_count() -> None:
    assert _classes("class Outer:\n    class Inner: ...\ndef f():\n    class Local: ...") == ["Outer", "Inner", "Local"]
