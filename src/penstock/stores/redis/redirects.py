"""What becomes of one question: its answer, or what has to be asked again because of it. Pure: no I/O, no clock.

    errand = Errand(talk, topology, partition, ops, into, positions, at)
    more = errand.hear(reply)        puts the outcomes into their places, or says what to ask next

Asked again is only what was certainly not done: a server said that another one decides (`MOVED`, `ASK`), that keys
are just being moved (`TRYAGAIN`), or that its clock is too far from ours for the boundaries of a calendar; or a server
could not be asked at all, and by now another one decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis

from penstock.clock import Micros
from penstock.model import Failed, Op, Outcome
from penstock.stores.redis.codec import Part
from penstock.stores.redis.commands import Talk
from penstock.stores.redis.config import Node
from penstock.stores.redis.connection import packed
from penstock.stores.redis.errors import REFUSED, WHILE_MOVED, not_sent
from penstock.stores.redis.topology import Topology

ASKING = packed(b"ASKING")
"""Said before a question that a server was named for in passing."""

REDIRECTIONS = 5
"""How often a question is passed on before it counts as unanswered: while slots move, servers may disagree."""

PAUSE = 0.01
"""Seconds after which keys that are being moved are asked for again."""

PASSED_ON = ("MOVED", "ASK")

DOUBTFUL = ("READONLY", "MASTERDOWN", "CLUSTERDOWN", "LOADING")
"""What servers say that may no longer be the ones to ask."""


class Errand:
    """Operations of one partition on their way; their outcomes go to `positions` of `into`.

    - `node`: whom to ask; None while that is not known.
    - `asking`: whether to say `ASKING` before.
    - `pause`: seconds to wait first, and to have left then.
    """

    __slots__ = (
        "_at",
        "_into",
        "_now",
        "_partition",
        "_positions",
        "_talk",
        "_topology",
        "_turns",
        "asking",
        "node",
        "pause",
        "question",
    )

    def __init__(
        self,
        talk: Talk,
        topology: Topology,
        partition: int,
        ops: Sequence[Part | Op],
        into: list[Outcome | None],
        positions: Sequence[int] | None = None,
        at: Micros | None = None,
        now: Micros | None = None,
    ) -> None:
        self._talk, self._topology, self._partition, self._into = talk, topology, partition, into
        self._positions, self._at, self._now = positions, at, now
        self.question = talk.ask(ops, at, now)
        self.node = topology.node(partition)
        self.asking, self.pause, self._turns = False, 0.0, 0

    @property
    def questions(self) -> list[bytes]:
        """What to send; the last reply is the one to hear."""
        return [ASKING, self.question.packed] if self.asking else [self.question.packed]

    def look_up(self) -> None:
        """Find out again whom to ask."""
        self.node = self._topology.node(self._partition)

    def hear(self, reply: Any) -> Sequence[Errand]:
        """Take note of the answer: a reply, or `Failed`. What comes back is to be asked."""
        if reply.__class__ is bytes:  # as nearly always
            outcomes, stale, now = self._talk.read(self.question, reply, self.node)
            self._put(outcomes)
            # Stale: our clock and the server's differ. Plan again by the server's.
            return (self._some(stale, now),) if stale and self._now is None else ()
        if isinstance(reply, Failed):
            if reply.charged == "no" and self._is_replaced():
                return (self,)
            self._topology.doubt(self.node)
            self._put([reply] * len(self.question.ops))
            return ()
        if isinstance(reply, hiredis.ReplyError):
            more = self._again(str(reply))
            if more:
                return more
            if self._topology.partitioned and str(reply).startswith(PASSED_ON):
                why = f"servers pass it on to one another ({reply})"
                self._put([not_sent(why, self._place)] * len(self.question.ops))
                return ()
        self._put(self._talk.read(self.question, reply, self.node)[0])
        return ()

    def _put(self, outcomes: Sequence[Outcome]) -> None:
        if self._positions is None:
            self._into[:] = outcomes
        else:
            for position, outcome in zip(self._positions, outcomes, strict=True):
                self._into[position] = outcome

    def _some(self, numbers: Sequence[int], now: Micros | None = None) -> Errand:
        """The same for some of the operations."""
        ops = [self.question.ops[number] for number in numbers]
        positions = numbers if self._positions is None else [self._positions[number] for number in numbers]
        return Errand(self._talk, self._topology, self._partition, ops, self._into, positions, self._at, now)

    def _again(self, error: str) -> Sequence[Errand]:
        """What to ask after an error that says that nothing was done; nothing if it does not, or for too long."""
        code, _, rest = error.partition(" ")
        if code in DOUBTFUL:
            self._topology.doubt(self.node)
        if not self._topology.partitioned:
            return ()
        if code in PASSED_ON:
            return self._elsewhere(code, rest)
        if code == "TRYAGAIN":
            return self._one_by_one()
        if WHILE_MOVED in error and len(self.question.ops) == 1 and len(set(self.question.call.keys)) == 1:
            return self._one_by_one()  # it had expired, so that it was gone when it was to be written: it was not
        return ()

    def late(self) -> Failed:
        """What it means that no time is left to ask."""
        return not_sent(REFUSED["TRYAGAIN"] if self.pause else "no time was left to ask", self._place)

    @property
    def _place(self) -> str:
        return self.node.place if self.node is not None else ""

    def _is_replaced(self) -> bool:
        """Whether by now another one is to be asked than the one who could not be; if so, that is the one now."""
        asked, self._turns = self.node, self._turns + 1
        if asked is None or self.asking or self._turns > REDIRECTIONS:
            return False
        self.look_up()
        return self.node != asked

    def _elsewhere(self, code: str, rest: str) -> Sequence[Errand]:
        self._turns, self.pause = self._turns + 1, 0.0
        host, _, port = rest.rpartition(" ")[2].rpartition(":")
        if self._turns > REDIRECTIONS or self.node is None or not port.isdecimal():
            return ()
        there = Node(self.node.host if host in ("", "?") else host, int(port))
        teller, self.node, self.asking = self.node, self._topology.known_as(there), code == "ASK"
        if not self.asking:
            self._topology.moved(self._partition, self.node, teller)
        return (self,)

    def _one_by_one(self) -> Sequence[Errand]:
        """Some of the keys are here and some there: each operation may find its own in one place."""
        if len(self.question.ops) > 1:
            if self._positions is None:
                self._into[:] = [None] * len(self.question.ops)
            return [self._some([number]) for number in range(len(self.question.ops))]
        self.pause, self.asking, self._turns = PAUSE, False, 0
        self.look_up()
        return (self,)
