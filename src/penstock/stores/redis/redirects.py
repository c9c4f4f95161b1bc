"""A script call to one partition: its reply, or the retry that follows from it. Pure: no I/O, no clock.

    attempt = Attempt(commands, topology, partition, ops, into, positions, at)
    retries = attempt.receive(reply)      writes the outcomes, or returns what to send next

Only what was certainly not done is retried: a server redirected the call (`MOVED`, `ASK`), its keys are being moved
(`TRYAGAIN`, whereupon each counter is asked where it is), or its clock is too far from the caller's for the boundaries
of a calendar; or a server could not be reached, and another one decides by now.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, cast

import hiredis

from penstock.clock import Micros
from penstock.model import Acquire, Amend, Failed, Key, Op, Outcome
from penstock.quota import Quota
from penstock.stores.redis.codec import Part
from penstock.stores.redis.commands import Commands
from penstock.stores.redis.config import Node
from penstock.stores.redis.connection import packed
from penstock.stores.redis.errors import REFUSED, WHILE_MOVED, is_uncharged, not_sent
from penstock.stores.redis.scatter import Answers, Groups, spread
from penstock.stores.redis.topology import Topology

ASKING = packed(b"ASKING")
"""Sent before a command that was redirected by `ASK`."""

REDIRECTIONS = 5
"""How often a call is redirected before it fails: while slots move, servers may disagree."""

PAUSE = 0.01
"""Seconds after which a call is retried whose keys are being moved."""

REDIRECTED = ("MOVED", "ASK")

DOUBTFUL = ("READONLY", "MASTERDOWN", "CLUSTERDOWN", "LOADING")
"""Errors of servers that may no longer decide."""


class Apart:
    """Each counter of a request as a partition of its own."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Key, Quota], int] = {}

    def of_counter(self, key: Key, quota: Quota) -> int:
        return self._numbers.setdefault((key, quota), len(self._numbers))

    def of_record(self, record: str) -> int:
        raise NotImplementedError(f"{record}: requests with an id are not taken apart")


