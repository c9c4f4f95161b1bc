"""The first and the last step of both limiters: arguments to operations, outcomes to results. Nothing here waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias, cast

from penstock.clock import SECOND, Micros, steady_ns_of
from penstock.engine.engine import AsyncEngine, Engine
from penstock.engine.protocols import BoundQuota
from penstock.engine.queues import Lines
from penstock.errors import InvalidCost, InvalidOption, InvalidReceipt, InvalidRequest, StoreError, shown
from penstock.model import (
    MAX_COST,
    MAX_KEY_PART,
    NOT_CHARGED,
    Acquire,
    Amend,
    Amended,
    Ask,
    Failed,
    Key,
    Outcome,
    Receipt,
    Reset,
    Verdict,
    check_asks,
    check_cost,
    check_key,
    check_quotas,
    check_units,
    new,
)
from penstock.quota import CONCURRENCY, Quota

QuotaLike: TypeAlias = str | Quota | Sequence[str | Quota]
"""A quota, its text, a text of several, or several of either."""

Request: TypeAlias = tuple[Key, QuotaLike] | tuple[Key, QuotaLike, int]
"""(key, quota), or (key, quota, cost)."""

Id: TypeAlias = str | bytes
"""Identifies a repeated request: 1 to 255 bytes, or a text of as many in UTF-8."""

MAX_REMEMBERED = 4_096
MAX_ID = 255
MAX_TIMEOUT = 86_400 * 3_650


class Operations:
    """Makes the operations of a limiter, and decides without one where the store is in this process.

    `bound` has what is prepared for each quota, by the quota as callers write it.
    """

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self._engine = engine
        self._time_ns, self._steady_ns = engine.clock.time_ns, steady_ns_of(engine.clock)
        self.bound: dict[object, BoundQuota] = {}
        self.queues = Lines()
        self.closed = False

    def close(self) -> None:
        """Refuse all further calls."""
        self.closed = True
        self.bound.clear()

    def check_open(self) -> None:
        """Raise `StoreError` if the limiter is closed."""
        if self.closed:
            raise StoreError("the limiter is closed", transient=False)

    # Quotas

    def bind(self, quota: QuotaLike) -> BoundQuota:
        """Return what is prepared for `quota`. A text is parsed once and remembered."""
        self.check_open()
        name = tuple(quota) if isinstance(quota, list) else quota
        try:
            return self.bound[name]
        except KeyError:
            pass
        except TypeError:  # lists within a list, or no quota at all
            return self._engine.bind(_parts(quota))
        bound = self._engine.bind(_parts(quota))
        if len(self.bound) >= MAX_REMEMBERED:
            self.bound.clear()
        self.bound[name] = bound
        return bound

    def quotas(self, quota: QuotaLike) -> tuple[Quota, ...]:
        """Return the counters behind `quota`."""
        return self.bind(quota).parts

    def has_places(self, quota: QuotaLike) -> bool:
        """Return whether `quota` limits how many run at once."""
        return any(part.algorithm == CONCURRENCY for part in self.quotas(quota))

    def check_places(self, quota: QuotaLike) -> None:
        """Raise `InvalidRequest` if `quota` has no places to hold."""
        if not self.has_places(quota):
            raise InvalidRequest('hold: no quota has places to hold (expected one such as "5 concurrent ttl 30s")')

    def shapes(self, quota: QuotaLike) -> bool:
        """Return whether `quota` delays requests."""
        return any(part.algorithm == "leaky_bucket" for part in self.quotas(quota))

    # Operations

    def acquire(self, key: Key, quota: QuotaLike, cost: int = 1, *, dry: bool = False, id: Id | None = None) -> Acquire:
        """Return the request of `cost` units of `quota` for `key`."""
        if key.__class__ is not str or not key.isascii() or not 0 < len(key) <= MAX_KEY_PART:  # spares a call
            key = check_key(key)
        try:
            parts = self.bound[quota].parts
        except (KeyError, TypeError):
            parts = self.bind(quota).parts
        if cost == 1 and cost.__class__ is int and id is None:  # a cost of 1 fits every quota
            if len(parts) == 1:  # as usual
                return new(Acquire, ((new(Ask, (key, parts[0], 1, False)),), dry, None, None))
            return new(Acquire, (tuple([new(Ask, (key, part, 1, False)) for part in parts]), dry, None, None))
        least = 0 if dry else 1
        flat = min(check_units("cost", cost, least=least), 1)
        asks = tuple(Ask(key, part, flat if part.flat else check_cost(cost, part, least=least)) for part in parts)
        return Acquire(asks, dry, None if id is None else check_id(id))

    def acquire_many(self, requests: Sequence[Request]) -> list[Acquire]:
        """Return one operation per request."""
        for position, request in enumerate(requests):
            if not isinstance(request, tuple) or not 2 <= len(request) <= 3:
                raise InvalidRequest(f"request {position}: expected (key, quota) or (key, quota, cost)")
        return [self.acquire(request[0], request[1], request[2] if len(request) == 3 else 1) for request in requests]

    def acquire_all(self, requests: Iterable[Request], *, id: Id | None = None) -> Acquire:
        """Return one operation for all requests: all are charged or none."""
        asks = [ask for op in self.acquire_many(listed(requests)) for ask in op.asks]
        if not asks:
            raise InvalidRequest("no requests: expected at least one")
        check_asks(len(asks))
        counters = set()
        for key, quota, _, _ in asks:
            counter = key, quota.identity
            if counter in counters:
                raise InvalidRequest(f"{quota}: asked twice of one key (give one of the quotas a name)")
            counters.add(counter)
        return Acquire(tuple(asks), id=None if id is None else check_id(id))

    def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amend:
        """Return the operation that gives back `units` of a charge, or all of it."""
        receipt = self._receipt("refund", charged)
        if units is not None and check_units("units", units, least=1) > receipt.cost:
            raise InvalidCost(f"units {shown(units)}: expected at most {receipt.cost}, which is what was charged")
        return Amend(receipt, "refund", units)

    def settle(self, charged: Verdict | Receipt, units: int) -> Amend:
        """Return the operation that makes the cost of a reservation `units`."""
        receipt = self._receipt("settle", charged)
        if receipt.record is None and receipt.source != "open":  # "open" charges nothing and has no record
            raise InvalidReceipt("settle of a request without an id (expected one made by reserve, or with an id)")
        return Amend(receipt, "settle", check_units("units", units, least=0))

    def places(self, verb: Literal["release", "renew"], charged: Verdict | Receipt) -> Amend:
        """Return the operation that releases or renews the places of a request."""
        receipt = self._receipt(verb, charged)
        if not any(charge.quota.algorithm == CONCURRENCY for charge in receipt.charges):
            raise InvalidReceipt(f"{verb} of a request that holds no place (expected one with a concurrency quota)")
        return Amend(receipt, verb)

    def reset(self, key: Key, quota: QuotaLike) -> list[Reset]:
        """Return the operations that forget what `key` has used of `quota`."""
        key = check_key(key)
        return [Reset(key, part) for part in self.quotas(quota)]

    def _receipt(self, verb: str, charged: Verdict | Receipt) -> Receipt:
        self.check_open()
        if not isinstance(charged, Verdict | Receipt):
            raise InvalidReceipt(f"{verb} of {type(charged).__name__}: expected a verdict or its receipt")
        receipt = charged if isinstance(charged, Receipt) else charged.receipt
        if receipt is None or not receipt.charges:
            raise InvalidReceipt(f"{verb} of a verdict that charged nothing (expected one that was allowed)")
        return receipt

    # Where the store is in this process: without an operation

    def decide(self, key: Key, quota: QuotaLike, cost: int, id: Id | None) -> Verdict | None:
        """Return the verdict if the request can be decided in this process, else None."""
        try:
            bound = self.bound[quota]
        except (KeyError, TypeError):
            bound = self.bind(quota)
        time_ns = self._time_ns
        if id is None:
            local = bound.local
            return None if local is None else local(key, cost, time_ns() // 1_000)
        once = bound.once
        return None if once is None else once(check_key(key), cost, check_id(id), time_ns() // 1_000)

    def decide_many(self, requests: Sequence[Request]) -> list[Verdict] | None:
        """Return the verdicts if all requests cost 1, their quotas are bound and their keys plain ASCII; else None."""
        self.check_open()
        if not self._engine.in_process or set(map(type, requests)) != {tuple}:
            return None
        bound = self.bound
        try:
            keys, quotas = zip(*requests, strict=True)
            decides = [bound[quota].local for quota in quotas]
            text = "".join(keys)
        except (KeyError, TypeError, ValueError):  # a quota not seen before, a list of them, a cost, parts of a key
            return None
        sizes = list(map(len, keys))
        if not text.isascii() or min(sizes) < 1 or max(sizes) > MAX_KEY_PART:
            return None
        now = self._time_ns() // 1_000
        return [decide(key, 1, now) for decide, key in zip(decides, keys, strict=True)]  # type: ignore[misc]

    def refunded(self, charged: Verdict | Receipt) -> int | None:
        """Refund a verdict and return how many units came back. Only in this process, and of a single ask without an
        id; else return None.
        """
        if charged.__class__ is not Verdict or len(charged) != 6 or charged[5]:
            return None
        answer, _, key, quota, cost, _ = charged
        mark = answer[6]
        amends = (self.bound.get(quota) or self.bind(quota)).amends
        if mark == NOT_CHARGED or amends is None:
            return None
        time_ns = self._time_ns
        return amends.refund(key, cost, mark, time_ns() // 1_000)

    def settled(self, charged: Verdict | Receipt, units: int) -> Amended | None:
        """Settle a verdict. Only in this process, and of a single ask with an id; else return None."""
        if charged.__class__ is not Verdict or len(charged) != 7 or charged[5]:
            return None
        quota = charged[3]
        amends = (self.bound.get(quota) or self.bind(quota)).amends
        if amends is None or charged[0][6] == NOT_CHARGED or units.__class__ is not int or not 0 <= units <= MAX_COST:
            return None
        time_ns = self._time_ns
        return new(Amended, ((amends.settle(charged, units, time_ns() // 1_000),),))

    # Time

    def now(self) -> Micros:
        return self._time_ns() // 1_000

    def steady(self) -> Micros:
        """Return the time by which waiting is measured: stepping the clock back makes no wait longer."""
        return self._steady_ns() // 1_000

    def deadline(self, timeout: float | None) -> Micros | None:
        """Return the steady instant at which `timeout` seconds have passed; None stands for never."""
        if timeout is None:
            return None
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= MAX_TIMEOUT:
            raise InvalidOption(
                f"timeout {shown(timeout)}: expected seconds, 0 to {MAX_TIMEOUT}, or None to wait for ever"
            )
        return self.steady() + round(timeout * SECOND)

    def delay_left(self, verdict: Verdict) -> Micros:
        """Return how long an admitted request still waits for its turn."""
        delay = verdict.delay_us
        return min(max(verdict.at_us + delay - self.now(), 0), delay) if delay else 0


def listed(requests: Iterable[Request]) -> list[Request] | tuple[Request, ...]:
    """Return the requests of a batch, which may be read once only."""
    if isinstance(requests, list | tuple):
        return requests
    if not isinstance(requests, Iterable):
        raise InvalidRequest(f"requests: expected an iterable of (key, quota), not {type(requests).__name__}")
    return list(requests)


def all_renewed(op: Amend, amended: Amended) -> bool:
    """Return whether every place of the receipt is still held."""
    charged = zip(op.receipt.charges, amended.each, strict=True)
    return all(units for charge, units in charged if charge.quota.algorithm == CONCURRENCY)


def verdict_of(outcome: Outcome) -> Verdict:
    """Return the verdict on a request; raise its failure."""
    if isinstance(outcome, Failed):
        raise outcome.error.to_raise(outcome.charged)
    return outcome  # type: ignore[return-value]  # `cast` would cost a call


def amended_by(outcome: Outcome) -> Amended:
    """Return what an amendment did; raise its failure."""
    if isinstance(outcome, Failed):
        raise outcome.error.to_raise(outcome.charged)
    return outcome  # type: ignore[return-value]


def _read(quota: QuotaLike) -> tuple[Quota, ...]:
    if isinstance(quota, Quota):
        return (quota,)
    if isinstance(quota, list | tuple):
        return tuple(single for item in quota for single in _read(item))
    return Quota.parse_all(cast("str", quota))


def _parts(quota: QuotaLike) -> tuple[Quota, ...]:
    return check_quotas(tuple(part for whole in _read(quota) for part in whole.parts))


def check_id(request_id: Id) -> bytes:
    """Return the bytes of `request_id`, by which requests are compared."""
    if not isinstance(request_id, str | bytes):
        raise InvalidRequest(f"id: expected text or bytes, not {type(request_id).__name__}")
    try:
        raw = request_id.encode() if isinstance(request_id, str) else request_id
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"id: lone surrogate at index {error.start} (expected text that UTF-8 can carry)"
        ) from None
    if not 1 <= len(raw) <= MAX_ID:
        raise InvalidRequest(f"id of {len(raw)} bytes: expected 1 to {MAX_ID}")
    return raw
