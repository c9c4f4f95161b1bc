"""What is said to a server, and how its answers are read: the same for blocking and asyncio callers. Does no I/O.

question = talk.ask(ops)                     the bytes to send
talk.read(question, reply, node)             the outcomes; or a question that has to be asked again
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import hiredis

from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import fault
from penstock.model import Failed, Op, Outcome, new
from penstock.stores.redis.codec import Call, Part, Planner, is_always_alike
from penstock.stores.redis.config import Node, Settings
from penstock.stores.redis.connection import packed
from penstock.stores.redis.errors import NOSCRIPT, failed_by, not_sent, unanswered
from penstock.stores.redis.scatter import Partitions, Undivided
from penstock.stores.redis.script import SCRIPT, script_with_injected_time
from penstock.stores.redis.server_checks import QUESTIONS, findings

LOADS = 5
"""How often the script is loaded for one question at most: somebody may flush scripts all the while."""

PORTION = 32
"""How many operations of several callers go out together: the server decides them while the next ones are planned."""

MAX_KNOWN = 4_096
LONGEST_KNOWN = 1_024  # bytes
"""How many questions are remembered, because the same one will be asked again: a single ask, most of the time."""

log = logging.getLogger("penstock.redis")


class Question(NamedTuple):
    """Operations, and the call that asks for them."""

    ops: Sequence[Part | Op]
    call: Call
    packed: bytes


class Talk:
    """How one store talks to its servers.

    With a `clock` of the caller's, it is that clock which the script goes by instead of the server's: for tests.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._planner = Planner(settings.keys)
        self.partitions: Partitions = self._planner if settings.topology == "cluster" else Undivided()
        self._injected = clock is not None
        self._time_ns = (clock or SystemClock()).time_ns
        self.script = script_with_injected_time() if clock is not None else SCRIPT
        self.load = packed(b"SCRIPT", b"LOAD", self.script.text)
        self._known: dict[Part | Op, tuple[Call, bytes]] = {}  # questions that were asked before
        self.corrupt = 0  # values that were damaged and had to be replaced
        self._checks = [packed(*question) for question in QUESTIONS]
        self._checked: set[Node] = set()  # those who were asked them, on their first connection
        self.findings: list[str] = []
        self._roles = [packed(b"ROLE")] if settings.topology == "sentinel" else []

    def now(self) -> Micros:
        """What our clock says."""
        return self._time_ns() // 1_000

    def ask(self, ops: Sequence[Part | Op], at: Micros | None = None, now: Micros | None = None) -> Question:
        """The question that asks for `ops` `at` an instant of our clock, this one if None is said; `now` is the
        server's time, if that is known better than by our clock.
        """
        if len(ops) == 1 and (known := self._known.get(ops[0])) is not None:
            return new(Question, (ops, *known))
        ours = self.now() if at is None else at
        call = self._planner.plan(ops, ours if now is None else now)
        injected = (b"%d" % ours,) if self._injected else ()
        command = packed(b"EVALSHA", self.script.sha, b"%d" % len(call.keys), *call.keys, *call.args, *injected)
        if len(ops) == 1 and not injected and len(command) <= LONGEST_KNOWN and is_always_alike(ops[0]):
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[ops[0]] = call, command
        return new(Question, (ops, call, command))

    def read(self, question: Question, reply: object, node: Node | None) -> tuple[list[Outcome], list[int], Micros]:
        """The outcomes that a reply of `node` means; which of them are stale; and the server's time."""
        if isinstance(reply, Exception):
            failed = failed_by(reply, _place(node))
            return [failed] * len(question.ops), [], 0
        ops, call, _ = question
        try:
            outcomes, stale, now, corrupt = self._planner.read(ops, call, reply)  # type: ignore[arg-type]
        except Exception as error:  # whoever it was that answered, callers wait for an outcome
            log.error("redis at %s: an answer that means nothing: %s", _place(node), fault(error))
            return [unanswered("an answer that means nothing", _place(node))] * len(ops), [], 0
        if corrupt:
            self.corrupt += corrupt
            log.warning("redis at %s: %d stored values were damaged and have been replaced", _place(node), corrupt)
        return outcomes, stale, now

    def greetings(self, node: Node) -> list[bytes]:
        """What is said first on a new connection to `node`."""
        return [self.load, *self._roles, *([] if node in self._checked else self._checks)]

    def welcomed(self, node: Node, answers: Sequence[object]) -> Failed | None:
        """Why `node` cannot be used after all, if it answered its greetings so. What ought to be otherwise is said."""
        loaded, *rest = answers
        if isinstance(loaded, Exception):  # which may have been the last thing it said
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


def is_stranded(reply: object) -> bool:
    """Whether this server no longer decides: whoever does will be found by a new connection."""
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(("READONLY", "MASTERDOWN"))


def is_unknown(reply: object) -> bool:
    """Whether the server does not know the script, and so has done nothing."""
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(NOSCRIPT)
