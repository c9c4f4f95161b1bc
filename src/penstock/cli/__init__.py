"""The command line `penstock`.

All commands share their exit codes: 0, success; 1, faults were found; 2, wrong usage; 3, the request is refused; 4, the
service or the store is unavailable.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["serve"]:
        # A SIGHUP before its handler is installed would end the process, so it is blocked until then.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        from penstock.cli.app import app
    except ModuleNotFoundError as error:
        sys.stderr.write(f"penstock: {error.name} is not installed (expected: pip install 'penstock[cli]')\n")
        raise SystemExit(2) from None
    app(prog_name="penstock")
