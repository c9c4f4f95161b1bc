"""`penstock serve` as a process, and clients that keep it busy."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Self

import httpx

from tests.rig.processes import DEADLINE, Workplace, wait_until

ROOT = Path(__file__).resolve().parents[2]
CHECK = {"descriptor": {"path": "/", "ip": "192.0.2.1"}}
RULES = "rules:\n  - {id: api, key: ip, quota: 1000000/hour}\n"
PATIENT = ("--store-budget-ms", "30000")  # what a busy machine takes is no outage


class Serving:
    """A service in a scratch folder of its own, which is where its `penstock.yaml` is."""

    def __init__(self, *flags: str, rules: str | None = RULES, listen: str = "127.0.0.1:0", **environment: str) -> None:
        self.place = Workplace("penstock-serving-")
        if rules is not None:
            (self.place.folder / "penstock.yaml").write_text(rules, encoding="utf-8")
        command = (sys.executable, "-m", "penstock.cli", "serve", "--listen", listen, *flags)
        self.place.run(command, {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **environment})

    @property
    def said(self) -> str:
        return self.place.log.read_text(encoding="utf-8")

    def wait_for(self, pattern: str, times: int = 1) -> list[str]:
        """Wait until it has said so that often; what it said."""
        done = False

        def holds() -> bool:
            nonlocal done
            ended, done = done, not self.place.running  # read once more after it has ended
            return len(re.findall(pattern, self.said)) >= times or ended

        wait_until(holds, f"{pattern!r} in:\n{self.said}", pause=0.01)
        found: list[str] = re.findall(pattern, self.said)
        assert len(found) >= times, f"{pattern!r} was not said {times} times:\n{self.said}"
        return found

    @property
    def url(self) -> str:
        return self.wait_for(r"listening on (https?://\S+)")[0]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def workers(self) -> list[int]:
        """The processes of all workers that ever became ready, in that order."""
        return [int(pid) for pid in re.findall(r"worker \d+ \(process (\d+)\) is ready", self.said)]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.place.pid, number)

    def ended(self) -> int:
        return self.place.process.wait(DEADLINE)

    def client(self, **options: object) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=DEADLINE, trust_env=False, **options)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.place.running:
            self.place.process.terminate()  # so that workers end with it
            self.place.process.wait(DEADLINE)
        self.place.close()


class Load:
    """So many connections that ask as fast as they are answered, each one request at a time, and reconnect when told.

    A request that was written and not answered counts as failed; so does one whose connection was refused.
    """

    def __init__(self, port: int, connections: int = 8) -> None:
        self.answered = self.failed = self.told_to_close = 0
        self._port, self._connections = port, connections
        self._stop = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        body = b'{"descriptor":{"path":"/","ip":"192.0.2.1"}}'
        self._request = b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join()

    def go_on(self, more: int = 200) -> None:
        """Wait until so many more requests were answered."""
        enough = self.answered + more
        wait_until(lambda: self.answered >= enough, f"{more} answers", pause=0.01)

    async def _run(self) -> None:
        await asyncio.gather(*(self._ask_on() for _ in range(self._connections)))

    async def _ask_on(self) -> None:
        while not self._stop:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                self.failed += 1
                continue
            try:
                while not self._stop and await self._ask(reader, writer):
                    pass
            except (OSError, EOFError):
                self.failed += 1
            finally:
                writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Ask once. Whether the connection stays."""
        writer.write(self._request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        await reader.readexactly(int(length[1]))
        assert head.startswith(b"http/1.1 200"), head
        self.answered += 1
        stays = b"connection: close" not in head
        self.told_to_close += not stays
        return stays
