"""Operations into one script call, and its reply into outcomes. Pure: no I/O, no clock.

    ops ─▶ Codec.encode ─▶ ScriptCall(keys, args) ─▶ EVALSHA ─▶ bytes ─▶ Codec.decode ─▶ ScriptReply(outcomes, ...)

A call carries each distinct quota once; an ask names it by number. Numbers travel both ways as packed 64-bit integers
(`lua/main.lua` has the layout): few arguments to make and to parse, and a reply that needs no parser. What depends on a
quota alone is prepared once per quota.

A call goes to one server; operations for several are grouped by partition before (see `scatter`). An operation is
encoded without regard to the others, so any grouping gives the same outcomes.

An operation on a calendar quota is *stale* if the server's clock is more than a period away from the caller's, by which
the boundaries were chosen. Then it has changed nothing, and may be encoded again with the server's `now`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from math import gcd
from secrets import randbits
from struct import Struct
from typing import NamedTuple

from penstock.clock import Micros
from penstock.errors import StoreError
from penstock.model import (
    Acquire,
    Amend,
    Amended,
    Answer,
    Ask,
    Decision,
    Failed,
    Grant,
    Key,
    Op,
    Outcome,
    Reset,
    Verdict,
    new,
    own_mark,
)
from penstock.quota import BUCKETS, CALENDAR, CONCURRENCY, DEFAULT_ALGORITHM, LOGGED, MIN_INTERVAL, Quota
from penstock.quota.periods import CalendarPeriod
from penstock.stores.redis.keys import LETTERS, KeyFamily, Keys

LEAST_MEMORY_OF_IDS: Micros = 60_000_000
MAX_PREPARED = 4_096
MAX_NAMED = 16_384
LONGEST_NAMED = 256  # characters of a key that is worth remembering
MARK_BITS = 53  # a mark's part stands above them
RANDOM_BITS = 52

_PLAIN, _ACQUIRE, _ONCE, _AMEND, _RESET, _GRANT = range(6)
_VERBS = {"refund": 1, "settle": 2, "release": 3, "renew": 4, "report": 5}
_UNDO = 6
_ALL = _NO_RECORD = -1
_ANSWER = 8  # numbers per answer
_STALE = 2
_HEAD = Struct("<2q")  # now, how many values were corrupt
_ALIKE = Struct("<?7x6q8x")  # an `Answer`, if it cannot be stale and its mark has no part
_LONE = Struct("<2q?7x6q8x")  # both
_STALE_UNITS = -(2**53)


class ScriptCall(NamedTuple):
    """The script's KEYS and ARGV.

    - `records`: the keys of the records among them, in order.
    - `alike`: whether its reply is nothing but answers, one per operation, none of which can be stale or have a part.
    """

    keys: list[bytes]
    args: list[bytes]
    records: list[str]
    alike: bool


class ScriptReply(NamedTuple):
    """The reply of a server: one outcome per operation, and

    - `stale`: the positions of the operations that were not decided; their outcomes are `Failed`, and charged nothing.
    - `now`: when it was decided, by the server's clock.
    - `corrupt`: how many stored values could not be read, and were replaced as if empty.
    """

    outcomes: list[Outcome]
    stale: list[int]
    now: Micros
    corrupt: int


class Part(NamedTuple):
    """The asks of a request with an id that one partition decides on; `cost` and `lasts` are the whole request's, and
    stand in the record of each part. So does the `whole` of its asks, in the record's name: the same id with other
    asks is another request.
    """

    asks: tuple[Ask, ...]
    id: bytes
    cost: int
    lasts: Micros
    whole: tuple[Ask, ...]


class Undo(Amend):
    """The refund of a charge with a record, in one partition, because another partition refused or failed.

    A repeat of the request may have been told of the charge meanwhile, and may pass. Then the charge stays.
    """

    __slots__ = ()


class Prepared:
    """The part of a call that depends on a quota alone; it stays the same, or at least for a while."""

    __slots__ = ("_calendar", "_places", "_row", "answers_alike", "family", "is_plain")

    def __init__(self, quota: Quota, keys: Keys) -> None:
        self.family: KeyFamily = keys.family(quota)
        self._places = quota.algorithm == CONCURRENCY
        self._calendar: CalendarPeriod | None = quota.calendar
        options = quota.count_denied, quota.penalty_us or 0, quota.flat
        self.is_plain = quota.algorithm not in LOGGED and not any(options[:2])
        self.answers_alike = quota.algorithm not in (CALENDAR, "leaky_bucket")
        self._row: list[int] = [ord(LETTERS[quota.algorithm]), *options, quota.limit, quota.period_us]
        self._row += _parameters(quota)

    def new_mark(self) -> int:
        """Return the mark of a place, by which it is found again; other charges are found by their instant."""
        return randbits(RANDOM_BITS) if self._places else 0

    def row(self, now: Micros) -> list[int]:
        """Return the quota as the script reads it."""
        row = self._row
        if self._calendar is not None and not row[-3] <= now < row[-2]:  # a calendar period later
            row = self._row = row[:-4] + _boundaries(self._calendar, now)
        return row


class Codec:
    """Encodes and decodes calls with the keys of one store. Threads may share it."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._prepared: dict[Quota, Prepared] = {}
        self.named: dict[tuple[Key, Quota], bytes] = {}  # hashing costs more than all the rest of encoding

    def encode(self, ops: Sequence[Part | Op], now: Micros) -> ScriptCall:
        """Return the call for `ops`; `now` is what the caller takes for the server's time."""
        encoder = _Encoder(self, now)
        for op in ops:
            if isinstance(op, Acquire):
                encoder.acquire(op)
            elif isinstance(op, Amend):
                encoder.amend(op)
            elif isinstance(op, Part):
                encoder.once(*op)
            elif isinstance(op, Grant):
                encoder.grant(op)
            else:
                encoder.reset(op)
        return ScriptCall(
            encoder.keys, [_packed(encoder.numbers), _packed(encoder.rows)], encoder.records, encoder.alike
        )

    def decode(self, ops: Sequence[Part | Op], call: ScriptCall, reply: bytes) -> ScriptReply:
        """Return what `reply` means for `ops`, for which `call` was encoded."""
        if call.alike:  # as most are: plain asks; and mostly of a single one
            if len(ops) == 1:
                numbers = _LONE.unpack(reply)
                key, quota, cost, _ = ops[0][0][0]  # type: ignore[str-unpack]
                now = numbers[0]
                return new(ScriptReply, ([new(Verdict, (numbers[2:], now, key, quota, cost, ()))], [], now, numbers[1]))
            return _decode_alike(ops, reply)  # type: ignore[arg-type]  # then all of them are `Acquire`
        decoder = _Decoder(reply)
        records = iter(call.records)
        outcomes: list[Outcome] = []
        for op in ops:
            if isinstance(op, Acquire | Part):
                once = op.id is not None
                outcomes.append(decoder.verdict_once(op.asks, next(records)) if once else decoder.verdict(op.asks))
            elif isinstance(op, Grant):
                asks = (Ask(op.key, op.quota),)
                outcomes.append(decoder.verdict_once(asks, None if op.id is None else next(records)))
            else:
                outcomes.append(decoder.amended(len(op.receipt.charges)) if isinstance(op, Amend) else Amended())
        stale = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Failed)]
        return ScriptReply(outcomes, stale, decoder.now, decoder.corrupt)

    def prepared(self, quota: Quota) -> Prepared:
        found = self._prepared.get(quota)
        if found is None:
            if len(self._prepared) >= MAX_PREPARED:  # amounts that vary without end: start over
                self._prepared.clear()
            found = self._prepared[quota] = Prepared(quota, self.keys)
        return found

    def of_counter(self, key: Key, quota: Quota) -> int:
        """Return the partition of a counter, which depends on its key alone."""
        return self.keys.partition(self.named.get((key, quota)) or self.name(key, quota))

    def of_record(self, record: str) -> int:
        """Return the partition of a record, as receipts name it."""
        return self.keys.partition(record.encode())

    def name(self, key: Key, quota: Quota) -> bytes:
        """Return the key of a counter, and remember it for the next call."""
        name = self.keys.counter(self.keys.subject(key), self.prepared(quota).family)
        if isinstance(key, str) and len(key) <= LONGEST_NAMED:
            if len(self.named) >= MAX_NAMED:
                self.named.clear()
            self.named[key, quota] = name
        return name


