"""Operations over partitions: which go to which, and what their answers mean together. Pure: no I/O, no clock.

    spreading = spread(ops, partitions)
    groups = next(spreading)                  the operations for each partition, sent at the same time
    groups = spreading.send(answers)          the next ones, given all outcomes; StopIteration holds the result

Most operations concern one key, and with it one partition, and are passed on as they are. A request whose keys are in
several partitions is charged in all of them at the same time. If one of them refuses or fails, the others are undone by
refunds, in a second round that also peeks. So no key ever gets more than the limit; until the second round is over a
key may get less, by what is then given back. Of a request with an id, a charge that a repeat counts on stays.

Operations of one batch see the ones before them, partition by partition. What reads or amends counters of a request
that spans partitions waits for its second round; other requests do not.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from penstock.model import (
    NOT_CHARGED,
    Acquire,
    Amend,
    Amended,
    Ask,
    Decision,
    Failed,
    Grant,
    Key,
    Op,
    Outcome,
    Receipt,
    Verdict,
)
from penstock.quota import Quota
from penstock.stores.redis.codec import Part, Undo, lifetime
from penstock.stores.redis.errors import not_sent

MAX_OPS = 128
"""How many operations go into one script call at most: while it runs, the server runs nothing else."""

RECORDS = " "
"""The separator of the names of a request's records, if it has one in each of several partitions."""

Groups: TypeAlias = Sequence[tuple[int, Sequence[Part | Op]]]
Answers: TypeAlias = Sequence[Sequence[Outcome]]


class Partitions(Protocol):
    """The partitions of counters and records."""

    def of_counter(self, key: Key, quota: Quota) -> int:
        """Return the partition of a counter."""

    def of_record(self, record: str) -> int:
        """Return the partition of the record of a request with an id."""


class Undivided:
    """A single partition."""

    def of_counter(self, key: Key, quota: Quota) -> int:
        return 0

    def of_record(self, record: str) -> int:
        return 0


class Share(NamedTuple):
    """The part of an operation in one partition: which asks or charges, and the place of its answer."""

    partition: int
    members: list[int]
    place: int  # in its group


class _Round:
    """Operations that are sent at the same time: for each partition a group."""

    def __init__(self) -> None:
        self._groups: dict[int, list[Part | Op]] = {}
        self._answers: dict[int, Sequence[Outcome]] = {}

    def add(self, partition: int, op: Part | Op) -> int:
        """Add an operation; return the place of its answer."""
        group = self._groups.setdefault(partition, [])
        group.append(op)
        return len(group) - 1

    def is_full(self, partitions: Iterable[int]) -> bool:
        return any(len(self._groups.get(partition, ())) >= MAX_OPS for partition in partitions)

    def ask(self) -> Generator[Groups, Answers, None]:
        if self._groups:
            answers = yield list(self._groups.items())
            self._answers = dict(zip(self._groups, answers, strict=True))

    def answer(self, partition: int, place: int) -> Outcome:
        return self._answers[partition][place]

    def failed(self) -> set[int]:
        """Return the partitions whose call failed."""
        return {partition for partition, group in self._answers.items() if isinstance(group[-1], Failed)}


def one_partition(ops: Sequence[Op], partitions: Partitions) -> int | None:
    """Return the partition that all of `ops` are in, if there is one, and they fit into one call."""
    if len(ops) > MAX_OPS:
        return None
    if len(ops) == 1 and ops[0].__class__ is Acquire:  # of one key, as most are
        asks = ops[0].asks
        key, quota, _, _ = asks[0]
        if len(asks) == 1 or all([ask[0] == key for ask in asks]):  # noqa: C419  a generator costs more
            return partitions.of_counter(key, quota)
    found = {partition for op in ops for partition in _members(op, partitions)}
    return found.pop() if len(found) == 1 else None


def spread(ops: Sequence[Op], partitions: Partitions) -> Generator[Groups, Answers, list[Outcome]]:
    """Run operations over partitions: see above."""
    outcomes: list[Outcome] = []
    failed: set[int] = set()
    while len(outcomes) < len(ops):
        wave = _Wave(partitions)
        for op in ops[len(outcomes) :]:
            if not wave.take(op, failed):
                break
        outcomes += yield from wave.run()
        failed |= wave.asked.failed()
    return outcomes


