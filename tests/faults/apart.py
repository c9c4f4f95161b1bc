"""Run the faults that need a network namespace in a process that has one, where the system permits it.

`python -m tests.faults.apart NAME ci|full FILE` is that process: it writes its results to a file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.faults.catalogue import FAULTS, Fault
from tests.faults.checks import Trial
from tests.faults.fleet import ROOT
from tests.faults.load import Answer
from tests.faults.running import run
from tests.faults.stages import CI, FULL, IN_OWN_NETWORK, STAGES, Effort

TOPOLOGY = "own network"


def run_apart(fault: Fault, effort: Effort) -> Trial:
    """Run a fault in another process."""
    with tempfile.TemporaryDirectory(prefix="penstock-faults-") as folder:
        file = Path(folder) / "trial"
        program = (sys.executable, "-m", "tests.faults.apart")
        words = (fault.name, "full" if effort is FULL else "ci", str(file))
        subprocess.run((*IN_OWN_NETWORK, *program, *words), cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
        told = json.loads(file.read_text(encoding="utf-8"))
    told["answers"] = [Answer(*answer) for answer in told["answers"]]
    return Trial(**told)


def _main(name: str, effort: str, file: str) -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == name]
    folder = Path(file).parent
    with STAGES[fault.topology](folder, FULL if effort == "full" else CI) as stage:
        trial = run(fault, stage)
    Path(file).write_text(json.dumps(asdict(trial)), encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
