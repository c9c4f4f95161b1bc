"""The command `penstock`: one file per command, and an app that gathers them.

Exit codes are the same everywhere: 0, all is well; 1, what was looked at has faults; 2, the command was not understood;
3, the request is refused; 4, the service or the store could not answer.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Where the command starts."""
    if sys.argv[1:2] == ["serve"]:
        # A reload that comes before there is something to reload would end it: it waits until a handler is there.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        from penstock.cli.app import app
    except ModuleNotFoundError as error:
        sys.stderr.write(f"penstock: {error.name} is not installed (expected: pip install 'penstock[cli]')\n")
        raise SystemExit(2) from None
    app(prog_name="penstock")
