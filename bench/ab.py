"""Two builds against each other: `python -m bench.ab REVISION`, or `make bench-ab BASE=REVISION`.

The base is a revision, the other build is the working tree, uncommitted changes included. In every round each build is
measured in a fresh process, in alternating order. A round gives one ratio per figure: CPU time of the working tree
divided by that of the base. Printed are the median of the ratios and its 95 % interval, so that 5 % can be told from
noise on a machine whose runs differ by 30 %.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from math import comb
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench import ab_service, ab_worker
from bench.redis_rig import Cores, a_server, apart, pin

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 20
FEWEST = 6  # below that no two of the ratios enclose the median with 95 %
PATIENCE = 300.0


class Ratio(NamedTuple):
    """How the working tree compares with the base: below 1 it needs less."""

    median: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.low <= 1 <= self.high:
            return "no difference seen"
        return f"{'slower' if self.median > 1 else 'faster'} by {abs(self.median - 1):.1%}"

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}..{self.high:.3f}]"


def ratio(values: Sequence[float]) -> Ratio:
    """Return the median and the 95 % interval of order statistics, which one slow round cannot move.

    The k-th smallest and the k-th largest value enclose the true median unless fewer than k values lie on one side of
    it, and that is a matter of tossing coins.
    """
    count = len(values)
    if count < FEWEST:
        raise ValueError(f"{count} rounds: expected at least {FEWEST}")
    outside, below = 0, 0.0
    while (below := below + comb(count, outside) / 2**count) <= 0.025:
        outside += 1
    ordered = sorted(values)
    return Ratio(median(ordered), ordered[outside - 1], ordered[count - outside])


def commit_of(revision: str) -> str:
    """Return the short hash of a revision, or end with a clear error."""
    command = ("git", "rev-parse", "--verify", "--quiet", "--short=12", "--end-of-options", f"{revision}^{{commit}}")
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise SystemExit(f"BASE {revision!r}: no such commit (expected a branch, tag or hash, as in BASE=HEAD~1)")
    return found.stdout.strip()


def check_out(commit: str, folder: Path) -> None:
    """Write the sources of a commit into a folder; git's own state stays as it is."""
    archive = subprocess.run(("git", "archive", commit, "src"), cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as sources:
        sources.extractall(folder, filter="data")


def chosen(texts: Sequence[str]) -> list[str]:
    """Return the figures whose name contains one of the texts; all of them without a text."""
    names = [*ab_worker.FIGURES, *ab_service.FIGURES]
    for text in texts:
        if not any(text in name for name in names):
            raise SystemExit(f"--only {text!r}: expected part of a figure's name: {'; '.join(names)}")
    return [name for name in names if not texts or any(text in name for text in texts)]


def measured(build: Path, url: str, cores: Cores, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Measure a build once, in processes of its own: what is measured runs on the asker's core."""
    result: dict[str, dict[str, Any]] = {"figures": {}, "errors": {}}
    library = [name for name in names if name in ab_worker.FIGURES]
    service = [name for name in names if name in ab_service.FIGURES]
    measured_on = ",".join(map(str, cores.asker))
    for module, own, arguments, some in (
        ("bench.ab_worker", cores.asker, (), library),
        ("bench.ab_service", cores.server, (measured_on,), service),
    ):
        if some:
            told = answered(build, own, (module, str(build), url, *arguments, *some))
            for kind, found in told.items():
                result[kind].update(found)
    return result


def answered(build: Path, cores: tuple[int, ...], arguments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what a worker prints that finds this build."""
    environment = os.environ | {"PYTHONPATH": str(build / "src"), "PYTHONDONTWRITEBYTECODE": ""}
    command = (sys.executable, "-m", *arguments)
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as worker:
        try:
            pin(worker.pid, cores)
            told, _ = worker.communicate(timeout=PATIENCE)
        finally:
            worker.kill()
    if worker.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {worker.returncode}")
    result: dict[str, dict[str, Any]] = json.loads(told)
    return result


def compare(base: Path, rounds: int, names: Sequence[str]) -> None:
    """Measure both builds round by round, then print a table."""
    cores = apart()
    results: dict[Path, list[dict[str, dict[str, Any]]]] = {base: [], ROOT: []}
    with a_server(cores) as server:
        for number in range(rounds):
            for build in (base, ROOT) if number % 2 else (ROOT, base):
                server.ask("FLUSHALL")
                results[build].append(measured(build, server.url, cores, names))
            print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print("\n", file=sys.stderr)
    print("| CPU time per decision | base, ns | working tree, ns | working tree ÷ base [95 %] | |")
    print("|---|---:|---:|---:|---|")
    for line in rows(results[base], results[ROOT]):
        print(line)


def rows(base: Sequence[dict[str, dict[str, Any]]], ours: Sequence[dict[str, dict[str, Any]]]) -> list[str]:
    """Return a row of the table per figure; one that a build cannot measure says why."""
    told = []
    for name in dict.fromkeys([*base[0]["figures"], *ours[0]["figures"], *base[0]["errors"], *ours[0]["errors"]]):
        errors = {
            label: result["errors"][name]
            for label, results in (("base", base), ("working tree", ours))
            for result in results
            if name in result["errors"]
        }
        if errors:
            told.append(f"| {name} | | | | {'; '.join(f'{label}: {error}' for label, error in errors.items())} |")
            continue
        before, after = ([result["figures"][name] for result in results] for results in (base, ours))
        compared = ratio([new / old for old, new in zip(before, after, strict=True)])
        told.append(f"| {name} | {median(before):.0f} | {median(after):.0f} | {compared} | {compared.verdict} |")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ab", description="Compare the speed of two builds.")
    parser.add_argument("base", help="the revision to compare the working tree with")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"how often each build is measured ({ROUNDS})")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="figures whose name contains it")
    options = parser.parse_args()
    names = chosen(options.only)
    if options.rounds < FEWEST:
        parser.error(f"rounds {options.rounds}: expected at least {FEWEST}, and {ROUNDS} for a figure to quote")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the temporary folder goes
    commit = commit_of(options.base)
    print(f"base: {options.base} ({commit}); {options.rounds} rounds, each build in a fresh process", flush=True)
    with tempfile.TemporaryDirectory(prefix="penstock-ab-") as folder:
        check_out(commit, Path(folder))
        compare(Path(folder), options.rounds, names)


if __name__ == "__main__":
    main()
