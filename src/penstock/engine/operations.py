"""What both limiters share: reading quotas, checking input, making operations, reading outcomes. Nothing here waits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

from penstock.clock import SECOND, Clock, Micros, SystemClock
from penstock.engine.queues import Lines, Waiter, pause
from penstock.errors import InvalidCost, InvalidOption, InvalidReceipt, InvalidRequest, StoreError, shown
from penstock.events import Hook
from penstock.layers import DenyCache, Fallback, Layer
from penstock.layers.fallback import check_behaviour
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
    OnFailure,
    Op,
    Outcome,
    Receipt,
    Reset,
    Verdict,
    check_cost,
    check_key,
    check_quotas,
    check_units,
    new,
)
from penstock.quota import CONCURRENCY, Quota
from penstock.stores import AsyncStore, DirectAmends, InProcess, Store

QuotaLike: TypeAlias = str | Quota | Sequence[str | Quota]
"""A quota, its text, a text of several, or several of either."""

Request: TypeAlias = tuple[Key, QuotaLike] | tuple[Key, QuotaLike, int]
"""(key, quota), or (key, quota, cost)."""

Id: TypeAlias = str | bytes
"""What makes a repeated request recognisable: at most 255 bytes."""

MAX_REMEMBERED = 4_096
MAX_ID = 255
MAX_TIMEOUT = 86_400 * 3_650


S = TypeVar("S")


class Front:
    """Everything about a limiter that does not wait."""

    def __init__(self, store: Store | AsyncStore, clock: Clock | None, layers: Sequence[Layer]) -> None:
        in_process = store if isinstance(store, InProcess) else None
        if in_process is not None and clock not in (None, in_process.clock):
            raise InvalidOption("clock: the store has a clock of its own (expected none, or the same one)")
        self._bind = None if in_process is None or layers else in_process.bind
        self._ask_all = None if in_process is None or layers else in_process.decide
        self._clock = clock or (SystemClock() if in_process is None else in_process.clock)
        self._time_ns = self._clock.time_ns
        self._repeats = next((layer for layer in layers if isinstance(layer, DenyCache)), None)
        self._direct: dict[object, Any] = {}  # what answers a quota as written; None: the driver does
        self._parts: dict[object, tuple[Quota, ...]] = {}  # the counters behind it
        self._amends: dict[Quota, DirectAmends] = {}
        self._lines = Lines()
        self._on_failure: OnFailure = next(
            (layer.behaviour for layer in layers if isinstance(layer, Fallback)), "raise"
        )
        self._closed = False

    def _shut(self) -> None:
        self._closed = True
        self._ask_all = None
        self._direct.clear()
        self._parts.clear()
        self._amends.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the limiter is closed", transient=False)

    def _quotas(self, quota: QuotaLike) -> tuple[Quota, ...]:
        """The counters to ask for `quota`; texts are read once and remembered."""
        self._check_open()
        name = tuple(quota) if isinstance(quota, list) else quota
        try:
            return self._parts[name]
        except KeyError:
            pass
        except TypeError:  # lists within a list, or nothing that could be a quota
            return _parts(quota)
        if len(self._parts) >= MAX_REMEMBERED:
            self._parts.clear()
        parts = self._parts[name] = _parts(quota)
        return parts

    def _bind_repeats(self, parts: tuple[Quota, ...]) -> Any:
        """What answers requests for `parts` that need not be asked, if there is such; each limiter in its own way."""

    def _direct_ask(self, quota: QuotaLike) -> Any:
        """The store's own function for `quota`, if it has such."""
        parts = self._quotas(quota)
        ask = self._bind_repeats(parts) if self._bind is None else self._bind(parts).local
        if isinstance(quota, str | Quota | tuple):
            if len(self._direct) >= MAX_REMEMBERED:
                self._direct.clear()
            self._direct[quota] = ask
        return ask

    def _at_once(self, key: Key, quota: QuotaLike, cost: int, id: Id | None) -> Verdict | None:
        """What `acquire` answers, if the store is in this process, so that there is nothing to await."""
        try:
            ask = self._direct[quota]
        except (KeyError, TypeError):
            ask = self._direct_ask(quota)
        if ask is None or id is not None:
            return None if id is None else self._direct_once(key, quota, cost, id)
        time_ns = self._time_ns
        verdict: Verdict | None = ask(key, cost, time_ns() // 1_000)
        return verdict

    def _direct_once(self, key: Key, quota: QuotaLike, cost: int, id: Id) -> Verdict | None:
        """What a request with an id is answered, if its store has a short way: a single ask."""
        parts = self._quotas(quota)
        once = None if self._bind is None else self._bind(parts).once
        return None if once is None else once(check_key(key), cost, check_id(id), self._time_ns() // 1_000)

    def _direct_asks(self, requests: Sequence[Request]) -> Iterable[tuple[Any, Key]] | None:
        """The store's own function for each request, if it has one for all and nothing needs a closer look."""
        self._check_open()
        if self._bind is None or set(map(type, requests)) != {tuple}:
            return None
        direct = self._direct
        try:
            keys, quotas = zip(*requests, strict=True)
            asks = [direct[quota] for quota in quotas]
            text = "".join(keys)
        except (KeyError, TypeError, ValueError):  # a quota not seen before, a list of them, a cost, parts of a key
            return None
        sizes = list(map(len, keys))
        if not text.isascii() or min(sizes) < 1 or max(sizes) > MAX_KEY_PART:
            return None
        return zip(asks, keys, strict=True)

    def _acquire(
        self, key: Key, quota: QuotaLike, cost: int, *, dry: bool = False, request_id: Id | None = None
    ) -> Acquire:
        key = check_key(key)
        if cost == 1 and cost.__class__ is int and request_id is None:  # 1 always fits, wherever it goes
            asks = tuple([new(Ask, (key, part, 1, False)) for part in self._quotas(quota)])
            return new(Acquire, (asks, dry, None, None))
        least = 0 if dry else 1
        flat = min(check_units("cost", cost, least=least), 1)
        asks = tuple(
            Ask(key, part, flat if part.flat else check_cost(cost, part, least=least)) for part in self._quotas(quota)
        )
        return Acquire(asks, dry, None if request_id is None else check_id(request_id))

    def _acquire_all(self, requests: Sequence[Request]) -> list[Op]:
        for position, request in enumerate(requests):
            if not isinstance(request, tuple) or not 2 <= len(request) <= 3:
                raise InvalidRequest(f"request {position}: expected (key, quota) or (key, quota, cost)")
        ops: list[Op] = [
            self._acquire(request[0], request[1], request[2] if len(request) == 3 else 1) for request in requests
        ]
        if self._bind is not None:
            for request in requests:  # all is well with them: the next batch may go the short way
                self._direct_ask(request[1])
        return ops

    def _has_places(self, quota: QuotaLike) -> bool:
        return any(part.algorithm == CONCURRENCY for part in self._quotas(quota))

    def _shapes(self, quota: QuotaLike) -> bool:
        return any(part.algorithm == "leaky_bucket" for part in self._quotas(quota))

    def _check_places(self, quota: QuotaLike) -> None:
        if not self._has_places(quota):
            raise InvalidRequest('hold: no quota has places to hold (expected one such as "5 concurrent ttl 30s")')

    def _receipt(self, verb: str, charged: Verdict | Receipt) -> Receipt:
        self._check_open()
        if not isinstance(charged, Verdict | Receipt):
            raise InvalidReceipt(f"{verb} of {type(charged).__name__}: expected a verdict or its receipt")
        receipt = charged if isinstance(charged, Receipt) else charged.receipt
        if receipt is None or not receipt.charges:
            raise InvalidReceipt(f"{verb} of a verdict that charged nothing (expected one that was allowed)")
        return receipt

    def _direct_amends(self, quota: Quota) -> DirectAmends | None:
        """The store's own functions to amend what a single ask of `quota` was charged, if it has such."""
        amends = None if self._bind is None or self._closed else self._bind((quota,)).amends
        if amends is None:
            return None
        if len(self._amends) >= MAX_REMEMBERED:
            self._amends.clear()
        self._amends[quota] = amends
        return amends

    def _direct_refund(self, charged: Verdict | Receipt) -> Amended | None:
        """What giving all of a verdict back did, if its store has a short way: a single ask without an id."""
        if charged.__class__ is not Verdict or len(charged) != 6 or charged[5]:
            return None
        answer, _, key, quota, cost, _ = charged
        mark = answer[6]
        amends = self._amends.get(quota) or self._direct_amends(quota)
        if mark == NOT_CHARGED or amends is None:
            return None
        refund, _ = amends
        time_ns = self._time_ns
        return new(Amended, ((refund(key, cost, mark, time_ns() // 1_000),),))

    def _gave_back(self, held: Verdict) -> bool:
        """Give back the place that came with an admitted request, if the store has a short way; False if not."""
        if len(held) != 6 or held[5]:
            return False
        answer, _, key, quota, cost, _ = held  # a single ask, so it is for the place
        amends = self._amends.get(quota) or self._direct_amends(quota)
        if amends is None:
            return False
        refund, _ = amends
        time_ns = self._time_ns
        refund(key, cost, answer[6], time_ns() // 1_000)
        return True

    def _refund(self, charged: Verdict | Receipt, units: int | None) -> Amend:
        receipt = self._receipt("refund", charged)
        if units is not None and check_units("units", units, least=1) > receipt.cost:
            raise InvalidCost(f"units {shown(units)}: expected at most {receipt.cost}, which is what was charged")
        return Amend(receipt, "refund", units)

    def _settle(self, charged: Verdict | Receipt, units: int) -> Amend:
        receipt = self._receipt("settle", charged)
        if receipt.record is None and receipt.source != "open":  # what was charged nowhere has no record
            raise InvalidReceipt("settle of a request without an id (expected one made by reserve, or with an id)")
        return Amend(receipt, "settle", check_units("units", units, least=0))

    def _direct_settle(self, charged: Verdict | Receipt, units: int) -> Amended | None:
        """What settling a verdict did, if its store has a short way: a single ask with an id."""
        if charged.__class__ is not Verdict or len(charged) != 7 or charged[5]:
            return None
        quota = charged[3]
        amends = self._amends.get(quota) or self._direct_amends(quota)
        if amends is None or charged[0][6] == NOT_CHARGED or units.__class__ is not int or not 0 <= units <= MAX_COST:
            return None
        _, settle = amends
        time_ns = self._time_ns
        return new(Amended, ((settle(charged, units, time_ns() // 1_000),),))

    def _places(self, verb: Literal["release", "renew"], charged: Verdict | Receipt) -> Amend:
        receipt = self._receipt(verb, charged)
        if not any(charge.quota.algorithm == CONCURRENCY for charge in receipt.charges):
            raise InvalidReceipt(f"{verb} of a request that holds no place (expected one with a concurrency quota)")
        return Amend(receipt, verb)

    def _deadline(self, timeout: float | None) -> Micros | None:
        if timeout is None:
            return None
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= MAX_TIMEOUT:
            raise InvalidOption(
                f"timeout {shown(timeout)}: expected seconds, 0 to {MAX_TIMEOUT}, or None to wait for ever"
            )
        return self._now() + round(timeout * SECOND)

    def _pause(self, verdict: Verdict, waiter: Waiter, deadline: Micros | None) -> Micros | None:
        """How long the head of a line should wait before it asks again; None if it is through, or waits in vain."""
        if verdict or not self._lines.is_head(waiter):
            return None
        return pause(verdict, None if deadline is None else deadline - self._now())

    def _delay_left(self, verdict: Verdict) -> Micros:
        """How long an admitted request has to wait before going ahead; less than at first if it is an old answer."""
        return max(verdict.at_us + verdict.delay_us - self._now(), 0) if verdict.delay_us else 0

    def _comes_too_late(self, verdict: Verdict, deadline: Micros | None) -> bool:
        delay = self._delay_left(verdict)
        return deadline is not None and delay > 0 and self._now() + delay > deadline

    def _seconds_left(self, deadline: Micros | None) -> float | None:
        return None if deadline is None else max(deadline - self._now(), 0) / SECOND

    def _now(self) -> Micros:
        return self._time_ns() // 1_000

    def _reset(self, key: Key, quota: QuotaLike) -> list[Op]:
        key = check_key(key)
        return [Reset(key, part) for part in self._quotas(quota)]


class How(NamedTuple):
    """What the `limit` decorator was told."""

    quota: QuotaLike
    key: Key | Callable[..., Key] | None
    cost: int | Callable[..., int]
    name: str | None
    timeout: float | None
    renew: bool
    settle: Callable[[Any], int] | None


class Call:
    """A decorated function, and how the key and the cost of a call follow from its arguments.

    `whole` calls matter until they end, and a generator's call ends before it has begun.
    """

    def __init__(self, function: Callable[..., object], how: How, *, whole: bool) -> None:
        self.how = how
        named: Any = function
        while isinstance(named, partial):
            named = named.func
        named = named if hasattr(named, "__qualname__") else type(named)
        self.scope = how.name or f"{named.__module__}.{named.__qualname__}"
        if whole and (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
            raise InvalidOption(f"{self.scope}: a generator runs after its call has ended (expected a plain function)")

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
        """The scope of the function and the caller's own key, as parts that never run together."""
        key = self.how.key
        own = key(*args, **kwargs) if callable(key) else key
        if own is None:
            return self.scope
        return (self.scope, *own) if isinstance(own, tuple) else (self.scope, own)

    def cost(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        cost = self.how.cost
        return cost(*args, **kwargs) if callable(cost) else cost


def layers_over(
    store: object, layers: Sequence[Layer] | None, on_failure: OnFailure | None, hook: Hook
) -> tuple[Sequence[Layer], OnFailure | None]:
    """The layers over a store, and what a fault of our own leads to.

    By default a shared store has a deny cache and a fallback; a store in this process, which does not fail, has none.
    """
    if on_failure is not None:
        check_behaviour(on_failure)
    if layers is not None:
        if on_failure is not None:
            raise InvalidOption("on_failure: the layers decide that (expected a Fallback among them, or none)")
        return layers, next((layer.behaviour for layer in layers if isinstance(layer, Fallback)), None)
    if isinstance(store, InProcess):
        return (), None
    known = DenyCache()
    behaviour = on_failure or "local"
    return (known, Fallback(behaviour, known=known, hook=hook)), behaviour


def checked_store(store: S) -> S:
    if not callable(getattr(store, "run", None)):
        raise InvalidOption(f"store {shown(store)}: expected a URL, or a store with run and close")
    return store


def is_coroutine_function(function: Callable[..., object]) -> bool:
    """Whether calling it makes a coroutine; objects with an asynchronous `__call__` included."""
    called = type(function).__call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def line_of(op: Acquire) -> Hashable:
    """The line in which to wait for `op`: that of everybody who asks the same counters."""
    return tuple((ask.key, ask.quota) for ask in op.asks)


def all_renewed(op: Amend, amended: Amended) -> bool:
    """Whether every place of the receipt is still held."""
    charged = zip(op.receipt.charges, amended.each, strict=True)
    return all(units for charge, units in charged if charge.quota.algorithm == CONCURRENCY)


def verdict_of(outcome: Outcome) -> Verdict:
    """The verdict that an acquire came to; a failure is raised."""
    if isinstance(outcome, Failed):
        raise outcome.error.to_raise(outcome.charged)
    return cast("Verdict", outcome)


def amended_by(outcome: Outcome) -> Amended:
    """What an amendment did; a failure is raised."""
    if isinstance(outcome, Failed):
        raise outcome.error.to_raise(outcome.charged)
    return cast("Amended", outcome)


def _read(quota: QuotaLike) -> tuple[Quota, ...]:
    if isinstance(quota, Quota):
        return (quota,)
    if isinstance(quota, list | tuple):
        return tuple(single for item in quota for single in _read(item))
    return Quota.parse_all(cast("str", quota))


def _parts(quota: QuotaLike) -> tuple[Quota, ...]:
    return check_quotas(tuple(part for whole in _read(quota) for part in whole.parts))


def check_id(request_id: Id) -> bytes:
    """`request_id` as it is compared."""
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
