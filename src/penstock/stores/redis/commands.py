"""The commands of a store, and how their replies are read: the same for blocking and asyncio callers. Does no I/O.

command = commands.encode(ops)                 the bytes to send
commands.decode(command, reply, node)          the outcomes, and which of them are stale
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import hiredis

from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import fault, is_from_signal_handler
from penstock.model import Failed, Op, Outcome, new
from penstock.stores.redis.codec import Codec, Part, ScriptCall, is_always_alike
from penstock.stores.redis.config import Node, RedisSettings
from penstock.stores.redis.connection import packed
from penstock.stores.redis.errors import NOSCRIPT, failed_by, not_sent, unanswered
from penstock.stores.redis.scatter import Partitions, Undivided
from penstock.stores.redis.script import SCRIPT, script_with_injected_time
from penstock.stores.redis.server_checks import CHECKS, findings

LOADS = 5
"""How often the script is loaded for one command at most: scripts may be flushed again and again."""

PORTION = 32
"""How many operations of several callers are sent together: the server decides them while the next ones are encoded."""

MAX_KNOWN = 4_096
LONGEST_KNOWN = 1_024  # bytes
"""How many commands are remembered, because the same one will be sent again: a single ask, most of the time."""

log = logging.getLogger("penstock.redis")


class Command(NamedTuple):
    """Operations, the script call for them, and its bytes."""

    ops: Sequence[Part | Op]
    call: ScriptCall
    packed: bytes


class Commands:
    """The commands that one store sends to its servers.

    `clock` is for tests: the script goes by it instead of the server's.
    """

    def __init__(self, settings: RedisSettings, clock: Clock | None = None) -> None:
        self._codec = Codec(settings.keys)
        self.partitions: Partitions = self._codec if settings.topology == "cluster" else Undivided()
        self._injected = clock is not None
        self._time_ns = (clock or SystemClock()).time_ns
        self.script = script_with_injected_time() if clock is not None else SCRIPT
        self.load = packed(b"SCRIPT", b"LOAD", self.script.text)
        self._known: dict[Part | Op, tuple[ScriptCall, bytes]] = {}  # commands that were sent before
        self.corrupt = 0  # values that were damaged and had to be replaced
        self._checks = [packed(*command) for command in CHECKS]
        self._checked: set[Node] = set()  # the servers that were checked, on their first connection
        self.findings: list[str] = []
        self._roles = [packed(b"ROLE")] if settings.topology == "sentinel" else []

    def now(self) -> Micros:
        """Return the time by the caller's clock."""
        return self._time_ns() // 1_000

    def encode(self, ops: Sequence[Part | Op], at: Micros | None = None, now: Micros | None = None) -> Command:
        """Return the command for `ops`, `at` an instant of the caller's clock, or now.

        `now` is the server's time, if that is known.
        """
        if len(ops) == 1 and (known := self._known.get(ops[0])) is not None:
            return new(Command, (ops, *known))
        ours = self.now() if at is None else at
        call = self._codec.encode(ops, ours if now is None else now)
        injected = (b"%d" % ours,) if self._injected else ()
        command = packed(b"EVALSHA", self.script.sha, b"%d" % len(call.keys), *call.keys, *call.args, *injected)
        if len(ops) == 1 and not injected and len(command) <= LONGEST_KNOWN and is_always_alike(ops[0]):
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[ops[0]] = call, command
        return new(Command, (ops, call, command))

    def decode(self, command: Command, reply: object, node: Node | None) -> tuple[list[Outcome], list[int], Micros]:
        """Return the outcomes that a reply of `node` means, the numbers of the stale ones, and the server's time."""
        if isinstance(reply, Exception):
            failed = failed_by(reply, _place(node))
            return [failed] * len(command.ops), [], 0
        ops, call, _ = command
        try:
            outcomes, stale, now, corrupt = self._codec.decode(ops, call, reply)  # type: ignore[arg-type]
        except Exception as error:  # callers wait for an outcome, whatever it was that replied
            if is_from_signal_handler(error):
                raise
            log.error("redis at %s: unparsable reply: %s", _place(node), fault(error))
            return [unanswered("unparsable reply", _place(node))] * len(ops), [], 0
        if corrupt:
            self.corrupt += corrupt
            log.warning("redis at %s: %d stored values were damaged and have been replaced", _place(node), corrupt)
        return outcomes, stale, now

    def greetings(self, node: Node) -> list[bytes]:
        """Return the first commands on a new connection to `node`."""
        return [self.load, *self._roles, *([] if node in self._checked else self._checks)]

    def welcomed(self, node: Node, answers: Sequence[object]) -> Failed | None:
        """Return why `node` cannot be used, given its replies to the greetings, or None. Log what should be changed."""
        loaded, *rest = answers
        if isinstance(loaded, Exception):  # which may be its last reply
            return failed_by(loaded, node.place)._replace(charged="no")
        for answer in answers:
            if isinstance(answer, Failed):  # it has hung up
                return answer._replace(charged="no")
        roles, facts = rest[: len(self._roles)], rest[len(self._roles) :]
        if any(isinstance(role, list) and role[:1] != [b"master"] for role in roles):
            return not_sent("it is not the primary, whatever the Sentinels say", node.place)
        if facts:
            self._checked.add(node)
            self.findings += (found := findings(facts))
            for finding in found:
                log.warning("redis at %s: %s", node.place, finding)
        return None


def _place(node: Node | None) -> str:
    return "an unknown place" if node is None else node.place


def is_demoted(reply: object) -> bool:
    """Return whether a server replied that it is no primary any more; a new connection will find the new one."""
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(("READONLY", "MASTERDOWN"))


def is_unknown_script(reply: object) -> bool:
    """Return whether a server does not know the script, and so has done nothing."""
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(NOSCRIPT)
