"""The one question Penstock answers, and the answer.

An `Ask` is (key, quota, cost). An `Acquire` is a request: asks that are charged together or not at all. A store is
handed operations and returns one outcome for each, in order:

    Acquire ─▶ Verdict        may it pass, and if not, when
    Grant   ─▶ Verdict        how many units, of a least and a most
    Amend   ─▶ Amended        what was given back
    Reset   ─▶ Amended        a counter forgotten
    any     ─▶ Failed         the store could not answer; was it charged?

Records are tuples, because a tuple costs a tenth of a dataclass. `Decision` and `Verdict`, which are made on every
call, are plain subclasses of tuple, because that saves NamedTuple's Python-level constructor. What ends in `_us` is in
microseconds; the same name without it speaks seconds. No record shows its key when printed, because keys are
identities and what is printed ends up in logs.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self, TypeAlias, cast

from penstock.clock import SECOND, Micros
from penstock.errors import (
    CostExceedsLimit,
    InvalidCost,
    InvalidKey,
    InvalidReceipt,
    InvalidRequest,
    StoreError,
    shown,
)
from penstock.quota import CONCURRENCY, DEFAULT_ALGORITHM, MIN_INTERVAL, Quota

MAX_COST = 2**53 - 1
MAX_KEY_PART = 1_024
MAX_KEY_PARTS = 32
MAX_ASKS = 1_024
"""How many counters one request may have."""

Key: TypeAlias = str | tuple[str, ...]
"""What a limit is for: text, or a tuple of texts that never run together. `("a",)` is the same as `"a"`."""

NOT_CHARGED = -1
"""The mark of a decision that left no charge behind."""


OnFailure: TypeAlias = Literal["local", "open", "closed", "raise"]
"""What happens when the store cannot answer: this host decides, all requests pass, none passes, an error is raised."""

Source: TypeAlias = Literal["store", "local", "open", "closed"]
"""The source of an answer: the store, or the behaviour that replaced it."""

Mark: TypeAlias = int | tuple[str, str, int]
"""The part of a charge by which its algorithm finds it again.

A store marks a charge with a number. A layer that decides in the store's place, because it holds units in advance,
marks a charge with the level it came from, the block of units there, and the number within that block. So a refund
reaches the level that was charged. Such charges stay within the layer: a store is given its own marks only.
"""

new = tuple.__new__  # makes a record without NamedTuple's Python-level constructor, in half the time


class Ask(NamedTuple):
    """May `key` spend `cost` units of `quota`? An advisory ask is counted and reported, but never refuses."""

    key: Key
    quota: Quota
    cost: int = 1
    advisory: bool = False

    def __repr__(self) -> str:
        return f"<Ask {self.quota}: {self.cost}{', advisory' if self.advisory else ''}>"


Posed: TypeAlias = tuple[Key, Quota, int, bool]
"""The fields of an ask, as a plain tuple, which costs a third: for requests that never become operations."""

Answer: TypeAlias = tuple[bool, int, Micros, Micros, Micros, Micros, int]
"""What an algorithm says: allowed, remaining, retry_after, reset_after, more_after, delay, mark."""


class Decision(tuple[Any, ...]):
    """The answer to one ask: a tuple of the algorithm's `Answer`, the instant, key, quota, cost, advisory."""

    __slots__ = ()

    def __bool__(self) -> bool:
        allowed: bool = self[0][0]
        return allowed

    @property
    def answer(self) -> Answer:
        answer: Answer = self[0]
        return answer

    @property
    def allowed(self) -> bool:
        """Whether the ask fits."""
        allowed: bool = self[0][0]
        return allowed

    @property
    def remaining(self) -> int:
        """Units left after the charge, or, where nothing was charged, units left now."""
        remaining: int = self[0][1]
        return remaining

    @property
    def retry_after_us(self) -> Micros:
        retry_after_us: Micros = self[0][2]
        return retry_after_us

    @property
    def reset_after_us(self) -> Micros:
        reset_after_us: Micros = self[0][3]
        return reset_after_us

    @property
    def more_after_us(self) -> Micros:
        more_after_us: Micros = self[0][4]
        return more_after_us

    @property
    def delay_us(self) -> Micros:
        delay_us: Micros = self[0][5]
        return delay_us

    @property
    def mark(self) -> Mark:
        """Where the charge went, for the algorithm to find it again; `NOT_CHARGED` if there was none."""
        mark: Mark = self[0][6]
        return mark

    @property
    def at_us(self) -> Micros:
        """When it was decided, by the store's clock."""
        at_us: Micros = self[1]
        return at_us

    @property
    def key(self) -> Key:
        return cast("Key", self[2])

    @property
    def quota(self) -> Quota:
        return cast("Quota", self[3])

    @property
    def cost(self) -> int:
        return cast("int", self[4])

    @property
    def advisory(self) -> bool:
        return self[5] is True

    @property
    def limit(self) -> int:
        """Units per period of the quota."""
        return self.quota.limit

    @property
    def retry_after(self) -> float:
        """Seconds until the same request would pass if no other request came; 0 when it passed."""
        return self.retry_after_us / SECOND

    @property
    def reset_after(self) -> float:
        """Seconds until the window ends, the bucket is full, or the oldest entry leaves the log."""
        return self.reset_after_us / SECOND

    @property
    def more_after(self) -> float:
        """Seconds until at least one more unit is free; 0 when none is in use."""
        return self.more_after_us / SECOND

    @property
    def delay(self) -> float:
        """Seconds to wait before going ahead with an admitted request."""
        return self.delay_us / SECOND

    def __repr__(self) -> str:
        state = "allowed" if self.allowed else f"refused, retry after {self.retry_after:.6g} s"
        return f"<{type(self).__name__} {self.quota}: {state}, {self.remaining} left>"