class Attempt:
    """Operations of one partition on their way to a server; their outcomes go to `positions` of `into`.

    - `node`: the server to call; None while none is known.
    - `asking`: whether to send `ASKING` before.
    - `pause`: seconds to wait first, and to have left then.
    """

    __slots__ = (
        "_at",
        "_commands",
        "_into",
        "_now",
        "_partition",
        "_positions",
        "_topology",
        "_turns",
        "asking",
        "command",
        "node",
        "pause",
    )

    def __init__(
        self,
        commands: Commands,
        topology: Topology,
        partition: int,
        ops: Sequence[Part | Op],
        into: list[Outcome | None],
        positions: Sequence[int] | None = None,
        at: Micros | None = None,
        now: Micros | None = None,
    ) -> None:
        self._commands, self._topology, self._partition, self._into = commands, topology, partition, into
        self._positions, self._at, self._now = positions, at, now
        self.command = commands.encode(ops, at, now)
        self.node = topology.node(partition)
        self.asking, self.pause, self._turns = False, 0.0, 0

    @property
    def packed(self) -> list[bytes]:
        """The commands to send; the reply to the last one is received."""
        return [ASKING, self.command.packed] if self.asking else [self.command.packed]

    def look_up(self) -> None:
        """Look again for the server to call."""
        self.node = self._topology.node(self._partition)

    def receive(self, reply: Any) -> Sequence[Attempt]:
        """Take a reply, or `Failed`; return what to send next."""
        if reply.__class__ is bytes:  # as nearly always
            outcomes, stale, now = self._commands.decode(self.command, reply, self.node)
            if self._positions is None:
                self._into[:] = outcomes
            else:
                self._put(outcomes)
            # Stale: the caller's clock and the server's differ. Encode again by the server's.
            return (self._some(stale, now),) if stale and self._now is None else ()
        if isinstance(reply, Failed):
            if reply.charged == "no" and self._is_replaced():
                return (self,)
            self._topology.doubt(self.node)
            self._put([reply] * len(self.command.ops))
            return ()
        if isinstance(reply, hiredis.ReplyError):
            retries = self._retries(str(reply))
            if retries:
                return retries
            if self._topology.partitioned and str(reply).startswith(REDIRECTED):
                why = f"servers redirect to one another ({reply})"
                self._put([not_sent(why, self._place)] * len(self.command.ops))
                return ()
        self._put(self._commands.decode(self.command, reply, self.node)[0])
        return ()

    def _put(self, outcomes: Sequence[Outcome]) -> None:
        if self._positions is None:
            self._into[:] = outcomes
        else:
            for position, outcome in zip(self._positions, outcomes, strict=True):
                self._into[position] = outcome

    def _some(self, numbers: Sequence[int], now: Micros | None = None) -> Attempt:
        """Return an attempt for some of the operations."""
        ops = [self.command.ops[number] for number in numbers]
        positions = numbers if self._positions is None else [self._positions[number] for number in numbers]
        return self._new(self._commands, self._topology, self._partition, ops, self._into, positions, self._at, now)

    def _new(self, *args: Any) -> Attempt:
        return Attempt(*args)

    def _retries(self, error: str) -> Sequence[Attempt]:
        """Return what to send after an error that says that nothing was done; nothing if it does not, or too often."""
        code, _, rest = error.partition(" ")
        if code in DOUBTFUL:
            self._topology.doubt(self.node)
        if not self._topology.partitioned:
            return ()
        if code in REDIRECTED:
            return self._redirected(code, rest)
        if code == "TRYAGAIN":
            return self._one_by_one()
        if WHILE_MOVED in error and (is_uncharged(error) or self._is_of_one_key()):
            return self._one_by_one()  # the key had expired, so it was gone when it was to be written: it was not
        return ()

    def _is_of_one_key(self) -> bool:
        return len(self.command.ops) == 1 and len(set(self.command.call.keys)) == 1

    def late(self) -> Failed:
        """Return the failure of an attempt for which no time is left."""
        return not_sent(REFUSED["TRYAGAIN"] if self.pause else "no time was left to ask", self._place)

    @property
    def _place(self) -> str:
        return self.node.place if self.node is not None else ""

    def _is_replaced(self) -> bool:
        """Look up the server again; return whether it is another one than the one that could not be reached."""
        called, self._turns = self.node, self._turns + 1
        if called is None or self.asking or self._turns > REDIRECTIONS:
            return False
        self.look_up()
        return self.node != called

    def _redirected(self, code: str, rest: str) -> Sequence[Attempt]:
        self._turns, self.pause = self._turns + 1, 0.0
        host, _, port = rest.rpartition(" ")[2].rpartition(":")
        if self._turns > REDIRECTIONS or self.node is None or not port.isdecimal():
            return ()
        there = Node(self.node.host if host in ("", "?") else host, int(port))
        teller, self.node, self.asking = self.node, self._topology.known_as(there), code == "ASK"
        if not self.asking:
            self._topology.moved(self._partition, self.node, teller)
        return (self,)

    def _one_by_one(self) -> Sequence[Attempt]:
        """Some of the keys have moved and some have not: each operation alone may find its own in one place.

        A single operation is taken apart, and each of its counters asked where it is. With an id it has to wait: the
        record of a request is one, and must be where all of its counters are.
        """
        if len(self.command.ops) > 1:
            if self._positions is None:
                self._into[:] = [None] * len(self.command.ops)
            return [self._some([number]) for number in range(len(self.command.ops))]
        if _is_divisible(self.command.ops[0]):
            return _Division(self).begin()
        self.pause, self.asking, self._turns = PAUSE, False, 0
        self.look_up()
        return (self,)

    def divided(self) -> Generator[Groups, Answers, list[Outcome]]:
        """Return the rounds of the only operation, each of whose counters is asked by itself."""
        return spread(cast("Sequence[Op]", self.command.ops), Apart())

    def part(self, ops: Sequence[Part | Op], into: list[Outcome | None], division: _Division) -> Attempt:
        """Return an attempt for a counter of the operation."""
        return _PartAttempt(division, self._commands, self._topology, self._partition, ops, into, at=self._at)

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        """Write the outcomes."""
        self._put(outcomes)


class _Division:
    """An operation whose counters are on two servers, while their slot is being moved from one to the other.

    It is decided like a request over several partitions: all counters at the same time, and if one refuses, the others
    are given back.
    """

    def __init__(self, whole: Attempt) -> None:
        self._whole, self._rounds = whole, whole.divided()
        self._answers: list[list[Outcome | None]] = []
        self._left = 0  # attempts under way

    def begin(self) -> Sequence[Attempt]:
        return self._ask(next(self._rounds))

    def after(self, retries: Sequence[Attempt]) -> Sequence[Attempt]:
        """Return what to send after an attempt has ended with these retries."""
        self._left += len(retries) - 1
        if self._left:
            return retries
        try:
            groups = self._rounds.send(cast("Answers", self._answers))
        except StopIteration as end:
            self._whole.finish(end.value)
            return ()
        return self._ask(groups)

    def _ask(self, groups: Groups) -> Sequence[Attempt]:
        self._answers = [[None] * len(ops) for _, ops in groups]
        self._left = len(groups)
        return [self._whole.part(ops, into, self) for (_, ops), into in zip(groups, self._answers, strict=True)]


class _PartAttempt(Attempt):
    """An attempt for a part of a divided operation."""

    __slots__ = ("_division",)

    def __init__(self, division: _Division, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._division = division

    def receive(self, reply: Any) -> Sequence[Attempt]:
        return self._division.after(super().receive(reply))

    def _new(self, *args: Any) -> Attempt:
        return _PartAttempt(self._division, *args)


def _is_divisible(op: Part | Op) -> bool:
    if isinstance(op, Acquire):
        return op.id is None and len(op.asks) > 1
    return isinstance(op, Amend) and op.receipt.record is None and len(op.receipt.charges) > 1