def lifetime(asks: tuple[Ask, ...]) -> Micros:
    """Return how long a request with an id is remembered."""
    return max(LEAST_MEMORY_OF_IDS, *(ask.quota.horizon_us for ask in asks))


def is_always_alike(op: Part | Op) -> bool:
    """Return whether `op` is encoded the same each time: not if it has an id, a mark or a calendar."""
    if not isinstance(op, Acquire) or op.id is not None:
        return False
    return all(ask.quota.calendar is None and ask.quota.algorithm != CONCURRENCY for ask in op.asks)


class _Encoder:
    """A call that is being encoded."""

    def __init__(self, codec: Codec, now: Micros) -> None:
        self._codec, self._names, self._now = codec, codec.keys, now
        self._named = codec.named
        self._numbered: dict[Quota, tuple[int, Prepared]] = {}
        self.alike = True
        self.keys: list[bytes] = []
        self.numbers: list[int] = []
        self.rows: list[int] = []
        self.records: list[str] = []

    def acquire(self, op: Acquire) -> None:
        asks, dry, request_id, _ = op
        if len(asks) == 1 and request_id is None and not dry:
            key, quota, cost, advisory = asks[0]
            number, prepared = self._numbered.get(quota) or self._number(quota)
            if prepared.is_plain:
                self.keys.append(self._named.get((key, quota)) or self._codec.name(key, quota))
                self.numbers += (_PLAIN, number, cost)
                if advisory or not prepared.answers_alike:
                    self.alike = False
                return
        self.alike = False
        if request_id is None:
            self.numbers += (_ACQUIRE, len(asks), dry)
            self._ask(asks)
        else:
            self.once(asks, request_id, 0, lifetime(asks), asks)

    def amend(self, op: Amend) -> None:
        self.alike = False
        receipt, name_of_verb, units = op
        verb = _UNDO if op.__class__ is Undo else _VERBS[name_of_verb]
        serial, charges = _NO_RECORD, receipt.charges
        if receipt.record is None:
            charges = receipt.portion(units)
        else:
            name, _, text = receipt.record.rpartition("@")
            serial = int(text)
            self.keys.append(name.encode())
        lasts = max((charge.quota.horizon_us for charge in charges), default=0)
        self.numbers += (_AMEND, len(charges), 0, verb, _ALL if units is None else units, serial, lasts)
        for key, quota, cost, mark in charges:
            number, _ = self._counter(key, quota)
            part, mark = divmod(own_mark(mark), 1 << MARK_BITS)
            self.numbers += (number, cost, mark, part)

    def reset(self, op: Reset) -> None:
        self.alike = False
        self._counter(op.key, op.quota)
        self.numbers += (_RESET, 0, 0)

    def grant(self, op: Grant) -> None:
        self.alike = False
        key, quota, least, most, request_id = op
        serial = _NO_RECORD
        first = len(self.keys)
        number, prepared = self._counter(key, quota)
        if request_id is not None:
            serial = randbits(RANDOM_BITS)
            self._record(first, key, request_id, (Ask(key, quota),))
        lasts = max(LEAST_MEMORY_OF_IDS, quota.horizon_us)
        self.numbers += (_GRANT, least, most, serial, lasts, number, least, 0, prepared.new_mark())

    def once(self, asks: tuple[Ask, ...], request_id: bytes, cost: int, lasts: Micros, whole: tuple[Ask, ...]) -> None:
        self.alike = False
        self.numbers += (_ONCE, len(asks), cost, randbits(RANDOM_BITS), lasts)
        first = len(self.keys)
        self._ask(asks)
        self._record(first, asks[0].key, request_id, whole)

    def _record(self, first: int, key: Key, request_id: bytes, asks: tuple[Ask, ...]) -> None:
        """Add the key of the record of a request, before those of its counters."""
        named = [self._named.get(ask[:2]) or self._codec.name(ask.key, ask.quota) for ask in asks]
        record = self._names.record(self._names.subject(key), request_id, named)
        self.keys.insert(first, record)
        self.records.append(record.decode())

    def _ask(self, asks: tuple[Ask, ...]) -> None:
        for key, quota, cost, advisory in asks:
            number, prepared = self._counter(key, quota)
            self.numbers += (number, cost, advisory, prepared.new_mark())

    def _counter(self, key: Key, quota: Quota) -> tuple[int, Prepared]:
        """Add the key of a counter; return its quota's number in this call."""
        numbered = self._numbered.get(quota) or self._number(quota)
        named = self._named.get((key, quota))
        self.keys.append(named or self._codec.name(key, quota))
        return numbered

    def _number(self, quota: Quota) -> tuple[int, Prepared]:
        prepared = self._codec.prepared(quota)
        self.rows += prepared.row(self._now)
        numbered = self._numbered[quota] = len(self._numbered) + 1, prepared
        return numbered