class Verdict(Decision):
    """The answer to one request; true when it may pass.

    It reads like a decision: the tightest one, which is the refused one with the longest wait, else the one with the
    smallest share left (a `min_interval` last). With a single ask there is nothing to choose, and the verdict is the
    only object made. Its sixth item holds the decisions if there were several; the seventh, if the request had an id,
    is the store's own name for its record, which a receipt carries as text; the eighth, if the store could not answer,
    names the source of the answer.
    """

    __slots__ = ()

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """One decision per ask, in the order asked."""
        return self[5] or (Decision((*self[:5], False)),)

    @property
    def receipt(self) -> Receipt | None:
        """What was charged, or None if nothing was."""
        if not self[5]:
            (_, _, _, _, _, _, mark), _, key, quota, cost, *_ = self
            charges: tuple[Charge, ...] = (Charge(key, quota, cost, mark),) if mark != NOT_CHARGED else ()
        else:
            charges = tuple(Charge(d.key, d.quota, d.cost, d.mark) for d in self[5] if d.mark != NOT_CHARGED)
        record = self[6] if len(self) > 6 else None
        return Receipt(charges, None if record is None else str(record), self.source) if charges else None

    @property
    def source(self) -> Source:
        """The source of the answer: "store", or what stood in for it: "local", "open", "closed"."""
        return self[7] if len(self) > 7 else "store"

    @property
    def degraded(self) -> bool:
        """Whether the store could not answer, and another source did in its place."""
        return len(self) > 7

    @classmethod
    def of(cls, decisions: tuple[Decision, ...], record: object = None) -> Self:
        """Return the verdict that follows from the decisions on all asks of a request."""
        named = () if record is None else (record,)
        several = decisions if len(decisions) > 1 or decisions[0].advisory else ()
        judged = [decision for decision in decisions if not decision[5]] or decisions
        tightest, least, refused, delay = judged[0], 2.0, False, 0
        for decision in judged:  # a loop rather than min and max over properties: requests of several asks are hot
            (allowed, remaining, retry_after, _, _, wait, _), _, _, quota, _, advisory = decision
            if not allowed and not advisory:
                if not refused or retry_after > tightest[0][2]:
                    tightest, refused = decision, True
            elif not refused:
                delay = wait if wait > delay else delay
                # Right after an admission an interval has nothing left, which says nothing about how much is.
                share = 1.5 if quota.algorithm == MIN_INTERVAL else remaining / quota.capacity
                if share < least:
                    tightest, least = decision, share
        answer, at, key, quota, cost, _ = tightest
        if not refused and (delay != answer[5] or not answer[0]):
            _, remaining, _, reset_after, more_after, _, mark = answer
            answer = True, remaining, 0, reset_after, more_after, delay, mark
        return cls((answer, at, key, quota, cost, several, *named))


class Charge(NamedTuple):
    """Units that went to one counter, and the mark by which its algorithm finds them again."""

    key: Key
    quota: Quota
    cost: int
    mark: Mark

    def __repr__(self) -> str:
        return f"<Charge {self.quota}: {self.cost}>"


class Receipt(NamedTuple):
    """Proof of what a request was charged; the only way to give it back. `record` is the store's name for its id, and
    `source` says where it was charged.
    """

    charges: tuple[Charge, ...]
    record: str | None = None
    source: Source = "store"

    def __repr__(self) -> str:
        return f"<Receipt {', '.join(f'{charge.quota}: {charge.cost}' for charge in self.charges)}>"

    @property
    def cost(self) -> int:
        """The cost of the request, which counters that charge 1 whatever the cost do not show."""
        return max((charge.cost for charge in self.charges), default=0)

    def portion(self, units: int | None, *, last: bool | None = None) -> tuple[Charge, ...]:
        """Return what to take from each counter to give back `units` of the request's cost; None gives back all of it.

        Counters that charge 1 whatever the cost stay charged until the last of the request is given back.
        """
        if units is None or (units >= self.cost and last is not False):
            return self.charges
        return tuple(c._replace(cost=int(bool(last)) if c.quota.flat else min(c.cost, units)) for c in self.charges)


