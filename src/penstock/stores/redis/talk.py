"""What is said to a server, and how its answers are read: the same for blocking and asyncio callers. Does no I/O.

talk = Talk(settings, clock)
question = talk.ask(ops)                   the bytes to send
talk.read(question, reply)                 the outcomes; or a question that has to be asked again
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import hiredis

from penstock.clock import Clock, Micros, SystemClock
from penstock.model import Failed, Op, Outcome, new
from penstock.stores.redis.checks import QUESTIONS, findings
from penstock.stores.redis.plan import Call, Planner, is_always_alike
from penstock.stores.redis.replies import NOSCRIPT, failed_by, not_sent, unanswered
from penstock.stores.redis.script import SCRIPT, script_with_injected_time
from penstock.stores.redis.settings import Settings

MAX_OPS = 128
"""How many operations go into one script call at most: while it runs, the server serves nobody else."""

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

    ops: Sequence[Op]
    call: Call
    packed: bytes


class Talk:
    """How one store talks to its server.

    With a `clock` of the caller's, it is that clock which the script goes by instead of the server's: for tests.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.place = settings.place
        self._planner = Planner(settings.keys)
        self._injected = clock is not None
        self._time_ns = (clock or SystemClock()).time_ns
        self.script = script_with_injected_time() if clock is not None else SCRIPT
        self.load = _packed(b"SCRIPT", b"LOAD", self.script.text)
        self._known: dict[Op, tuple[Call, bytes]] = {}  # questions that were asked before
        self.corrupt = 0  # values that were damaged and had to be replaced
        self.checks = [_packed(*question) for question in QUESTIONS]  # asked once, on the first connection
        self.findings: list[str] = []

    def ask(self, ops: Sequence[Op], now: Micros | None = None) -> Question:
        """The question that asks for `ops`; `now` is the server's time if it is known better than by our clock."""
        if len(ops) == 1 and (known := self._known.get(ops[0])) is not None:
            return new(Question, (ops, *known))
        ours = self._time_ns() // 1_000
        call = self._planner.plan(ops, ours if now is None else now)
        injected = (b"%d" % ours,) if self._injected else ()
        command = _packed(b"EVALSHA", self.script.sha, b"%d" % len(call.keys), *call.keys, *call.args, *injected)
        if len(ops) == 1 and not injected and len(command) <= LONGEST_KNOWN and is_always_alike(ops[0]):
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[ops[0]] = call, command
        return new(Question, (ops, call, command))

    def read(self, question: Question, reply: object) -> tuple[list[Outcome], list[int], Micros]:
        """The outcomes that a reply means; which of them are stale; and the server's time."""
        if isinstance(reply, Exception):
            failed = failed_by(reply, self.place)
            return [failed] * len(question.ops), [], 0
        ops, call, _ = question
        try:
            outcomes, stale, now, corrupt = self._planner.read(ops, call, reply)  # type: ignore[arg-type]
        except Exception:  # whoever it was that answered, callers wait for an outcome
            log.exception("redis at %s: an answer that means nothing", self.place)
            return [unanswered("an answer that means nothing", self.place)] * len(ops), [], 0
        if corrupt:
            self.corrupt += corrupt
            log.warning("redis at %s: %d stored values were damaged and have been replaced", self.place, corrupt)
        return outcomes, stale, now

    def in_vain(self, ops: Sequence[Op], before: Sequence[Outcome]) -> list[Outcome]:
        """What becomes of `ops` if the part of a long batch before them was not answered; nothing if it was."""
        if not before or not isinstance(before[-1], Failed):
            return []
        return [not_sent("an earlier part of the batch was not answered", self.place)] * len(ops)

    def checked(self, answers: Sequence[object]) -> None:
        """Take note of what the server said of itself, and say what ought to be otherwise."""
        self.checks = []
        self.findings = findings(answers)
        for finding in self.findings:
            log.warning("redis at %s: %s", self.place, finding)


def is_stranded(reply: object) -> bool:
    """Whether this server no longer decides: whoever does will be found by a new connection."""
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(("READONLY", "MASTERDOWN"))


def is_unknown(reply: object) -> bool:
    """Whether the server does not know the script, and so has done nothing."""
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(NOSCRIPT)


def _packed(*words: bytes) -> bytes:
    """Bytes alone: in making text of a number, hiredis crashes when a signal's handler raises (Ctrl-C)."""
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # declared for a single word
    return packed


def batches(ops: Sequence[Op]) -> list[Sequence[Op]]:
    """`ops` in portions that one script call may carry."""
    if not ops:
        return []
    return [ops] if len(ops) <= MAX_OPS else [ops[start : start + MAX_OPS] for start in range(0, len(ops), MAX_OPS)]
