"""Records of admitted requests that had an id: the same id gets the same answer, and is charged once.

Whatever of a request is given back or settled is noted in its record, so that doing it twice is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple, TypeAlias

from penstock.clock import Micros
from penstock.model import NOT_CHARGED, Posed, Verdict, new, own_mark
from penstock.stores.memory.counters import Counters
from penstock.stores.memory.stripes import MASK, Kind, Stripe, Stripes

LEAST_MEMORY_OF_IDS: Micros = 60_000_000


class RecordName(NamedTuple):
    """The name of a record: its slot, and a serial number, because a slot may get another record later.

    It is not one text, because the text of the slot keeps its hash, which makes settling faster.
    """

    slot: str
    serial: int

    def __str__(self) -> str:
        return f"{self.slot}@{self.serial}"

    def __repr__(self) -> str:
        return f"<RecordName {self.serial}>"  # the slot tells the key


DecideAll: TypeAlias = Callable[[Sequence[Posed], Micros, type[Verdict]], Verdict]

Record: TypeAlias = tuple[int, Micros, Verdict, int, bool]
"""The record of an admitted request with an id: serial, expires_at, verdict, cost, settled.

The cost is what can still be given back: a refund lowers it, a settlement replaces it.
"""


NO_RECORD: Record = (0, 0, Verdict(), 0, True)


class Records(Kind):
    """The kind of all records: they make way before any counter that was used, the youngest first."""

    __slots__ = ("_counters", "_serials", "_stripes")

    def __init__(self, stripes: Stripes, counters: Counters) -> None:
        super().__init__(stripes)
        self._stripes, self._counters = stripes, counters
        self._serials = count(1)

    def expiry(self, record: Record) -> Micros:
        return record[1]

    def weight(self, record: Record, now: Micros) -> tuple[float, float]:
        return 0.0, float(now - record[1])

    def home(self, slot: str) -> Stripe:
        """Return the stripe of the record in `slot`: not that of its key, which may have many."""
        return self._stripes.all[hash(slot) & MASK]

    def once(self, asks: Sequence[Posed], request_id: bytes, now: Micros, decide: DecideAll) -> Verdict:
        """Return what a request with an id was answered before, if it was admitted; else what `decide` says."""
        stripes, order, places = self._stripes, [], False
        slot = f"{request_id.hex()}:"
        for key, quota, _, _ in asks:
            _, _, _, bound, kind = self._counters.of(quota)
            slot += kind.name(key)
            order.append(hash(key) & MASK)
            places = places or bound.renew is not None
        number = hash(slot) & MASK
        order.append(number)
        order.sort()
        try:
            for each in order:
                stripes.acquires[each]()
            record: Record | None = self.shelves[number].find(slot)
            if record is not None and record[1] > now and (not places or self._still_held(asks, record[2], now)):
                verdict = record[2]
            else:
                verdict = Verdict((*decide(asks, now, Verdict), new(RecordName, (slot, next(self._serials)))))
                if verdict[0][0]:
                    if record is not None:
                        stripes.all[number].forget(self, slot)
                    self._remember(stripes.all[number], verdict)
            for each in order:
                stripes.releases[each]()
        except BaseException:
            stripes.let_go(order)
            raise
        return verdict

    def _remember(self, home: Stripe, verdict: Verdict) -> None:
        _, now, _, quota, cost, several, (slot, serial) = verdict
        lasts = quota.horizon_us
        if several:
            lasts = max([decision.quota.horizon_us for decision in several])
            cost = max([decision.cost for decision in several])
        lasts = lasts if lasts > LEAST_MEMORY_OF_IDS else LEAST_MEMORY_OF_IDS
        record: Record = (serial, now + lasts, verdict, cost, False)
        self._stripes.add(home, self, slot, record, now)

    def _still_held(self, asks: Sequence[Posed], verdict: Verdict, now: Micros) -> bool:
        """Return whether the places that came with a verdict are still held, so that it may be given again."""
        for (key, quota, _, _), decision in zip(asks, verdict.decisions, strict=True):
            counter = self._counters.at(key, quota)
            renew = counter.bound.renew
            if renew is not None and decision.mark != NOT_CHARGED:
                state = counter.find()
                if state is None or renew(state, own_mark(decision.mark), now) is None:
                    return False
        return True
