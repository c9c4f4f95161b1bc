"""The calls of the decision API, one function each: from a body to what is asked, and from what came of it to a body.

Each takes a body, the batch it goes with, and a `Reply`, which it tells once, now or when the batch was run. What is
wrong with a call is raised, or told to the reply if it is found out later; it is nobody else's concern.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, cast

from msgspec import UNSET, Raw, UnsetType
from msgspec.json import Decoder

from penstock.errors import PenstockError
from penstock.front import all_renewed, amended_by, verdict_of
from penstock.limiter import ID_BYTES, AsyncLimiter, Limiter
from penstock.model import Amend, Key, Op, Outcome, Receipt, Reset, Verdict
from penstock.quota import CONCURRENCY
from penstock.rules.explaining import Explanation
from penstock.service.api import bodies
from penstock.service.api.bodies import JsonKey, encode
from penstock.service.api.problems import Unacceptable, problem_of
from penstock.service.api.verdicts import Verdicts
from penstock.service.deciding import Batch, Decider, Result
from penstock.service.tokens import Tokens

MAX_BATCH = 1_000

_check = Decoder(bodies.Check).decode
_acquire = Decoder(bodies.Acquire).decode
_either = Decoder(bodies.Either).decode
_peek = Decoder(bodies.Peek).decode
_reset = Decoder(bodies.Reset).decode
_explain = Decoder(bodies.Explain).decode
_refund = Decoder(bodies.Refund).decode
_settle = Decoder(bodies.Settle).decode
_places = Decoder(bodies.Places).decode
_list = Decoder(list[Raw]).decode


class Reply(ABC):
    """Who is told what came of a call: one of these, once."""

    __slots__ = ()

    @abstractmethod
    def tell(self, body: bytes) -> None: ...

    @abstractmethod
    def fail(self, error: PenstockError) -> None: ...


Endpoint: TypeAlias = Callable[[bytes, float | None, Batch, Reply], None]


class Endpoints:
    """All calls by their paths."""

    def __init__(self, decider: Decider, limiter: Limiter | AsyncLimiter, tokens: Tokens, verdicts: Verdicts) -> None:
        self._decider, self._limiter = decider, limiter
        self._tokens, self._verdicts = tokens, verdicts
        self._check_now = decider.check_now
        self._acquire_now = limiter.acquire if isinstance(limiter, Limiter) and limiter._bind is not None else None
        self.by_path: dict[bytes, Endpoint] = {
            b"/v1/check": self.check,
            b"/v1/check/batch": self.check_batch,
            b"/v1/acquire": self.acquire,
            b"/v1/peek": self.peek,
            b"/v1/refund": self.refund,
            b"/v1/reset": self.reset,
            b"/v1/hold": self.hold,
            b"/v1/renew": self.renew,
            b"/v1/release": self.release,
            b"/v1/reserve": self.reserve,
            b"/v1/settle": self.settle,
            b"/v1/explain": self.explain,
        }

    # ------------------------------------------------------------ deciding

    def check(self, body: bytes, expires: float | None, batch: Batch, reply: Reply) -> None:
        sent = _check(body)
        check_now = self._check_now
        if check_now is not None:
            ruling = check_now(batch, sent.descriptor, sent.cost, sent.id)
            reply.tell(self._verdicts.write(ruling, sent.receipt))
        else:
            self._by_rules(sent, sent.receipt, expires, batch, reply)

    def check_batch(self, body: bytes, expires: float | None, batch: Batch, reply: Reply) -> None:
        checks = _list(body)
        if len(checks) > MAX_BATCH:
            raise Unacceptable(422, "batch_too_large", f"body: {len(checks)} checks (expected at most {MAX_BATCH})")
        together = _Together(len(checks), reply)
        for position, check in enumerate(checks):
            part = _Part(together, position)
            try:
                self.check(cast("bytes", check), expires, batch, part)
            except Exception as error:
                part.fail(error)
        together.told(0)

    def acquire(self, body: bytes, expires: float | None, batch: Batch, reply: Reply) -> None:
        sent = _acquire(body)
        self._by_quota(sent, sent.key, sent.quota, sent.receipt, expires, batch, reply)

    def hold(self, body: bytes, expires: float | None, batch: Batch, reply: Reply) -> None:
        sent = _either(body)
        if not _names_rules(sent):
            self._limiter._check_places(_quota(sent.quota))
        self._either(sent, expires, batch, reply)

    def reserve(self, body: bytes, expires: float | None, batch: Batch, reply: Reply) -> None:
        sent = _either(body)
        if sent.id is None:  # a reservation is settled by its record, and only an id leaves one
            sent.id = os.urandom(ID_BYTES).hex()
        self._either(sent, expires, batch, reply)

    def peek(self, body: bytes, expires: float | None, batch: Batch, reply: Reply) -> None:
        sent = _peek(body)
        if _names_rules(sent):
            then = partial(self._ruled, reply, False)
            known = self._decider.check(
                batch, cast("dict[str, object]", sent.descriptor), sent.cost, dry=True, expires=expires, then=then
            )
            if known is not None:
                then(known)
            return
        op = self._limiter._acquire(_key(sent.key), _quota(sent.quota), sent.cost, dry=True)
        batch.add(op, self._decider.deadline(None, expires), partial(self._decided, reply, False, True))

    def explain(self, body: bytes, expires: float | None, batch: Batch, reply: Reply) -> None:
        sent = _explain(body)

        def explained(explanation: Explanation | PenstockError) -> None:
            if isinstance(explanation, PenstockError):
                reply.fail(explanation)
            else:
                reply.tell(encode(_explained(explanation)))

        self._decider.explain(batch, sent.descriptor, sent.cost, expires, explained)

    def _either(self, sent: bodies.Either, expires: float | None, batch: Batch, reply: Reply) -> None:
        if _names_rules(sent):
            self._by_rules(cast("bodies.Check", sent), True, expires, batch, reply)
        else:
            self._by_quota(sent, cast("JsonKey", sent.key), _quota(sent.quota), True, expires, batch, reply)

    def _by_rules(self, sent: bodies.Check, receipt: bool, expires: float | None, batch: Batch, reply: Reply) -> None:
        then = partial(self._ruled, reply, receipt)
        known = self._decider.check(batch, sent.descriptor, sent.cost, sent.id, expires=expires, then=then)
        if known is not None:
            reply.tell(self._verdicts.write(known, receipt))

    def _ruled(self, reply: Reply, receipt: bool, result: Result) -> None:
        if isinstance(result, PenstockError):
            reply.fail(result)
        else:
            reply.tell(self._verdicts.write(result, receipt))

    def _by_quota(
        self,
        sent: bodies.Acquire | bodies.Either,
        key: JsonKey,
        quota: bodies.JsonQuota,
        receipt: bool,
        expires: float | None,
        batch: Batch,
        reply: Reply,
    ) -> None:
        if self._acquire_now is not None:
            verdict = self._acquire_now(_key(key), quota, sent.cost, sent.id)
            batch.decided.append(verdict)
            reply.tell(self._verdicts.write(verdict, receipt))
            return
        op = self._limiter._acquire(_key(key), quota, sent.cost, request_id=sent.id)
        batch.add(op, self._decider.deadline(None, expires), partial(self._decided, reply, receipt, False))

    def _decided(self, reply: Reply, receipt: bool, dry: bool, outcome: Outcome) -> Verdict | None:
        try:
            verdict = verdict_of(outcome)
        except PenstockError as error:
            reply.fail(error)
            return None
        reply.tell(self._verdicts.write(verdict, receipt))
        return None if dry else verdict

    # ------------------------------------------------------------ amending

    def refund(self, body: bytes, expires: float | None, batch: Batch, reply: Reply) -> None:
        sent = _refund(body)
        receipt = self._opened(sent.receipt)
        op = self._limiter._refund(receipt, sent.units) if receipt.charges else None
        self._amend(op, expires, batch, reply)

    def settle(self, body: bytes, expires: float | None, batch: Batch, reply: Reply) -> None:
        sent = _settle(body)
        receipt = self._opened(sent.receipt)
        op = self._limiter._settle(receipt, sent.units) if receipt.charges else None
        self._amend(op, expires, batch, reply)

    def release(self, body: bytes, expires: float | None, batch: Batch, reply: Reply) -> None:
        receipt = self._opened(_places(body).receipt)
        op = self._limiter._places("release", receipt) if _has_places(receipt) else None
        self._amend(op, expires, batch, reply)

    def renew(self, body: bytes, expires: float | None, batch: Batch, reply: Reply) -> None:
        receipt = self._opened(_places(body).receipt)
        if not _has_places(receipt):
            reply.tell(encode(bodies.Renewed(True)))
            return
        op = self._limiter._places("renew", receipt)

        def renewed(outcome: Outcome) -> None:
            try:
                reply.tell(encode(bodies.Renewed(all_renewed(op, amended_by(outcome)))))
            except PenstockError as error:
                reply.fail(error)

        batch.add(op, self._decider.deadline(None, expires), renewed)

    def reset(self, body: bytes, expires: float | None, batch: Batch, reply: Reply) -> None:
        sent = _reset(body)
        if _names_rules(sent):
            _, _, plan = self._decider.plan(cast("dict[str, object]", sent.descriptor), 1)
            ops: Sequence[Op] = [Reset(key, quota) for key, quota, _, _ in plan.posed]
        else:
            ops = self._limiter._reset(_key(sent.key), _quota(sent.quota))
        forgotten = _Forgotten(len(ops), reply)
        for op in ops:
            batch.add(op, self._decider.deadline(None, expires), forgotten.one)
        if not ops:
            reply.tell(encode(bodies.Forgotten(0)))

    def _amend(self, op: Amend | None, expires: float | None, batch: Batch, reply: Reply) -> None:
        """Amend what was charged; with no operation there is nothing that could be."""
        if op is None:
            reply.tell(_NOTHING)
            return

        def amended(outcome: Outcome) -> None:
            try:
                changed = amended_by(outcome)
            except PenstockError as error:
                reply.fail(error)
            else:
                reply.tell(encode(bodies.Amended(changed.units, changed.each)))

        batch.add(op, self._decider.deadline(None, expires), amended)

    def _opened(self, token: str) -> Receipt:
        return self._tokens.open(token, self._limiter._now())


_NOTHING = encode(bodies.Amended(0, ()))


class _Together:
    """The answers to a batch of checks, in their order: told when all are there."""

    __slots__ = ("_missing", "_reply", "parts")

    def __init__(self, checks: int, reply: Reply) -> None:
        self.parts: list[Raw] = [Raw()] * checks
        self._missing, self._reply = checks, reply

    def told(self, parts: int = 1) -> None:
        self._missing -= parts
        if self._missing == 0:
            self._missing = -1
            self._reply.tell(encode({"results": self.parts}))


class _Part(Reply):
    """One of them."""

    __slots__ = ("_position", "_together")

    def __init__(self, together: _Together, position: int) -> None:
        self._together, self._position = together, position

    def tell(self, body: bytes) -> None:
        self._together.parts[self._position] = Raw(body)
        self._together.told()

    def fail(self, error: Exception) -> None:
        self.tell(encode({"problem": problem_of(error)}))


class _Forgotten:
    """Counters that are to be forgotten; told of when all were."""

    __slots__ = ("_counters", "_error", "_missing", "_reply")

    def __init__(self, counters: int, reply: Reply) -> None:
        self._counters = self._missing = counters
        self._reply = reply
        self._error: PenstockError | None = None

    def one(self, outcome: Outcome) -> None:
        try:
            amended_by(outcome)
        except PenstockError as error:
            self._error = error
        self._missing -= 1
        if not self._missing:
            if self._error is None:
                self._reply.tell(encode(bodies.Forgotten(self._counters)))
            else:
                self._reply.fail(self._error)


def _names_rules(sent: bodies.Either | bodies.Peek | bodies.Reset) -> bool:
    """Whether a request is by descriptor, not by key and quota; it must be one of them."""
    by_quota = sent.key is not UNSET and sent.quota is not UNSET
    neither = sent.key is UNSET and sent.quota is UNSET
    if (sent.descriptor is UNSET and not by_quota) or (sent.descriptor is not UNSET and not neither):
        raise Unacceptable(422, "invalid_request", "body: expected descriptor, or key and quota")
    return sent.descriptor is not UNSET


def _key(key: JsonKey | UnsetType) -> Key:
    return tuple(key) if key.__class__ is list else cast("str", key)


def _quota(quota: bodies.JsonQuota | UnsetType) -> bodies.JsonQuota:
    return cast("bodies.JsonQuota", quota)


def _has_places(receipt: Receipt) -> bool:
    return any(charge.quota.algorithm == CONCURRENCY for charge in receipt.charges)


def _explained(explanation: Explanation) -> bodies.Explanation:
    return bodies.Explanation(
        explanation.version,
        explanation.outcome,
        [
            bodies.Explained(
                one.rule,
                one.applies,
                one.why,
                one.mode,
                one.action,
                one.key,
                [str(quota) for quota in one.quotas],
                [bodies.Counter(str(counter.quota), *counter[1:]) for counter in one.counters],
            )
            for one in explanation.rules
        ],
    )