class _Entry(NamedTuple):
    """An operation of a wave: its shares, or its outcome if it is not sent."""

    op: Op
    shares: list[Share]
    outcome: Outcome | None = None


class _Wave:
    """Operations that are sent at the same time, as many as can be."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self.asked, self._back = _Round(), _Round()
        self.entries: list[_Entry] = []
        self._unsettled: set[Key] = set()  # of requests that may be given back

    def take(self, op: Op, failed: set[int]) -> bool:
        """Add an operation, unless it has to wait for the next wave."""
        members = _members(op, self._partitions)
        waits = self._unsettled and not _charges(op) and any(key in self._unsettled for key, _ in _counters(op))
        if waits or self.asked.is_full(members):
            return False
        if failed and not failed.isdisjoint(members):
            all_failed = not_sent("an earlier part of the batch was not answered", "the same partition")
            self.entries.append(_Entry(op, [], all_failed))
            return True
        parts = dict.fromkeys(members, op) if len(members) == 1 else _parts(op, members, self._partitions)
        shares = [
            Share(partition, numbers, self.asked.add(partition, parts[partition]))
            for partition, numbers in members.items()
        ]
        self.entries.append(_Entry(op, shares))
        if len(shares) > 1 and _charges(op):
            self._unsettled.update(key for key, _ in _counters(op))
        return True

    def run(self) -> Generator[Groups, Answers, list[Outcome]]:
        yield from self.asked.ask()
        undone = [self._undo(entry) for entry in self.entries]
        peeks = [self._peek(entry, charged) for entry, charged in zip(self.entries, undone, strict=True)]
        yield from self._back.ask()
        return [self._outcome(entry, places) for entry, places in zip(self.entries, peeks, strict=True)]

    def _answers(self, entry: _Entry) -> list[Outcome]:
        return [self.asked.answer(share.partition, share.place) for share in entry.shares]

    def _undo(self, entry: _Entry) -> list[bool] | None:
        """Undo what was charged in one partition but not in another; return for which shares."""
        answers = self._answers(entry)
        if len(answers) < 2 or not isinstance(entry.op, Acquire) or entry.op.dry or all(map(_passes, answers)):
            return None
        for share, answer in zip(entry.shares, answers, strict=True):
            if isinstance(answer, Verdict) and answer:
                receipt = answer.receipt or Receipt((), _record(answer))
                undo = Amend if receipt.record is None else Undo
                self._back.add(share.partition, undo(receipt, "refund"))
        return list(map(_passes, answers))

    def _peek(self, entry: _Entry, undone: list[bool] | None) -> list[int | None] | None:
        """Peek at what was undone, once all of the wave is; return where the answers are."""
        if undone is None or not isinstance(entry.op, Acquire):
            return None
        places: list[int | None] = []
        for share, was_charged in zip(entry.shares, undone, strict=True):
            asks = tuple([entry.op.asks[number] for number in share.members])
            places.append(self._back.add(share.partition, Acquire(asks, dry=True)) if was_charged else None)
        return places

    def _outcome(self, entry: _Entry, back: list[int | None] | None) -> Outcome:
        if entry.outcome is not None:
            return entry.outcome
        answers = self._answers(entry)
        if len(entry.shares) == 1:
            return answers[0]
        if back is not None:
            for number, (share, place) in enumerate(zip(entry.shares, back, strict=True)):
                if place is not None:
                    stands = self._back.answer(share.partition, place)
                    answers[number] = stands if isinstance(stands, Verdict) else _uncharged(answers[number])
        failed = [answer for answer in answers if isinstance(answer, Failed)]
        if isinstance(entry.op, Acquire):
            return _verdict(entry.op, entry.shares, answers, failed)
        if failed:
            untouched = len(failed) == len(answers) and all(failure.charged == "no" for failure in failed)
            return Failed(failed[0].error, "no" if untouched else "unknown")
        return _amended(entry.shares, answers)


def _passes(answer: Outcome) -> bool:
    return isinstance(answer, Verdict) and bool(answer)


def _verdict(op: Acquire, shares: list[Share], answers: list[Outcome], failed: list[Failed]) -> Outcome:
    """Join the decisions of the partitions. If one refuses, the request is refused, whatever the others did."""
    refused = any(isinstance(answer, Verdict) and not answer for answer in answers)
    if failed and not refused:
        return Failed(failed[0].error, "unknown" if any(f.charged == "unknown" for f in failed) else "no")
    decisions: dict[int, Decision] = {}
    for share, answer in zip(shares, answers, strict=True):
        if isinstance(answer, Verdict):
            decisions.update(zip(share.members, answer.decisions, strict=True))
        else:
            decisions.update((number, _unknown(op.asks[number])) for number in share.members)
    told = tuple([decisions[number] for number in range(len(op.asks))])
    records = [record for answer in answers if isinstance(answer, Verdict) and (record := _record(answer))]
    return Verdict.of(told, RECORDS.join(records) if records and not refused else None)


def _record(verdict: Verdict) -> str | None:
    """Return the name of the record of a verdict on a request with an id."""
    return verdict[6] if len(verdict) > 6 else None


def _unknown(ask: Ask) -> Decision:
    """Return a decision in place of one that failed, in a request that other partitions refused."""
    return Decision(((False, 0, 0, 0, 0, 0, NOT_CHARGED), 0, *ask))


def _uncharged(answer: Outcome) -> Outcome:
    """Return a verdict without its charge, which could not be undone or perhaps was: it must not be undone again."""
    if not isinstance(answer, Verdict):
        return answer
    return Verdict.of(tuple([Decision(((*d[0][:-1], NOT_CHARGED), *d[1:])) for d in answer.decisions]))


def _amended(shares: list[Share], answers: list[Outcome]) -> Amended:
    each: dict[int, int] = {}
    for share, answer in zip(shares, answers, strict=True):
        if isinstance(answer, Amended):
            each.update(zip(share.members, answer.each, strict=True))
    return Amended(tuple([each[number] for number in sorted(each)]))


def _charges(op: Op) -> bool:
    return isinstance(op, Grant) or (isinstance(op, Acquire) and not op.dry)


def _counters(op: Op) -> list[tuple[Key, Quota]]:
    """Return the counters of an operation."""
    if isinstance(op, Acquire):
        return [(ask.key, ask.quota) for ask in op.asks]
    if isinstance(op, Amend):
        return [(charge.key, charge.quota) for charge in op.receipt.charges]
    return [(op.key, op.quota)]


def _members(op: Op, partitions: Partitions) -> dict[int, list[int]]:
    """Return the numbers of an operation's asks or charges by partition; none where only its record is."""
    members: dict[int, list[int]] = {}
    if isinstance(op, Amend) and op.receipt.record is not None:
        members = {partitions.of_record(record): [] for record in op.receipt.record.split(RECORDS)}
    for number, counter in enumerate(_counters(op)):
        members.setdefault(partitions.of_counter(*counter), []).append(number)
    return members


def _parts(op: Op, members: dict[int, list[int]], partitions: Partitions) -> dict[int, Part | Op]:
    """Return the part of an operation for each partition."""
    if isinstance(op, Acquire):
        each = {partition: tuple([op.asks[n] for n in numbers]) for partition, numbers in members.items()}
        if op.id is None:
            return {partition: Acquire(asks, op.dry) for partition, asks in each.items()}
        cost, lasts = max(ask.cost for ask in op.asks), lifetime(op.asks)
        return {partition: Part(asks, op.id, cost, lasts, op.asks) for partition, asks in each.items()}
    if not isinstance(op, Amend):
        return dict.fromkeys(members, op)
    receipt, verb, units = op
    charges, records = receipt.charges, {}
    if receipt.record is None:
        charges, units = receipt.portion(units), None
    else:
        records = {partitions.of_record(record): record for record in receipt.record.split(RECORDS)}
    return {
        partition: Amend(Receipt(tuple([charges[n] for n in numbers]), records.get(partition)), verb, units)
        for partition, numbers in members.items()
    }
