"""`make test` names what failed, and says how to run it again."""

import os
import stat
import sys
from pathlib import Path

from tools import test as runner


def _case(node: str, outcome: str) -> runner.Case:
    return runner.Case(name=node, node=node, outcome=outcome, seconds=0.0, examples=0, failovers=(), faults=())


def _result(tier: str, *cases: runner.Case, note: str = "") -> runner.Result:
    good = not note and all(case.outcome != "failed" for case in cases)
    return runner.Result(tier, good=good, note=note, cases=list(cases))


def test_failures_name_each_test_once_with_its_tier() -> None:
    broken = _case("tests/redis/test_guard.py::test_a", "failed")
    results = [
        _result("unit + property", _case("tests/unit/test_b.py::test_b", "passed")),
        _result("redis", broken, broken),
    ]
    told = runner.failures(results, "ci").splitlines()
    assert told[:2] == ["Failed:", "  redis: tests/redis/test_guard.py::test_a"]
    assert told[3].endswith("-m pytest --hypothesis-profile=ci tests/redis/test_guard.py::test_a")
    assert "test_b" not in "".join(told)


def test_failures_are_empty_when_nothing_failed() -> None:
    assert runner.failures([_result("rig", _case("tests/rig/test_a.py::test_a", "passed"))], "ci") == ""


def test_failures_name_a_tier_that_failed_without_a_failed_test() -> None:
    told = runner.failures([_result("static", note="failed: mypy")], "ci")
    assert "  static: failed: mypy" in told.splitlines()
    assert "pytest" not in told


def test_failures_quote_a_parameter_for_the_shell() -> None:
    told = runner.failures([_result("rig", _case("tests/rig/test_a.py::test_a[x y]", "failed"))], "ci")
    assert "'tests/rig/test_a.py::test_a[x y]'" in told


def test_node_finds_the_file_and_keeps_the_class() -> None:
    module = "tests.unit.test_test_runner"
    assert runner.node(module, "test_a") == "tests/unit/test_test_runner.py::test_a"
    assert runner.node(f"{module}.TestA", "test_a[1]") == "tests/unit/test_test_runner.py::TestA::test_a[1]"


def test_node_of_a_module_that_failed_to_import_is_its_file() -> None:
    assert runner.node("", "tests.unit.test_test_runner") == "tests/unit/test_test_runner.py"


def test_node_without_a_file_stays_as_reported() -> None:
    assert runner.node("elsewhere.test_gone", "test_a") == "elsewhere.test_gone.test_a"


def _interpreter(folder: Path, version: str, script: str) -> Path:
    folder.mkdir()
    python = folder / f"python{version}"
    python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return python


def test_python_is_the_first_on_path_that_runs(tmp_path: Path) -> None:
    shim = _interpreter(tmp_path / "shims", "3.12", "echo 'command not found' >&2; exit 127")
    python = _interpreter(tmp_path / "bin", "3.12", "echo Python 3.12.9")
    path = os.pathsep.join([str(tmp_path / "none"), str(shim.parent), str(python.parent)])
    assert runner.found_python("3.12", path) == str(python)
    assert runner.found_python("3.13", path) is None
    assert runner.found_python("3.12", str(shim.parent)) is None


def test_python_of_another_version_does_not_count(tmp_path: Path) -> None:
    python = _interpreter(tmp_path / "bin", "3.12", "echo Python 3.11.7")
    assert runner.found_python("3.12", str(python.parent)) is None


def test_failures_on_another_python_run_again_there() -> None:
    here = _result("unit + property", _case("tests/unit/test_a.py::test_a", "failed"))
    there = _result("unit + property, Python 3.99", _case("tests/unit/test_a.py::test_a", "failed"))
    there.python = str(runner.ROOT / ".venv-3.99" / "bin" / "python")
    told = runner.failures([here, there], "full").splitlines()
    assert told[1:3] == [
        "  unit + property: tests/unit/test_a.py::test_a",
        "  unit + property, Python 3.99: tests/unit/test_a.py::test_a",
    ]
    assert told[-2].startswith("  .venv-3.99/bin/python -m pytest")
    assert Path(sys.executable).name in told[-3]


def test_proof_names_tested_and_missing_pythons() -> None:
    mode = runner.MODES["full"]
    page = runner.proof(mode, [_result("rig")], 1.0, {"3.11": "all tiers", "3.14": "not tested: not found on PATH"})
    assert "- Pythons: 3.11 (all tiers); 3.14 (not tested: not found on PATH)\n" in page