def _decode_alike(ops: Sequence[Acquire], reply: bytes) -> ScriptReply:
    """Decode a reply to nothing but plain asks."""
    now, corrupt = _HEAD.unpack_from(reply)
    outcomes: list[Outcome] = [
        new(Verdict, (answer, now, key, quota, cost, ()))
        for answer, (((key, quota, cost, _),), _, _, _) in zip(_ALIKE.iter_unpack(reply[16:]), ops, strict=True)
    ]
    return new(ScriptReply, (outcomes, [], now, corrupt))


class _Decoder:
    """Decodes a reply from its beginning to its end."""

    def __init__(self, reply: bytes) -> None:
        self._numbers = _unpacked(reply)
        self.now, self.corrupt = self._numbers[:2]
        self._at = 2

    def verdict(self, asks: tuple[Ask, ...]) -> Verdict | Failed:
        if len(asks) > 1 or asks[0].advisory:
            return self._several(asks, self.now)
        answer = self._answer()
        if answer is None:
            return _stale()
        key, quota, cost, _ = asks[0]
        return new(Verdict, (answer, self.now, key, quota, cost, ()))

    def verdict_once(self, asks: tuple[Ask, ...], record: str | None) -> Verdict | Failed:
        """Return the verdict on a request with an id, or on a grant; a repeat has the instant and the costs of then."""
        decided_at, serial = self._take(2)
        costs_at = self._at + _ANSWER * len(asks)
        costs = self._numbers[costs_at : costs_at + len(asks)]
        asked = tuple([ask._replace(cost=cost) for ask, cost in zip(asks, costs, strict=True)])
        verdict = self._several(asked, decided_at, record and f"{record}@{serial}")
        self._at += len(costs)
        return verdict

    def amended(self, charges: int) -> Amended | Failed:
        each = self._take(charges)
        return _stale() if _STALE_UNITS in each else Amended(tuple(each))

    def _several(self, asks: tuple[Ask, ...], at: Micros, record: str | None = None) -> Verdict | Failed:
        answers = [self._answer() for _ in asks]
        if None in answers:
            return _stale()
        decisions = [Decision((answer, at, *ask)) for answer, ask in zip(answers, asks, strict=True)]
        return Verdict.of(tuple(decisions), record)

    def _answer(self) -> Answer | None:
        """Return the next answer; None if it is stale."""
        start = self._at
        self._at = end = start + _ANSWER
        allowed, remaining, retry_after, reset_after, more_after, delay, mark, part = self._numbers[start:end]
        if part:
            mark += part << MARK_BITS
        if allowed == _STALE:
            return None
        return allowed == 1, remaining, retry_after, reset_after, more_after, delay, mark

    def _take(self, count: int) -> list[int]:
        start = self._at
        self._at += count
        return self._numbers[start : self._at]


def _stale() -> Failed:
    error = StoreError("the clocks of caller and store are more than a calendar period apart", transient=True)
    return Failed(error, "no")


def _parameters(quota: Quota) -> list[int]:
    """Return what an algorithm needs beside limit and period; for a calendar the boundaries, which come later."""
    limit, period = quota.limit, quota.period_us
    if quota.algorithm == DEFAULT_ALGORITHM:
        tick = -(-period >> 20)
        return [tick, -(-period // tick), 0, 0]
    if quota.algorithm in (*BUCKETS, MIN_INTERVAL, "leaky_bucket"):
        return [quota.capacity, *divmod(quota.capacity * period, limit), gcd(limit, period)]
    return [int(quota.count_denied), 0, 0, 0]


def _boundaries(calendar: CalendarPeriod, now: Micros) -> list[Micros]:
    """Return the boundaries of the period that holds `now`, of the one before and the one after."""
    start, end = calendar.bounds(now)
    return [calendar.bounds(start - 1)[0], start, end, calendar.bounds(end)[1]]


def _packed(numbers: list[int]) -> bytes:
    packed = array("q", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpacked(reply: bytes) -> list[int]:
    numbers = array("q", reply)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