AmendVerb: TypeAlias = Literal["refund", "settle", "release", "renew", "report"]


class Acquire(NamedTuple):
    """Decide on all asks at one instant; charge all or none.

    `dry` decides and charges nothing. An admitted request with an `id` is remembered: asked again with the same id, it
    is answered again and not charged again. `on_failure` says what happens when the store cannot answer; None leaves it
    to the limiter.
    """

    asks: tuple[Ask, ...]
    dry: bool = False
    id: bytes | None = None
    on_failure: OnFailure | None = None


class Grant(NamedTuple):
    """Charge as many units as fit now, from `least` to `most`; refuse if fewer than `least` fit.

    The verdict is that of a request for so many units: its `cost` is what was granted, or `least` if it was refused. A
    granted request with an `id` is remembered, as an `Acquire` is: a repeat is answered with the units granted then.
    `least` is at least 1 and at most the quota's capacity; both are 1 for a quota that charges 1 whatever the cost.
    """

    key: Key
    quota: Quota
    least: int
    most: int
    id: bytes | None = None

    def __repr__(self) -> str:
        return f"<Grant {self.quota}: {self.least} to {self.most}>"

    def cost(self, remaining: int) -> int:
        """Return the cost to charge, or to refuse, when so many units are left."""
        return max(self.least, min(self.most, remaining))


class Amend(NamedTuple):
    """Change an earlier charge, or add one that was made elsewhere.

    - `refund` gives back `units`, all of them if None, as far as they are still charged.
    - `settle` makes the cost `units` after all: gives back what was too much, charges what was too little even if it
      does not fit. Takes effect once, and only where the request had an id.
    - `release` gives back the places that are held, and leaves rates charged.
    - `renew` holds them for another ttl.
    - `report` charges what was admitted elsewhere, whether it fits or not, into the window it happened in, as far as it
      still counts there. The receipt has no record, and the mark of each charge is the instant of the admission, in
      microseconds since the epoch by the store's clock; one ahead of it means now. For layers that admit in the store's
      place. A report is not recorded, so report once.
    """

    receipt: Receipt
    verb: AmendVerb
    units: int | None = None


class Reset(NamedTuple):
    """Forget what `key` used of `quota`."""

    key: Key
    quota: Quota

    def __repr__(self) -> str:
        return f"<Reset {self.quota}>"


class Amended(NamedTuple):
    """How many units came back to each counter of the receipt, in its order; below zero what was to be charged on top.

    A bucket that is owed all of itself takes no more.
    """

    each: tuple[int, ...] = ()

    @property
    def units(self) -> int:
        """The most that changed for any one counter."""
        return max(self.each, key=abs, default=0)


class Failed(NamedTuple):
    """The store could not answer. `charged` says whether the operation may have taken effect all the same."""

    error: StoreError
    charged: Literal["no", "unknown"]


Op: TypeAlias = Acquire | Grant | Amend | Reset
Outcome: TypeAlias = Verdict | Amended | Failed


def own_mark(mark: Mark) -> int:
    """Return a mark that a store made; raise `InvalidReceipt` for one of a layer, which only that layer understands."""
    if isinstance(mark, tuple):
        raise InvalidReceipt(f"a charge of level {shown(mark[0])}: expected a charge of the store")
    return mark


def check_cost(cost: int, quota: Quota, *, least: int = 1) -> int:
    """Return `cost` if it is a whole number that `quota` could ever admit."""
    return check_fits(check_units("cost", cost, least=least), quota)


def check_fits(cost: int, quota: Quota) -> int:
    """Return `cost` if `quota` could ever admit it."""
    most = quota.capacity
    if cost > most:
        raise CostExceedsLimit(
            f"cost {shown(cost)}: {quota} admits at most {most} at once, however long one waits", cost, most
        )
    return cost


def check_units(what: str, units: int, *, least: int) -> int:
    if isinstance(units, bool) or not isinstance(units, int):
        raise InvalidCost(f"{what} {shown(units)}: expected a whole number, not {type(units).__name__}")
    if not least <= units <= MAX_COST:
        raise InvalidCost(f"{what} {shown(units)}: expected {least} to {MAX_COST}")
    return units


