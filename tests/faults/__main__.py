"""`python -m tests.faults [fault ...]`: inject every fault of the catalogue, and report what callers saw.

The exit code is 0 if every promise was kept. Measurements are printed and not asserted: a slow machine is no error.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.apart import TOPOLOGY, run_apart
from tests.faults.catalogue import FAULTS, Fault
from tests.faults.checks import Trial, wrong
from tests.faults.report import markdown, missing, row
from tests.faults.running import run
from tests.faults.stages import CI, FULL, Effort, Stages

BEGIN, END = "<!-- make faults -->", "<!-- end -->"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Make stores fail, and see.")
    parser.add_argument("faults", nargs="*", metavar="fault", help="part of the name of those to run (default: all)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the time")
    parser.add_argument("--into", type=Path, metavar="FILE", help="put the table into FILE, say docs/results/faults.md")
    parser.add_argument("--list", action="store_true", help="name the faults, and do nothing")
    options = parser.parse_args()
    chosen = [f for f in FAULTS if not options.faults or any(part in f.name for part in options.faults)]
    if not chosen:
        parser.error(f"no fault is called that (expected part of one of: {'; '.join(f.name for f in FAULTS)})")
    if options.list:
        print("\n".join(f"{fault.name} ({fault.topology})" for fault in chosen))
        return
    sys.exit(_run(chosen, CI if options.quick else FULL, options.into))


def _run(faults: list[Fault], effort: Effort, into: Path | None) -> int:
    rows, trials = [], []
    with tempfile.TemporaryDirectory(prefix="penstock-faults-") as folder, Stages(Path(folder), effort) as stages:
        for fault in faults:
            if not fault.possible():
                rows.append(missing(fault.name, fault.topology))
                continue
            start = time.monotonic()
            print(f"{fault.name} ...", end="", file=sys.stderr, flush=True)
            trial = _trial(fault, stages, effort)
            print(f" {time.monotonic() - start:.0f} s", file=sys.stderr)
            trials.append(trial)
            rows.append(row(trial))
    text = markdown(rows, trials)
    if into:
        _replace(into, text)
    print(text)
    return 1 if any(map(wrong, trials)) else 0


def _trial(fault: Fault, stages: Stages, effort: Effort) -> Trial:
    return run_apart(fault, effort) if fault.topology == TOPOLOGY else run(fault, stages.on(fault.topology))


def _replace(path: Path, text: str) -> None:
    """Replace the text between the two marks in a file."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path}: expected the lines {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
