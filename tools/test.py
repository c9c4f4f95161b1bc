"""Run the tiers of tests in order, and report the result of each.

    python tools/test.py check     static checks alone
    python tools/test.py fast      unit, property and conformance tests with few generated examples
    python tools/test.py ci        all tiers and coverage; what `make test` runs
    python tools/test.py full      the same with 10,000 examples per property, and the first two tiers on every other
                                   Python found on PATH; writes docs/results/proof.md

Every tier runs even if an earlier one failed. The exit code is 0 only if all tiers and the coverage are good. The last
lines name every failed test, its tier and the command that runs it again. A tier whose folders do not exist is skipped;
one that exists and holds no test fails. Standard library only.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PROOF = ROOT / "docs" / "results" / "proof.md"
COVERAGE_AT_LEAST = 95

# Tests whose threads switch every few microseconds hang under a tracer, and generated histories run the same lines many
# times. The unit tests cover that code.
UNTRACED = ("conformance", "rig", "integration")

# The conformance tier tests the laws of the algorithms with the full number of histories.
BRIEF = ("unit + property",)

# Tiers that mostly wait for servers run more processes at once: so many more per core.
WAITING = {"rig": 1.0, "redis": 1.0, "integration": 0.5, "service": 1.0}

# With this variable, every process that a test starts would compile all modules again.
UNWANTED = ("PYTHONDONTWRITEBYTECODE",)

TIERS = {
    "unit + property": ("tests/unit", "tests/property"),
    "conformance": ("tests/conformance",),
    "rig": ("tests/rig",),
    "redis": ("tests/redis",),
    "integration": ("tests/integration",),
    "service": ("tests/service",),
    "acceptance": ("tests/acceptance",),
}


# The versions to test, and the tiers that run on those which are not the version of the working environment.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PORTABLE = ("unit + property", "conformance")


class Mode(NamedTuple):
    """The parts of one run."""

    command: str
    profile: str = "ci"
    static: bool = True
    tiers: tuple[str, ...] = tuple(TIERS)
    coverage: bool = True


MODES = {
    "check": Mode("make check", tiers=(), coverage=False),
    "fast": Mode(
        "make test-fast", profile="fast", static=False, tiers=("unit + property", "conformance"), coverage=False
    ),
    "ci": Mode("make test"),
    "full": Mode("make test-full", profile="full", coverage=False),  # which a tracer would double in length
}


class Case(NamedTuple):
    """One test that ran."""

    name: str
    node: str  # what pytest calls it: tests/unit/test_clock.py::test_time_passes
    outcome: str
    seconds: float
    examples: int
    failovers: tuple[str, ...]  # measurements, as JSON
    faults: tuple[str, ...]  # likewise


@dataclass
class Result:
    """The result of one tier."""

    tier: str
    python: str = sys.executable
    good: bool = False
    note: str = ""
    seconds: float = 0.0
    cases: list[Case] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        return sum(case.outcome == outcome for case in self.cases)

    @property
    def told(self) -> str:
        if not self.cases:
            return self.note
        counts = f"{self.count('passed')} passed, {self.count('failed')} failed, {self.count('skipped')} skipped"
        return f"{counts} ({self.note})" if self.note else counts


# ---------------------------------------------------------------- running


def run(*command: str, output: IO[str] | None = None, environment: Mapping[str, str] | None = None) -> int:
    sys.stdout.flush()
    inherited = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    errors = None if output is None else subprocess.STDOUT
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=inherited | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        check=False,
    )
    return done.returncode


@contextmanager
def timed(tier: str) -> Iterator[Result]:
    print(f"\n==== {tier}", flush=True)
    result = Result(tier)
    start = time.monotonic()
    yield result
    result.seconds = time.monotonic() - start
    print(ended(result), flush=True)


def ended(result: Result) -> str:
    return f"---- {result.tier}: {'ok' if result.good else 'FAILED'}, {result.seconds:.1f} s"


def run_static(output: Path) -> Result:
    """Run the static checks. Their output goes to a file, because a tier of tests runs at the same time."""
    folders = [folder for folder in ("src", "tests", "bench", "tools") if (ROOT / folder).is_dir()]
    commands = {
        "ruff check": (sys.executable, "-m", "ruff", "check", "."),
        "ruff format": (sys.executable, "-m", "ruff", "format", "--check", "."),
        "mypy": (sys.executable, "-m", "mypy", *folders),
        "import contracts": (str(Path(sys.executable).parent / "lint-imports"), "--no-logo"),
    }
    result = Result("static")
    start = time.monotonic()
    with output.open("w", encoding="utf-8") as file:
        failed = [name for name, command in commands.items() if run(*command, output=file) != 0]
    result.seconds = time.monotonic() - start
    result.good = not failed
    result.note = f"failed: {', '.join(failed)}" if failed else ", ".join(commands)
    return result


class Static:
    """The static checks, beside the first tier that mostly waits for servers; or alone where there is no such tier."""

    def __init__(self, scratch: Path) -> None:
        self._output = scratch / "static.txt"
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[Result] | None = None

    def start(self) -> None:
        if self._running is None:
            self._running = self._pool.submit(run_static, self._output)

    def finish(self) -> Result:
        """Wait for the checks, and print what they printed."""
        self.start()
        assert self._running is not None
        result = self._running.result()
        self._pool.shutdown()
        print(f"\n==== {result.tier}\n{self._output.read_text(encoding='utf-8')}", end="")
        print(ended(result), flush=True)
        return result


def run_tier(tier: str, mode: Mode, workers: int, scratch: Path, other: tuple[str, str] | None = None) -> Result | None:
    """Run a tier; `other`: the version and the interpreter of another Python."""
    folders = [folder for folder in TIERS[tier] if (ROOT / folder).is_dir()]
    if not folders:
        return None
    version, python = other or ("", sys.executable)
    slug = tier.replace(" + ", "-") + version
    report = scratch / f"{slug}.xml"
    at_once = workers + int(workers * WAITING.get(tier, 0))
    command = [python, "-m", "pytest", "--quiet", f"--numprocesses={at_once}", "--dist=worksteal"]
    profile = "brief" if mode.profile == "ci" and tier in BRIEF else mode.profile
    command += [f"--hypothesis-profile={profile}", f"--junitxml={report}", f"--basetemp={scratch / slug}"]
    if mode.coverage and tier not in UNTRACED:
        command += ["--cov", "--cov-report="]
    if mode.profile == "full":
        command += ["--override-ini=faulthandler_timeout=7200"]
    with timed(f"{tier}, Python {version}" if version else tier) as result:
        result.python = python
        code = run(*command, *folders, environment={"COVERAGE_FILE": str(scratch / f".coverage.{slug}")})
        result.cases = read_report(report)
        result.good = code == 0 and result.count("passed") > 0
        result.note = "" if result.good else {5: "no test found"}.get(code, f"pytest's exit code {code}")
    return result


def found_python(version: str, path: str) -> str | None:
    """Return the first interpreter of a version on PATH that runs. Shims of pyenv may exist without one."""
    for folder in path.split(os.pathsep):
        python = Path(folder or ".", f"python{version}").absolute()
        if os.access(python, os.X_OK) and python.is_file():
            told = subprocess.run((python, "--version"), capture_output=True, text=True, check=False)
            if told.returncode == 0 and told.stdout.startswith(f"Python {version}."):
                return str(python)
    return None


def environment_of(version: str, python: str) -> str | None:
    """Make or renew the environment of another Python; return its interpreter, or None if that failed."""
    folder = ROOT / f".venv-{version}"
    made, made_for = folder / ".made", f"{python} in {ROOT}"
    inputs = [ROOT / name for name in ("pyproject.toml", "constraints.txt")]
    stale = not made.exists() or made.stat().st_mtime < max(file.stat().st_mtime for file in inputs)
    if stale or made.read_text(encoding="utf-8").strip() != made_for:
        arguments = (folder.name, made_for, "constraints.txt", "--editable", ".[all]", "--group", "dev")
        if run("tools/venv.sh", python, *arguments) != 0:
            return None
    return str(folder / "bin" / "python")


def run_on_others(mode: Mode, workers: int, scratch: Path) -> tuple[list[Result], dict[str, str]]:
    """Run the portable tiers on every other Python. Return the results, and by version what became of it.

    The laws are proven at full length on one Python. What differs between Pythons shows in fewer examples.
    """
    mode = mode._replace(profile="ci")
    results: list[Result] = []
    outcomes = {}
    for version in PYTHONS:
        if version == ".".join(platform.python_version_tuple()[:2]):
            outcomes[version] = "all tiers"
        elif (found := found_python(version, os.environ.get("PATH", ""))) is None:
            outcomes[version] = "not tested: not found on PATH"
        elif (python := environment_of(version, found)) is None:
            outcomes[version] = "not tested: its environment could not be made"
        else:
            outcomes[version] = ", ".join(PORTABLE)
            ran = [run_tier(tier, mode, workers, scratch, (version, python)) for tier in PORTABLE]
            results += [result for result in ran if result is not None]
    return results, outcomes


def read_report(report: Path) -> list[Case]:
    """Return the tests in a JUnit report; none if pytest died before writing one."""
    if not report.exists():
        return []
    return [read_case(case) for case in ElementTree.parse(report).iter("testcase")]


def read_case(case: ElementTree.Element) -> Case:
    broken = case.find("failure") is not None or case.find("error") is not None
    skipped = case.find("skipped") is not None
    examples = case.find("properties/property[@name='examples']")
    return Case(
        name=f"{case.get('classname', '').removeprefix('tests.')}.{case.get('name')}",
        node=node(case.get("classname", ""), case.get("name", "")),
        outcome="failed" if broken else "skipped" if skipped else "passed",
        seconds=float(case.get("time", 0)),
        examples=0 if examples is None else int(examples.get("value", 0)),
        failovers=measured(case, "failover"),
        faults=measured(case, "fault"),
    )


def node(classname: str, name: str) -> str:
    """Return pytest's name of a test from a JUnit report, which has the module and its classes joined by dots.

    A module that failed to import has no class name; the report gives the module as the test's name.
    """
    if not classname:
        classname, name = name, ""
    parts = classname.split(".")
    for length in range(len(parts), 0, -1):
        file = Path(*parts[:length]).with_suffix(".py")
        if (ROOT / file).is_file():
            return "::".join([file.as_posix(), *parts[length:], *([name] if name else [])])
    return f"{classname}.{name}" if name else classname


def measured(case: ElementTree.Element, name: str) -> tuple[str, ...]:
    return tuple(found.get("value", "") for found in case.findall(f"properties/property[@name='{name}']"))


def run_coverage(scratch: Path) -> Result:
    coverage = (sys.executable, "-m", "coverage")
    data = {"COVERAGE_FILE": str(scratch / ".coverage")}
    with timed("coverage") as result:
        combined = run(*coverage, "combine", "--quiet", str(scratch), environment=data) == 0
        result.good = combined and run(*coverage, "report", f"--fail-under={COVERAGE_AT_LEAST}", environment=data) == 0
        result.note = f"{'at least' if result.good else 'below'} {COVERAGE_AT_LEAST} % of lines and branches"
    return result


# ---------------------------------------------------------------- telling


def table(results: list[Result]) -> str:
    lines = ["| tier | result | seconds | |", "|---|---|---:|---|"]
    lines += [f"| {r.tier} | {'ok' if r.good else 'FAILED'} | {r.seconds:.1f} | {r.told} |" for r in results]
    return "\n".join(lines)


def failures(results: list[Result], profile: str) -> str:
    """Name what failed, tier by tier, and the command that runs the failed tests again; empty if nothing failed."""
    lines = []
    again: defaultdict[str, list[str]] = defaultdict(list)
    for result in results:
        nodes = list(dict.fromkeys(case.node for case in result.cases if case.outcome == "failed"))
        lines += [f"  {result.tier}: {node}" for node in nodes]
        if nodes:
            again[result.python] += nodes
        if not result.good and not nodes:
            lines.append(f"  {result.tier}: {result.note}")
    if not lines:
        return ""
    if again:
        lines.append("Run the failed tests again (why each failed is printed above, under its tier):")
        for python, nodes in again.items():
            shown = os.path.relpath(python, ROOT) if Path(python).is_relative_to(ROOT) else python
            lines.append(f"  {shlex.join([shown, '-m', 'pytest', f'--hypothesis-profile={profile}', *nodes])}")
    return "\n".join(["Failed:", *lines, "", ""])


def bottom_line(results: list[Result], seconds: float) -> str:
    """Return the counts of all tiers, and how long they took together."""
    passed, failed, skipped = (sum(r.count(outcome) for r in results) for outcome in ("passed", "failed", "skipped"))
    ran = any(r.cases for r in results)
    counts = f"{passed} passed, {failed} failed, {skipped} skipped in {seconds:.0f} s" if ran else f"{seconds:.0f} s"
    bad = [r.tier for r in results if not r.good]
    return f"FAILED ({', '.join(bad)}): {counts}" if bad else f"OK: {counts}"


def proof(mode: Mode, results: list[Result], seconds: float, pythons: Mapping[str, str]) -> str:
    packages = ("penstock", "hypothesis", "pytest", "mypy", "ruff", "coverage")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    cases = [case for result in results if result.python == sys.executable for case in result.cases]
    properties = sorted(case for case in cases if case.examples)
    return "\n".join(
        [
            "# Proof",
            "",
            f"Written by `{mode.command}`, which runs every tier at full length. Do not edit.",
            "",
            f"- date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
            f"- source: {source()}",
            f"- machine: {machine}",
            f"- versions: {versions}",
            f"- Pythons: {'; '.join(f'{version} ({outcome})' for version, outcome in pythons.items())}",
            f"- **{bottom_line(results, seconds)}**",
            "",
            "## Tiers",
            "",
            table(results),
            "",
            "## Properties",
            "",
            "Each was tried on as many examples as generated by Hypothesis; for a state machine, an example is one",
            "whole history of operations.",
            "",
            "| property | result | examples that held | seconds |",
            "|---|---|---:|---:|",
            *(f"| `{p.name.replace('|', ' ')}` | {p.outcome} | {p.examples:,} | {p.seconds:.1f} |" for p in properties),
            "",
            *measurements("Failovers", [row for case in cases for row in case.failovers]),
            *measurements("Faults", [row for case in cases for row in case.faults]),
        ]
    )


def measurements(title: str, rows: list[str]) -> list[str]:
    """Return a table of what fleets measured during failures. The machine may be busy, so tests do not assert it."""
    if not rows:
        return []
    told = [json.loads(row) for row in rows]
    head = [f"## {title}", "", f"| {' | '.join(told[0])} |", "|---" * len(told[0]) + "|"]
    return [*head, *(f"| {' | '.join(row.values())} |" for row in told), ""]


def source() -> str:
    """Return the tested commit, and whether the tree had other changes."""
    told = subprocess.run(
        ("git", "describe", "--always", "--dirty", "--abbrev=12"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    return f"commit {told.stdout.strip()}" if told.returncode == 0 else "not a git checkout"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tiers of tests.")
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--workers", type=int, default=2, help="test processes (default 2)")
    arguments = parser.parse_args()
    mode = MODES[arguments.mode]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the scratch folder is removed

    results: list[Result] = []
    pythons: dict[str, str] = {}
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as scratch:
        static = Static(Path(scratch))
        for tier in mode.tiers:
            if mode.static and tier in WAITING:
                static.start()
            result = run_tier(tier, mode, arguments.workers, Path(scratch))
            if result is not None:
                results.append(result)
        if arguments.mode == "full":
            others, pythons = run_on_others(mode, arguments.workers, Path(scratch))
            results += others
        if mode.static:
            results.insert(0, static.finish())
        if mode.coverage:
            results.append(run_coverage(Path(scratch)))

    seconds = time.monotonic() - start
    if arguments.mode == "full":
        PROOF.parent.mkdir(exist_ok=True)
        PROOF.write_text(proof(mode, results, seconds, pythons), encoding="utf-8")
        print(f"\nwritten: {PROOF.relative_to(ROOT)}")
    print(f"\n{table(results)}\n\n{failures(results, mode.profile)}{bottom_line(results, seconds)}")
    return 0 if results and all(result.good for result in results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\ninterrupted")