def check_key(key: Key) -> Key:
    """Return `key` in its canonical form: text for a single part, else a tuple of texts."""
    if isinstance(key, str):
        if not (key.isascii() and 0 < len(key) <= MAX_KEY_PART):
            _check_part("key", key)
        return key
    if not isinstance(key, tuple):
        raise InvalidKey(f"key: expected text or a tuple of texts, not {type(key).__name__}")
    if not 1 <= len(key) <= MAX_KEY_PARTS:
        raise InvalidKey(f"key of {len(key)} parts: expected 1 to {MAX_KEY_PARTS}")
    for position, part in enumerate(key):
        _check_part(f"key part {position}", part)
    return key if len(key) > 1 else key[0]


def _check_part(what: str, part: str) -> None:
    if not isinstance(part, str):
        raise InvalidKey(f"{what}: expected text, not {type(part).__name__}")
    if not part:
        raise InvalidKey(f"{what}: expected text that is not empty")
    try:
        size = len(part.encode())
    except UnicodeEncodeError as error:
        raise InvalidKey(
            f"{what}: lone surrogate at index {error.start} (expected text that UTF-8 can carry)"
        ) from None
    if size > MAX_KEY_PART:
        raise InvalidKey(f"{what} of {size} bytes: expected at most {MAX_KEY_PART}")


def check_asks(asks: int) -> None:
    """Raise `InvalidRequest` if a request of so many counters is too large."""
    if asks > MAX_ASKS:
        raise InvalidRequest(f"a request of {asks} quotas: expected at most {MAX_ASKS}")


def check_quotas(quotas: tuple[Quota, ...]) -> tuple[Quota, ...]:
    """Return `quotas` if one request of one key may ask them all."""
    if not quotas:
        raise InvalidRequest("a request without quotas: expected at least one")
    check_asks(len(quotas))
    seen = set()
    for quota in quotas:
        if quota.identity in seen:
            raise InvalidRequest(f"{quota}: asked twice in one request (give one of them a name to keep them apart)")
        seen.add(quota.identity)
    return quotas


# ---------------------------------------------------------------- inspection


# The state of a key's counters, in words.


class Inspection(NamedTuple):
    """One counter as it is now. Times are in seconds.

    - `used` and `remaining`: units, or places held and free, out of `capacity`.
    - `blocked_for`: how long one more unit would be refused; 0 if it would pass.
    - `reset_after`: until the window ends, the bucket is full, the oldest entry leaves, the first place expires.
    """

    quota: Quota
    used: int
    remaining: int
    capacity: int
    blocked_for: float
    reset_after: float

    @property
    def algorithm(self) -> str:
        return self.quota.algorithm

    def __str__(self) -> str:
        """E.g. `100/minute (sliding_window): 12 of 100 used, 88 left, reset in 41.2 s`."""
        things = "places held" if self.algorithm == CONCURRENCY else "used"
        named = f" ({DEFAULT_ALGORITHM})" if self.algorithm == DEFAULT_ALGORITHM else ""
        text = f"{self.quota}{named}: {self.used} of {self.capacity} {things}, {self.remaining} left"
        if self.blocked_for:
            text += f", refused for {self.blocked_for:.6g} s"
        return f"{text}, reset in {self.reset_after:.6g} s" if self.reset_after else text


class Explained(NamedTuple):
    """One rule: whether it applies to the descriptor, and why or why not.

    - `key`: which entries make the key, and the kind of value of each; `counters`: how each of them stands now.
    """

    rule: str
    applies: bool
    why: str
    mode: str = "enforce"
    action: str = "limit"
    key: str = ""
    quotas: tuple[Quota, ...] = ()
    counters: tuple[Inspection, ...] = ()

    def __str__(self) -> str:
        shadow = ", in shadow mode" if self.applies and self.mode == "shadow" else ""
        lines = [f"{self.rule}: {'applies' if self.applies else 'does not apply'}{shadow}: {self.why}"]
        if self.key:
            lines.append(f"    counted by {self.key}")
        shown = self.counters or self.quotas
        return "\n".join([*lines, *(f"    {one}" for one in shown)])


class Explanation(NamedTuple):
    """The explanation of a ruling: its outcome, and what each rule did, in order."""

    version: str
    outcome: str
    rules: tuple[Explained, ...]

    def __str__(self) -> str:
        return "\n".join([f"rules {self.version}: {self.outcome}", *map(str, self.rules)])


def inspections(peeked: Verdict) -> list[Inspection]:
    """Return the state of each counter of a dry request of one unit."""
    return [_inspection(decision) for decision in peeked.decisions]


def _inspection(decision: Decision) -> Inspection:
    quota, remaining = decision.quota, decision.remaining
    used = quota.capacity - remaining
    return Inspection(quota, used, remaining, quota.capacity, decision.retry_after, decision.reset_after)
