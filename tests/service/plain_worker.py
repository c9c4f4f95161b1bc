"""A worker that answers every connection with its process id: what the supervisor is tried with.

`--never-ready` ends at once; `--stubborn` does not end when it is told to; `--slow` says that it is there, and gets no
further until there is a file of the name that follows.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from threading import Event

from penstock.service.sockets import inherited
from penstock.service.worker import READY, Inherited


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(str(os.getpid()).encode())
    writer.close()


def wait_for(file: Path) -> None:
    while not file.exists():
        Event().wait(0.01)


async def main() -> None:
    worker = Inherited.find(os.environ)
    assert worker is not None
    if "--slow" in sys.argv:
        worker.report({"starting": worker.number})
        wait_for(Path(sys.argv[-1]))
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    if "--stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: worker.report({"reloaded": worker.number}))
    loop.add_reader(worker.channel, lambda: stop.set() if worker.abandoned() else None)
    servers = [await asyncio.start_server(answer, sock=sock) for sock in inherited(worker.listening)]
    worker.report(READY)
    await stop.wait()
    for server in servers:
        server.close()
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))  # who was accepted is answered


if "--never-ready" in sys.argv:
    sys.exit(3)
asyncio.run(main())
