"""A supervisor of plain workers, as a process: `supervised.py WORKERS DRAIN FLAG...`. It prints what it hears."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.service.sockets import ListenAddress, ListeningSockets
from penstock.service.supervisor import Supervisor


class Printing:
    """Prints what workers report, and each tick."""

    def heard(self, worker: int, message: Mapping[str, Any]) -> None:
        print("heard", worker, dict(message), flush=True)

    def tick(self) -> None: ...

    def abandoned(self) -> bool:
        return False


logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
workers, drain, *flags = sys.argv[1:]
python = os.environ.get("PYTHON_OF_WORKERS", sys.executable)
with ListeningSockets([ListenAddress("127.0.0.1", 0)]) as listening:
    print("port", listening.addresses[0].port, flush=True)
    supervisor = Supervisor(
        (python, str(Path(__file__).with_name("plain_worker.py")), *flags),
        listening.numbers,
        int(workers),
        drain=float(drain),
        environment=os.environ,
        onlooker=Printing(),
    )
    code = supervisor.run()
sys.exit(code)
