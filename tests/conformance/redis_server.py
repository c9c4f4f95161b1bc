"""A Valkey server of one's own, and a store as small as can be over it, for tests of plan and script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import cast

import redis

from penstock.clock import ManualClock, Micros
from penstock.model import Op, Outcome
from penstock.stores.redis.codec import Codec, ScriptReply
from penstock.stores.redis.keys import Keys
from penstock.stores.redis.script import Script, script_with_injected_time
from tests.rig.servers import Server

SECRET = b"of these tests"


@contextmanager
def running_server() -> Iterator[int]:
    """The port of a server that lives as long as the block."""
    with Server() as server:
        yield server.port


class PlannedStore:
    """`Store.run` by plan and script, with a clock that is moved by hand; one connection, one caller at a time."""

    def __init__(self, port: int, clock: ManualClock, namespace: str = "") -> None:
        self.clock = clock
        self.client = redis.Redis(port=port, socket_timeout=30)
        self.codec = Codec(Keys(SECRET, namespace=namespace))
        self.script: Script = script_with_injected_time()
        self.corrupt = 0
        self._lock = Lock()
        self.client.script_load(self.script.text.decode())

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        with self._lock:
            now = self.clock.time_ns() // 1_000
            return self.ask(ops, now, now).outcomes if ops else []

    def ask(self, ops: Sequence[Op], now: Micros, callers_now: Micros) -> ScriptReply:
        """Return the reply of the script to `ops` at `now`, for a caller whose clock shows `callers_now`."""
        call = self.codec.encode(ops, callers_now)
        arguments = [*call.keys, *call.args, str(now).encode()]
        reply = self.client.evalsha(self.script.sha.decode(), len(call.keys), *arguments)
        answer = self.codec.decode(ops, call, cast("bytes", reply))
        self.corrupt += answer.corrupt
        return answer

    def close(self) -> None:
        self.client.close()
