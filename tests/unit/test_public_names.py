"""What users import: the public names, and where they are imported from."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import penstock

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

PUBLIC = {
    "penstock": (
        "Amended AsyncLimiter Decision InvalidInput Limiter ManualClock PenstockError Quota RateLimited Receipt "
        "StoreError Verdict"
    ),
    "penstock.client": "DEFAULT_URL AsyncClient Client ServiceRuling Tls",
    "penstock.middleware": "failed_logins unless_server_error",
    "penstock.observability": "Metrics",
    "penstock.rules": (
        "AsyncKeyDirectory KeyDirectory KeyRecord KeyTable RuleFile RuleSet RuleSource Ruling TrustedProxies "
        "hash_key load parse"
    ),
    "penstock.testing": (
        "AsyncStoreConformance CallHistory HistoryConformance Oracle StoreConformance assert_allowed assert_refused "
        "limits_off outcome_of"
    ),
}
"""All names of these packages."""

FRAMEWORKS = ("aiohttp", "asgi", "django", "drf", "fastapi", "flask", "grpc", "litestar", "quart", "starlette", "wsgi")
DEEP = {f"penstock.middleware.{framework}" for framework in FRAMEWORKS}
"""Modules below a package that users do import from: one per framework."""


class Import(NamedTuple):
    """One name that a code block imports."""

    page: str
    module: str
    name: str


def _imports() -> Iterator[Import]:
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "penstock":
                    yield from (Import(page.name, str(node.module), alias.name) for alias in node.names)
                elif isinstance(node, ast.Import):
                    own = [alias.name for alias in node.names if alias.name.startswith("penstock.")]
                    yield from (Import(page.name, name, "") for name in own)


IMPORTS = sorted(set(_imports()))


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names_are_these_and_no_others(package: str) -> None:
    assert importlib.import_module(package).__all__ == PUBLIC[package].split()


def test_there_are_at_most_fifteen_public_names() -> None:
    assert len(penstock.__all__) <= 15


@pytest.mark.parametrize("package", [*PUBLIC, "penstock.stores", "penstock.shedding", "penstock.layers"])
def test_every_public_name_exists(package: str) -> None:
    module = importlib.import_module(package)
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("package", ["penstock", *(package for package in PUBLIC if "client" not in package)])
def test_a_name_that_a_package_lacks_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=rf"module '{package}' has no attribute 'nonesuch'"):
        importlib.import_module(package).nonesuch  # noqa: B018


def test_pages_import_from_packages_and_not_from_the_modules_below() -> None:
    assert len(IMPORTS) > 30
    deep = {one for one in IMPORTS if one.module.count(".") > 1 and one.module not in DEEP}
    assert deep == set()


@pytest.mark.parametrize("one", IMPORTS, ids=lambda one: f"{one.module}.{one.name}")
def test_what_a_page_imports_is_public(one: Import) -> None:
    if one.module in ("penstock.middleware.django", "penstock.middleware.drf"):
        pytest.importorskip("tests.unit.middleware.django_shop")  # Django wants settings before its parts are imported
    module = importlib.import_module(one.module)
    assert not one.name or hasattr(module, one.name)
    if hasattr(module, "__path__"):
        assert one.name in module.__all__


LIGHT = """
import sys
import penstock.testing.pytest_plugin
print(*sorted(name for name in sys.modules if name.startswith(("penstock", "hypothesis", "asyncio"))))
"""


def test_pytest_plugin_loads_nothing_of_penstock_before_it_is_used() -> None:
    looked = subprocess.run((sys.executable, "-c", LIGHT), capture_output=True, text=True, check=True)
    assert looked.stdout.split() == ["penstock", "penstock.testing", "penstock.testing.pytest_plugin"]


CORE = """
import sys
sys.modules["pydantic"] = sys.modules["yaml"] = sys.modules["redis"] = sys.modules["hypothesis"] = None
sys.modules["pytest"] = None
import penstock
assert penstock.errors.PenstockError is penstock.PenstockError
from penstock.rules import KeyDirectory, RuleSet, Ruling
from penstock.stores import MemoryStore
from penstock.testing import assert_allowed, assert_refused, limits_off
"""


def test_names_that_need_no_extra_are_there_without_any() -> None:
    subprocess.run((sys.executable, "-W", "error", "-c", CORE), check=True)
