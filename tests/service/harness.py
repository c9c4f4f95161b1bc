"""A server of ours in a thread with an event loop of its own, and raw clients that send it what they like."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import uvloop

from penstock.service.wire.calls import Call, Handler, Head, Openers
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.server import Server
from penstock.service.wire.tls import ServerTls
from tests.rig.processes import DEADLINE, wait_until

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}
T = TypeVar("T")
JSON = (b"content-type", b"application/json")


class Echo:
    """Answers with what it was asked: method, path, query and body, each on a line. Keeps the calls it got."""

    HEAD = Head(200, [(b"content-type", b"text/plain")])

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.batches: list[int] = []

    def handle(self, calls: list[Call]) -> None:
        self.calls += calls
        self.batches.append(len(calls))
        for call in calls:
            call.answer(self.HEAD, b"\n".join([call.method, call.path, call.query, call.body]))


class Answer(NamedTuple):
    """What a raw client got."""

    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """A socket that speaks as much HTTP/1.1 as is asked of it."""

    def __init__(self, raw: socket.socket) -> None:
        self.socket = raw
        raw.settimeout(DEADLINE)
        self._got = b""

    def send(self, data: bytes) -> Client:
        self.socket.sendall(data)
        return self

    def shut(self) -> Client:
        """Send no more."""
        self.socket.shutdown(socket.SHUT_WR)
        return self

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Be gone at once."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def _more(self) -> bytes:
        try:
            return self.socket.recv(65_536)
        except (ConnectionResetError, ssl.SSLEOFError):
            return b""

    def until(self, end: bytes) -> bytes:
        """Read up to `end`, and that."""
        while end not in self._got:
            more = self._more()
            if not more:
                raise EOFError(f"closed after {self._got!r}")
            self._got += more
        found, _, self._got = self._got.partition(end)
        return found + end

    def exactly(self, size: int) -> bytes:
        while len(self._got) < size:
            more = self._more()
            if not more:
                raise EOFError(f"closed after {self._got!r}")
            self._got += more
        found, self._got = self._got[:size], self._got[size:]
        return found

    def answer(self, *, bodiless: bool = False) -> Answer:
        """Read one answer; `bodiless` if it is the answer to HEAD."""
        status, *lines = self.until(b"\r\n\r\n")[:-4].decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        assert len(headers) == len(lines), "a header twice"
        code = int(status.split(" ")[1])
        assert status.startswith("HTTP/1.1 ")
        size = 0 if bodiless or code in (100, 204, 304) else int(headers["content-length"])
        return Answer(code, headers, self.exactly(size))

    def ask(self, data: bytes) -> Answer:
        return self.send(data).answer()

    def rest(self) -> bytes:
        """All that comes until the server closes."""
        got = self._got
        self._got = b""
        while more := self._more():
            got += more
        return got

    @property
    def closed(self) -> bool:
        """Whether the server has closed, and has sent nothing that was not read. Waits for either."""
        return self.rest() == b""


class Running:
    """A server in a thread. Whatever touches it must run in its loop: see `call`."""

    def __init__(self, server: Server, family: str, loop: str, folder: str | None) -> None:
        self.server = server
        self.loop = LOOPS[loop]()
        self.faults: list[dict[str, Any]] = []  # what the loop complained of
        self.loop.set_exception_handler(lambda _, context: self.faults.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever, name="server")
        self._thread.start()
        if family == "unix":
            assert folder is not None
            self.address: Any = os.path.join(folder, "socket")  # noqa: PTH118
            self._bound = socket.socket(socket.AF_UNIX)
        else:
            self.address = ("::1" if family == "ipv6" else "127.0.0.1", 0)
            self._bound = socket.socket(socket.AF_INET6 if family == "ipv6" else socket.AF_INET)
        self._family = self._bound.family
        self._bound.bind(self.address)
        if family != "unix":
            self.address = self._bound.getsockname()[:2]
        self.call(server.listen([self._bound]))

    @property
    def port(self) -> int:
        return int(self.address[1])

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.port}"

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE)

    def run(self, function: Callable[[], T]) -> T:
        """Run a function in the server's loop."""

        async def running() -> T:
            return function()

        return self.call(running())

    def connect(self) -> socket.socket:
        raw = socket.socket(self._family)
        raw.settimeout(DEADLINE)
        try:
            raw.connect(self.address)
        except OSError:
            raw.close()
            raise
        return raw

    @contextmanager
    def client(self, tls: ssl.SSLContext | None = None, name: str | None = None) -> Iterator[Client]:
        raw = self.connect()
        if tls is not None:
            raw = tls.wrap_socket(raw, server_hostname=name)
        client = Client(raw)
        try:
            yield client
        finally:
            client.close()

    def ask(self, data: bytes) -> Answer:
        """One request on a connection of its own."""
        with self.client() as client:
            return client.ask(data)

    def wait_empty(self) -> None:
        wait_until(lambda: self.run(lambda: self.server.connections) == 0, "the last connection to close")

    def stop(self, seconds: float = 0.0) -> None:
        """Drain, and end the loop; nothing may be left in it."""
        self.call(self.server.drain(seconds))
        left = self.run(lambda: [task for task in asyncio.all_tasks() if task is not asyncio.current_task()])
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE)
        self._bound.close()
        self.loop.close()
        gc.collect()  # a socket that was left open warns now, and not in some other test
        assert not left, left
        assert not self.faults, self.faults


@contextmanager
def serving(
    handler: Handler,
    *,
    limits: ServerLimits | None = None,
    tls: ServerTls | None = None,
    loop: str = "uvloop",
    family: str = "ipv4",
    folder: str | None = None,
    openers: Openers | None = None,
) -> Iterator[Running]:
    """A server on a free port (or a Unix socket in `folder`), for the length of a block."""
    running = Running(Server(handler, limits=limits, tls=tls, openers=openers), family, loop, folder)
    try:
        yield running
    finally:
        running.stop()
