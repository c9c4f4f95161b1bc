"""The repository keeps its own promises."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

# -S hides site-packages, so whatever is imported here comes from the source tree or the standard library.
IMPORT_EVERYTHING_BUT_WHAT_NEEDS_AN_EXTRA = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import penstock
for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
    if not module.name.startswith(tuple(sys.argv[2:])):
        importlib.import_module(module.name)
"""
NEED_AN_EXTRA = (
    "penstock.testing",
    "penstock.stores.redis.",
    "penstock.cli.",
    "penstock.observability.",
    "penstock.service.",
    *(f"penstock.middleware.{framework}" for framework in ("aiohttp", "django", "drf", "fastapi", "flask", "grpc")),
    *(f"penstock.middleware.{framework}" for framework in ("litestar", "quart", "starlette")),
    *(f"penstock.rules.{module}" for module in ("document", "model", "parser", "source", "schema")),
)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(requirements: list[str]) -> set[str]:
    return {_normalised(re.split(r"[\s<>=!~\[;]", requirement, maxsplit=1)[0]) for requirement in requirements}


def _pinned(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    pins = (line.partition("==") for line in lines if not line.startswith("#"))
    return {_normalised(name): version for name, _, version in pins}


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-peers.txt", "constraints-clients.txt"])
def test_constraints_are_exact_versions_and_nothing_else(file: str) -> None:
    for name, version in _pinned(file).items():
        assert re.fullmatch(r"[a-z0-9-]+", name), name
        assert re.fullmatch(r"[0-9][0-9a-z.]*", version), f"{name}: {version!r} is not a version"


def test_every_declared_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    groups = project["dependency-groups"]
    peers, clients = groups.pop("peers"), groups.pop("clients")  # in environments of their own
    declared = [*project["build-system"]["requires"], *extras["cli"][1:], *extras["rules"], *extras["testing"]]
    declared += [name for group in groups.values() for name in group]
    assert _names(declared) - _pinned("constraints.txt").keys() == set()
    assert _names(peers) - _pinned("constraints-peers.txt").keys() == set()
    assert _names(clients) - _pinned("constraints-clients.txt").keys() == set()


def test_ci_runs_on_every_declared_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    declared = {
        found[1] for line in project["classifiers"] if (found := re.fullmatch(r"Programming.* :: (3\.\d+)", line))
    }
    assert declared
    assert declared <= set(workflow["jobs"]["test"]["strategy"]["matrix"]["python"])


def test_the_core_has_no_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dependencies"] == []


def test_the_core_imports_with_the_standard_library_alone() -> None:
    code = IMPORT_EVERYTHING_BUT_WHAT_NEEDS_AN_EXTRA
    command = (sys.executable, "-I", "-S", "-c", code, str(ROOT / "src"), *NEED_AN_EXTRA)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
