"""A decision service in the process of the test, and one that behaves badly."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock import Limiter
from penstock.client import AsyncClient
from penstock.clock import Clock
from penstock.enforcer import Enforcer
from penstock.engine.protocols import Unobserved
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet
from penstock.service.api import Api
from penstock.service.auth import Guarded
from penstock.service.decisions import Decider
from penstock.service.health import Health
from penstock.service.routes import Routes
from penstock.service.wire.calls import Call, Handler
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.tls import ServerTls
from tests.rig.processes import DEADLINE
from tests.service.harness import Running, serving

TOKEN = "a token of 16 characters or more".replace(" ", "-")
SECRET = b"what receipts are sealed with"
RULES = """
rules:
  - {id: orders, match: {path: /orders}, key: user, quota: 3/minute}
  - {id: trial, match: {path: /orders}, key: user, quota: 1/minute name trial, mode: shadow}
  - {id: uploads, match: {path: /uploads}, key: user, quota: 1 concurrent ttl 30s}
  - {id: chat, match: {path: /chat}, key: user, quota: 1000/hour}
  - {id: banned, match: {path: /banned}, action: deny, response: {message: Go away.}}
"""


class Batches:
    """Passes calls on, and records how many came together."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.sizes: list[int] = []
        self.paths: list[bytes] = []

    def handle(self, calls: list[Call]) -> None:
        self.sizes.append(len(calls))
        self.paths += [call.path for call in calls]
        self._handler.handle(calls)


def service(clock: Clock | None = None, rules: str = RULES) -> Handler:
    """Return the handler of a service, without a transport."""
    limiter = Limiter(clock=clock)
    decider = Decider(Enforcer(RuleSet(parse(rules)), limiter), Unobserved())
    health = Health()
    api = Api(decider, SECRET)
    return Routes({b"/livez": health, b"/readyz": health}, {b"/v1/": api}, health)


@contextmanager
def served(
    *,
    clock: Clock | None = None,
    token: str | None = None,
    tls: ServerTls | None = None,
    limits: ServerLimits | None = None,
    family: str = "ipv4",
    folder: str | None = None,
) -> Iterator[tuple[Running, Batches]]:
    """Yield a running service, and the batches that it received."""
    handler = service(clock)
    batches = Batches(handler if token is None else Guarded(handler, [token], [b"/livez", b"/readyz"]))
    with serving(batches, tls=tls, limits=limits, family=family, folder=folder) as running:
        yield running, batches


async def left(client: AsyncClient) -> None:
    """Wait until the client has no open connection."""
    async with asyncio.timeout(DEADLINE):
        while client._service.connections.open:  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(0.002)


@contextmanager
def listening(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve connections one after the other with `behave`; yields the URL."""
    door = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = door.accept()
            except OSError:
                return
            with connection:
                try:
                    behave(connection)
                except (EOFError, OSError):
                    pass

    thread = threading.Thread(target=accept, name="listening")
    thread.start()
    try:
        yield f"http://127.0.0.1:{door.getsockname()[1]}"
    finally:
        door.shutdown(socket.SHUT_RDWR)
        door.close()
        thread.join()
