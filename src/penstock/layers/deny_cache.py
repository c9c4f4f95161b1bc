"""The deny cache: repeats refusals without a call to the store, for at most a second.

Under load, most requests come from keys that are over a limit and keep sending. A refusal says for how long it holds:
until then the same request, or one of a higher cost, gets the same answer, whatever other requests come. So the cache
never admits, and refuses only what the store would refuse as well, with one exception: a refund or reset by another
process takes effect up to a second late. A request of a higher cost receives the wait of the cheaper one, so it may be
refused again after that wait.

Some refusals are not repeated: those that change the counter (`count denied`), those that end when a place is released
(`concurrency`), those of requests with an id, and those that the store did not make. When this process refunds, settles
or resets a counter, the cache drops the refusals of its key.

Refusals are kept beyond that second, as long as they hold and there is room. If the store becomes unreachable, the
fallback refuses these keys too (`refused`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from penstock.clock import SECOND, Micros
from penstock.engine.options import at_least
from penstock.engine.protocols import Declined, Due, Entered, Local
from penstock.errors import is_from_signal_handler
from penstock.model import NOT_CHARGED, Acquire, Amend, Answer, Ask, Decision, Key, Op, Outcome, Verdict, new
from penstock.quota import CONCURRENCY, Quota

LONGEST: Micros = SECOND
KEPT: Micros = 60 * SECOND
"""How long a refusal is repeated at most, and the age at which a generation of refusals is replaced."""

DEFAULT_MAX_KEYS = 10_000

Shape: TypeAlias = Quota | tuple[tuple[Key, Quota, bool], ...]
"""A request without its costs: its quota if it is a single ask, else key, quota and `advisory` of each ask."""


class Refusal(NamedTuple):
    """A refusing verdict, the costs of its asks, and the instants that bound it, by the clock of this process.

    It is repeated from `since` to `until`, and holds to `holds_until`.
    """

    verdict: Verdict
    costs: tuple[int, ...]
    since: Micros
    until: Micros
    holds_until: Micros

    def covers(self, asks: tuple[Ask, ...]) -> bool:
        """Return whether `asks`, which differ in their costs alone, would be refused as well."""
        return all([ask[2] >= cost for ask, cost in zip(asks, self.costs, strict=True)])  # noqa: C419


class _Passed(NamedTuple):
    """The token of a batch.

    - `ops`: the operations that were passed on.
    - `answered`: the refusals of the others, by position.
    - `forgotten`: the number of times that refusals had been dropped before.
    - `plain`: whether all operations were requests.
    """

    ops: Sequence[Op]
    answered: dict[int, Verdict]
    forgotten: int
    plain: bool


NONE: dict[int, Verdict] = {}
ALL_ACQUIRE = frozenset([Acquire])


class DenyCache:
    """The layer. It keeps at most `max_keys` refusals; a key may have several.

    There are two generations. When the young one is full or a minute old, it replaces the old one.
    """

    def __init__(self, max_keys: int = DEFAULT_MAX_KEYS) -> None:
        self._half = at_least(2, "max_keys", max_keys) // 2
        self._young: dict[Key, dict[Shape, Refusal]] = {}
        self._old: dict[Key, dict[Shape, Refusal]] = {}
        self._turned_at: Micros = 0
        self._remembered = 0  # refusals in the young generation
        self._forgotten = 0  # times that refusals were dropped; a refusal decided before a drop is not kept after it

    def bind(self, quotas: tuple[Quota, ...], below: Local | None) -> Local | None:
        """Return a function that repeats the refusals of a lone quota; `below` if they are not repeated."""
        if len(quotas) > 1 or not _is_lasting(quotas[0]):
            return below
        (quota,) = quotas
        capacity = quota.capacity

        def repeated(key: Key, cost: int, now: Micros) -> Verdict | None:
            try:
                refusals = self._young.get(key) or self._old.get(key)
            except Exception as error:  # an invalid key, or an internal error: both appear again in the engine
                if is_from_signal_handler(error):
                    raise
                return None
            refusal = refusals.get(quota) if refusals is not None else None
            if refusal is None or cost.__class__ is not int or not refusal[1][0] <= cost <= capacity:
                return None if below is None else below(key, cost, now)
            (answer, at, *_), _, since, until, _ = refusal
            if not since <= now < until:
                return None if below is None else below(key, cost, now)
            elapsed = now - since
            return new(Verdict, (_answer_later(answer, elapsed), at + elapsed, key, quota, cost, ()))

        return repeated

    def refused(self, asks: tuple[Ask, ...], now: Micros) -> Verdict | None:
        """Return the refusal that still holds for `asks`, even if it is no longer repeated; None if there is none."""
        refusal = self._find(asks)
        if refusal is None or not refusal.since <= now < refusal.holds_until:
            return None
        return _later(refusal.verdict, now - refusal.since, asks)

    ignores_admissions = True

    def enter(self, ops: Sequence[Op], now: Micros) -> Entered:
        if ops.__class__ is Declined and len(ops[0][0]) == 1:  # several quotas were declined by another layer
            return new(Entered, (ops, (ops, NONE, self._forgotten, True)))
        answered = NONE
        plain = ALL_ACQUIRE.issuperset(map(type, ops))
        if not plain:
            for op in ops:
                if op.__class__ is not Acquire:
                    self._forget(op)
        if self._young or self._old:
            answered = self._answer(ops, now)
            if answered:
                ops = [op for number, op in enumerate(ops) if number not in answered]
        return new(Entered, (ops, new(_Passed, (ops, answered, self._forgotten, plain))))

    def _answer(self, ops: Sequence[Op], now: Micros) -> dict[int, Verdict]:
        """Return the refusals to repeat, by the position of the request."""
        young, old = self._young, self._old
        answered: dict[int, Verdict] = {}
        for number, op in enumerate(ops):
            if op.__class__ is Acquire:
                asks = op.asks
                key = asks[0][0]
                if key in young or key in old or len(asks) > 1:
                    verdict = self._repeated(asks, now) if not op.dry and op.id is None else None
                    if verdict is not None:
                        answered[number] = verdict
        return answered

    def leave(self, token: Any, outcomes: Sequence[Outcome], now: Micros) -> list[Outcome]:
        ops, answered, forgotten, plain = token
        if not plain:
            for op in ops:
                if op.__class__ is not Acquire:
                    self._forget(op)  # again: a refusal decided before the change may have been stored since `enter`
        refused = [n for n, o in enumerate(outcomes) if o.__class__ is Verdict and not o[0][0] and len(o) < 8]
        if refused and forgotten == self._forgotten:
            for number in refused:
                self._remember(ops[number], outcomes[number], now)  # type: ignore[arg-type]
        if not answered:
            return outcomes if outcomes.__class__ is list else list(outcomes)
        rest = iter(outcomes)
        count = len(outcomes) + len(answered)
        return [answered[number] if number in answered else next(rest) for number in range(count)]

    def due(self, now: Micros) -> Due:
        """Return no work."""
        return Due()

    def _repeated(self, asks: tuple[Ask, ...], now: Micros) -> Verdict | None:
        refusal = self._find(asks)
        if refusal is None or not refusal.since <= now < refusal.until:
            return None
        return _later(refusal.verdict, now - refusal.since, asks)

    def _find(self, asks: tuple[Ask, ...]) -> Refusal | None:
        shape: Shape | None = None
        for ask in asks:
            refusals = self._young.get(ask[0]) or self._old.get(ask[0])
            if refusals is None:
                continue
            shape = _shape(asks) if shape is None else shape
            refusal = refusals.get(shape)
            if refusal is not None and refusal.covers(asks):
                return refusal
        return None

    def _remember(self, op: Op, verdict: Verdict, now: Micros) -> None:
        if (
            not isinstance(op, Acquire)
            or op.dry
            or op.id is not None
            or not all(_is_lasting(ask.quota) for ask in op.asks)
        ):
            return
        if self._remembered >= self._half or now >= self._turned_at + KEPT or now < self._turned_at:
            self._old, self._young, self._turned_at, self._remembered = self._young, {}, now, 0
        costs = tuple([ask.cost for ask in op.asks])
        holds = verdict.retry_after_us
        refusal = Refusal(verdict, costs, now, now + min(holds, LONGEST), now + holds)
        refusals, shape = self._young.setdefault(verdict.key, {}), _shape(op.asks)
        self._remembered += shape not in refusals
        refusals[shape] = refusal

    def _forget(self, op: Op) -> None:
        if isinstance(op, Amend) and op.verb in ("release", "renew"):  # refusals of places are not repeated
            return
        self._forgotten += 1
        keys = [charge.key for charge in op.receipt.charges] if isinstance(op, Amend) else [op.key]  # type: ignore[union-attr]
        for key in keys:
            self._remembered -= len(self._young.pop(key, ()))
            self._old.pop(key, None)


def _shape(asks: tuple[Ask, ...]) -> Shape:
    if len(asks) == 1 and not asks[0].advisory:
        return asks[0].quota
    return tuple([(ask.key, ask.quota, ask.advisory) for ask in asks])


def _is_lasting(quota: Quota) -> bool:
    """Return whether refusals of `quota` may be repeated: they hold for their time, and change nothing."""
    return not quota.count_denied and quota.algorithm != CONCURRENCY


def _later(verdict: Verdict, elapsed: Micros, asks: tuple[Ask, ...]) -> Verdict:
    """Return the same refusal, as it reads `elapsed` microseconds later."""
    answer, at, key, quota, _, several, *_ = verdict
    decisions = tuple(
        [
            Decision((_answer_later(d[0], elapsed), d[1] + elapsed, d[2], d[3], ask.cost, d[5]))
            for d, ask in zip(several, asks, strict=False)
        ]
    )
    cost = next(ask.cost for ask in asks if ask.quota == quota and ask.key == key)
    return new(Verdict, (_answer_later(answer, elapsed), at + elapsed, key, quota, cost, decisions))


def _answer_later(answer: Answer, elapsed: Micros) -> Answer:
    allowed, remaining, retry_after, reset_after, more_after, delay, _ = answer
    retry_after, reset_after, more_after = retry_after - elapsed, reset_after - elapsed, more_after - elapsed
    return (
        allowed,
        remaining,
        retry_after if retry_after > 0 else 0,
        reset_after if reset_after > 0 else 0,
        more_after if more_after > 0 else 0,
        delay,
        NOT_CHARGED,
    )
