"""The calls of the decision API, one function each: from a body to what is asked, and from what came of it to a body.

Each takes a body and a `Reply`, which knows the batch it goes with, and is told once, now or when the batch was run.
What is wrong with a call is raised, or told to the reply if it is found out later; it is nobody else's concern.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, cast

from msgspec import UNSET, Raw, UnsetType
from msgspec.json import Decoder

from penstock.engine.operations import all_renewed, amended_by, verdict_of
from penstock.errors import PenstockError
from penstock.limiter import ID_BYTES, AsyncLimiter, Limiter
from penstock.model import Amend, Key, Op, Outcome, Receipt, Reset, Verdict
from penstock.quota import CONCURRENCY
from penstock.rules.explain import Explanation
from penstock.service.api import bodies
from penstock.service.api.bodies import JsonKey, encode
from penstock.service.api.problems import Unacceptable, note, problem_of
from penstock.service.api.quotas import Named
from penstock.service.api.verdicts import A_RECEIPT, NOTHING, Extras, Verdicts
from penstock.service.decisions import Batch, Decider, Result, Then
from penstock.service.receipts import Tokens

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
    """Who is told what came of a call: one of these, once. `expires` is when whoever waits for it gives up."""

    __slots__ = ("batch", "expires")

    def __init__(self, batch: Batch, expires: float | None) -> None:
        self.batch, self.expires = batch, expires

    @abstractmethod
    def tell(self, body: bytes) -> None: ...

    @abstractmethod
    def fail(self, error: Exception) -> None: ...


Endpoint: TypeAlias = Callable[[bytes, Reply], None]


class Endpoints:
    """All calls by their paths."""

    def __init__(self, decider: Decider, limiter: Limiter | AsyncLimiter, tokens: Tokens, verdicts: Verdicts) -> None:
        self._decider, self._operations = decider, limiter.operations
        self._tokens, self._verdicts = tokens, verdicts
        self._named = Named(limiter.operations)
        self._check_now = decider.check_now
        self._acquire_now = limiter.acquire if isinstance(limiter, Limiter) and limiter.engine.in_process else None
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

    def check(self, body: bytes, reply: Reply) -> None:
        sent = _check(body)
        check_now = self._check_now
        if check_now is not None:
            ruling = check_now(reply.batch, sent.descriptor, sent.cost, sent.id)
            reply.tell(self._verdicts.write(ruling, _extras(sent)))
        else:
            self._by_rules(sent, reply, _extras(sent))

    def check_batch(self, body: bytes, reply: Reply) -> None:
        checks = _list(body)
        if len(checks) > MAX_BATCH:
            raise Unacceptable(422, "batch_too_large", f"body: {len(checks)} checks (expected at most {MAX_BATCH})")
        together = _Together(len(checks), reply)
        for position, check in enumerate(checks):
            part = _Part(together, position)
            try:
                self.check(cast("bytes", check), part)
            except Exception as error:
                note("/v1/check/batch", error)
                part.fail(error)
        together.told(0)

    def acquire(self, body: bytes, reply: Reply) -> None:
        sent = _acquire(body)
        self._by_quota(sent, reply, _extras(sent))

    def hold(self, body: bytes, reply: Reply) -> None:
        sent = _either(body)
        if not _names_rules(sent):
            self._operations.check_places(self._quota(sent.quota))
        self._either(sent, reply)

    def reserve(self, body: bytes, reply: Reply) -> None:
        sent = _either(body)
        if sent.id is None:  # a reservation is settled by its record, and only an id leaves one
            sent.id = os.urandom(ID_BYTES).hex()
        self._either(sent, reply)

    def peek(self, body: bytes, reply: Reply) -> None:
        sent = _peek(body)
        if _names_rules(sent):
            self._by_rules(cast("bodies.Check", sent), reply, Extras(decisions=sent.decisions), dry=True)
        else:
            op = self._operations.acquire(_key(sent.key), self._quota(sent.quota), sent.cost, dry=True)
            self._add(op, partial(self._decided, reply, Extras(decisions=sent.decisions), True), reply)

    def explain(self, body: bytes, reply: Reply) -> None:
        sent = _explain(body)

        def explained(explanation: Explanation | PenstockError) -> None:
            if isinstance(explanation, PenstockError):
                reply.fail(explanation)
            else:
                reply.tell(encode(_explained(explanation)))

        self._decider.explain(reply.batch, sent.descriptor, sent.cost, reply.expires, explained)

    def _quota(self, quota: bodies.JsonQuota | UnsetType) -> bodies.JsonQuota:
        return self._named.check(cast("bodies.JsonQuota", quota))

    def _either(self, sent: bodies.Either, reply: Reply) -> None:
        if _names_rules(sent):
            self._by_rules(cast("bodies.Check", sent), reply, A_RECEIPT)
        else:
            self._by_quota(sent, reply, A_RECEIPT)

    def _by_rules(self, sent: bodies.Check, reply: Reply, extras: Extras, *, dry: bool = False) -> None:
        then = partial(self._ruled, reply, extras)
        id = None if dry else sent.id
        known = self._decider.check(
            reply.batch, sent.descriptor, sent.cost, id, dry=dry, expires=reply.expires, then=then
        )
        if known is not None:
            then(known)

    def _ruled(self, reply: Reply, extras: Extras, result: Result) -> None:
        if isinstance(result, PenstockError):
            reply.fail(result)
        else:
            reply.tell(self._verdicts.write(result, extras))

    def _by_quota(self, sent: bodies.Acquire | bodies.Either, reply: Reply, extras: Extras) -> None:
        key, quota = _key(sent.key), self._quota(sent.quota)
        if self._acquire_now is not None:
            verdict = self._acquire_now(key, quota, sent.cost, sent.id)
            reply.batch.decided.append(verdict)
            reply.tell(self._verdicts.write(verdict, extras))
        else:
            op = self._operations.acquire(key, quota, sent.cost, id=sent.id)
            self._add(op, partial(self._decided, reply, extras, False), reply)

    def _decided(self, reply: Reply, extras: Extras, dry: bool, outcome: Outcome) -> Verdict | None:
        try:
            verdict = verdict_of(outcome)
        except PenstockError as error:
            reply.fail(error)
            return None
        reply.tell(self._verdicts.write(verdict, extras))
        return None if dry else verdict

    def _add(self, op: Op, then: Then, reply: Reply) -> None:
        """Run an operation with the batch that the reply goes with."""
        reply.batch.add(op, self._decider.deadline(None, reply.expires), then)

    # ------------------------------------------------------------ amending

    def refund(self, body: bytes, reply: Reply) -> None:
        sent = _refund(body)
        receipt = self._opened(sent.receipt)
        op = self._operations.refund(receipt, sent.units) if receipt.charges else None
        self._amend(op, reply)

    def settle(self, body: bytes, reply: Reply) -> None:
        sent = _settle(body)
        receipt = self._opened(sent.receipt)
        op = self._operations.settle(receipt, sent.units) if receipt.charges else None
        self._amend(op, reply)

    def release(self, body: bytes, reply: Reply) -> None:
        receipt = self._opened(_places(body).receipt)
        op = self._operations.places("release", receipt) if _has_places(receipt) else None
        self._amend(op, reply)

    def renew(self, body: bytes, reply: Reply) -> None:
        receipt = self._opened(_places(body).receipt)
        if not _has_places(receipt):
            reply.tell(encode(bodies.Renewed(True)))
            return
        op = self._operations.places("renew", receipt)

        def renewed(outcome: Outcome) -> None:
            try:
                reply.tell(encode(bodies.Renewed(all_renewed(op, amended_by(outcome)))))
            except PenstockError as error:
                reply.fail(error)

        self._add(op, renewed, reply)

    def reset(self, body: bytes, reply: Reply) -> None:
        sent = _reset(body)
        if _names_rules(sent):
            _, _, plan = self._decider.plan(cast("dict[str, object]", sent.descriptor), 1)
            ops: Sequence[Op] = [Reset(key, quota) for key, quota, _, _ in plan.posed]
        else:
            ops = self._operations.reset(_key(sent.key), self._quota(sent.quota))
        forgotten = _Forgotten(len(ops), reply)
        for op in ops:
            self._add(op, forgotten.one, reply)
        if not ops:
            reply.tell(encode(bodies.Forgotten(0)))

    def _amend(self, op: Amend | None, reply: Reply) -> None:
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

        self._add(op, amended, reply)

    def _opened(self, token: str) -> Receipt:
        return self._tokens.open(token, self._operations.now())


_NOTHING = encode(bodies.Amended(0, ()))


class _Together:
    """The answers to a batch of checks, in their order: told when all are there."""

    __slots__ = ("_missing", "parts", "reply")

    def __init__(self, checks: int, reply: Reply) -> None:
        self.parts: list[Raw] = [Raw()] * checks
        self._missing, self.reply = checks, reply

    def told(self, parts: int = 1) -> None:
        self._missing -= parts
        if self._missing == 0:
            self._missing = -1
            self.reply.tell(encode({"results": self.parts}))


class _Part(Reply):
    """One of them."""

    __slots__ = ("_position", "_together")

    def __init__(self, together: _Together, position: int) -> None:
        super().__init__(together.reply.batch, together.reply.expires)
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


def _extras(sent: bodies.Check | bodies.Acquire) -> Extras:
    return Extras(sent.receipt, sent.decisions) if sent.receipt or sent.decisions else NOTHING


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
