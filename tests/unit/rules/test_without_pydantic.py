"""Only reading files needs the extra: the enforcer can be imported where nothing but the standard library is."""

from __future__ import annotations

import subprocess
import sys


def test_the_enforcer_needs_the_standard_library_alone() -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(['pydantic', 'yaml', 'redis', 'typer']))"
    program = f"{blocked}; from penstock.enforcer import AsyncEnforcer, Enforcer; print(Enforcer.__name__)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("Enforcer\n", "")
