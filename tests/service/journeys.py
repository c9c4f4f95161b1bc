"""Count the Python frames that a request costs, by `sys.setprofile` in the thread that handles it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import penstock
from penstock import AsyncLimiter, Limiter
from penstock.enforcer import AsyncEnforcer, Enforcer
from penstock.engine.protocols import Unobserved
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet
from penstock.service.api import Api
from penstock.service.decisions import Decider
from penstock.service.envoy.config_source import ConfigSource
from penstock.service.envoy.service import by_rules, configured
from penstock.service.grpc import Grpc
from penstock.service.routes import Routes
from penstock.stores.redis.store import AsyncRedisStore
from tests.integration.redis_support import PATIENT
from tests.rig.fixtures import Keyspace
from tests.service.harness import Running, serving

SOURCES = str(Path(penstock.__file__).parent)
WARM = 20
"""Requests before the one that is counted, so that caches are filled and connections open."""

BUDGET = 30_000_000

TIMERS = ("engine/ticker", "stores/redis/lateness")
"""Modules whose timers fire while a request is under way."""


class FrameCall(NamedTuple):
    """One call of a function of Penstock's, and in which turn of the event loop.

    A turn is one callback: whatever has no other function of Penstock's below it on the stack.
    """

    module: str
    function: str
    turn: int

    def __str__(self) -> str:
        return f"{self.turn} {self.module}:{self.function}"


class FrameCounter:
    """The calls that one thread has made while it was profiled."""

    def __init__(self) -> None:
        self._seen: list[FrameCall] = []
        self._begun: dict[int, str] = {}  # by turn, the module that it began in
        self._turn = 0

    def start(self) -> None:
        """Count from now on, in the thread that calls this."""
        sys.setprofile(self._note)

    def stop(self) -> list[FrameCall]:
        """Return the calls. Turns that a timer began belong to no request."""
        sys.setprofile(None)
        timers = {turn for turn, module in self._begun.items() if module in TIMERS}
        return [call for call in self._seen if call.turn not in timers]

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCES):
            module = code.co_filename[len(SOURCES) + 1 : -3]
            if not _is_ours(frame.f_back):
                self._turn += 1
                self._begun[self._turn] = module
            self._seen.append(FrameCall(module, code.co_qualname, self._turn))


def _is_ours(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(SOURCES):
            return True
        frame = frame.f_back
    return False


def frames_of(call: Callable[[], object]) -> list[FrameCall]:
    """Return the frames of a call in this thread."""
    for _ in range(WARM):
        call()
    counter = FrameCounter()
    counter.start()
    try:
        call()
    finally:
        seen = counter.stop()
    return seen


def frames_on(running: Running, ask: Callable[[], object]) -> list[FrameCall]:
    """Return the frames that a request costs a server. Timers run too: the fewest of several counts have none."""
    for _ in range(WARM):
        ask()
    counts = []
    for _ in range(5):
        counter = FrameCounter()
        running.run(counter.start)
        ask()
        counts.append(running.run(counter.stop))
    return min(counts, key=len)


@contextmanager
def serving_all(keyspace: Keyspace | None, rules: str, config: Path | None) -> Iterator[Running]:
    """Serve the API and Envoy's method, by `config` or else by the rules, without observers. Without keys of a server
    the counters are in memory.

    Observers cost frames of their own, which depend on the settings.
    """
    limiter: Limiter | AsyncLimiter
    enforcer: Enforcer | AsyncEnforcer
    store = None
    if keyspace is None:
        limiter = Limiter()
        enforcer = Enforcer(RuleSet(parse(rules)), limiter)
    else:
        store = AsyncRedisStore(keyspace.server.url, prefix=keyspace.prefix, **PATIENT)
        limiter = AsyncLimiter(store)
        enforcer = AsyncEnforcer(RuleSet(parse(rules)), limiter)
    decider = Decider(enforcer, Unobserved(), budget=BUDGET)
    if config is None:
        parts = by_rules(decider, ready=lambda: True)
    else:
        parts = configured(ConfigSource(config), limiter.engine, ready=lambda: True, budget=BUDGET)
    api = Api(decider, b"a secret that all share")
    grpc = Grpc(parts.methods)
    exact = {**parts.handlers, **dict.fromkeys(api.paths, api)}
    exact |= dict.fromkeys((method.path for method in parts.methods), grpc)
    with serving(Routes(exact, dict.fromkeys(parts.services, grpc), otherwise=api)) as running:
        yield running
        if isinstance(limiter, AsyncLimiter) and store is not None:
            running.call(limiter.close())
            running.call(store.close())
