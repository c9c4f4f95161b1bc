"""`make test` names what failed, and says how to run it again."""

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
