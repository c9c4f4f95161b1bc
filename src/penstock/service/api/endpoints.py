"""The calls of the decision API, one function each: from a body to operations, and from their outcomes to a body.

Each takes a body and a `Responder`, which knows the batch of the call and answers it, now or when the batch was run.
An error of a call is raised, or goes to the responder if it occurs later; no other call is affected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, cast

from msgspec import UNSET, Raw, UnsetType
from msgspec.json import Decoder

from penstock.engine.batch import Batch, Gather, time_left
from penstock.engine.cancelled import new_id
from penstock.engine.operations import all_renewed, amended_by, verdict_of
from penstock.errors import PenstockError
from penstock.limiter import Limiter
from penstock.model import Acquire, Amend, Explanation, Key, Op, Outcome, Receipt, Reset, Verdict
from penstock.quota import CONCURRENCY
from penstock.service.api import bodies
from penstock.service.api.bodies import JsonKey, encode
from penstock.service.api.problems import Unacceptable, note, problem_of
from penstock.service.api.quotas import KnownQuotas
from penstock.service.api.verdicts import A_RECEIPT, NOTHING, Extras, Verdicts
from penstock.service.decisions import Decider, Result
from penstock.service.receipts import Tokens

MAX_BATCH = 1_000

_check = Decoder(bodies.Check).decode
_acquire = Decoder(bodies.Acquire).decode
_acquire_all = Decoder(bodies.AcquireAll).decode
_either = Decoder(bodies.Either).decode
_peek = Decoder(bodies.Peek).decode
_reset = Decoder(bodies.Reset).decode
_explain = Decoder(bodies.Explain).decode
_refund = Decoder(bodies.Refund).decode
_settle = Decoder(bodies.Settle).decode
_places = Decoder(bodies.Places).decode
_list = Decoder(list[Raw]).decode


class Responder(ABC):
    """Answers one call, once. `expires`: when the caller gives up waiting."""

    __slots__ = ("batch", "expires")

    batch: Batch
    expires: float | None

    @abstractmethod
    def tell(self, body: bytes) -> None:
        """Answer with a body."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Answer with a problem."""


Endpoint: TypeAlias = Callable[[bytes, Responder], None]


class Endpoints:
    """All calls by their paths."""

    def __init__(self, decider: Decider, tokens: Tokens, verdicts: Verdicts) -> None:
        limiter = decider.enforcer.limiter
        self._decider, self._operations = decider, limiter.operations
        self._tokens, self._write = tokens, verdicts.write
        self._known = KnownQuotas(limiter.operations)
        self._acquire_now = limiter.acquire if isinstance(limiter, Limiter) and limiter.engine.in_process else None
        self.by_path: dict[bytes, Endpoint] = {
            b"/v1/check": self.check,
            b"/v1/check/batch": self.check_batch,
            b"/v1/acquire": self.acquire,
            b"/v1/acquire-all": self.acquire_all,
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

    def check(self, body: bytes, reply: Responder) -> None:
        sent = _check(body)
        extras = Extras(sent.receipt, sent.decisions) if sent.receipt or sent.decisions else NOTHING
        then = partial(self._ruled, reply, extras)
        known = self._decider.check(reply.batch, sent.descriptor, sent.cost, sent.id, expires=reply.expires, then=then)
        if known is not None:  # not through `then`, which is a frame more
            reply.tell(self._write(known, extras))

    def check_batch(self, body: bytes, reply: Responder) -> None:
        checks = _list(body)
        if len(checks) > MAX_BATCH:
            raise Unacceptable(422, "batch_too_large", f"body: {len(checks)} checks (expected at most {MAX_BATCH})")
        gather = Gather(len(checks), lambda results: reply.tell(encode({"results": results})))
        for position, check in enumerate(checks):
            part = _PartResponder(reply, gather, position)
            try:
                self.check(cast("bytes", check), part)
            except Exception as error:
                note("/v1/check/batch", error)
                part.fail(error)

    def acquire(self, body: bytes, reply: Responder) -> None:
        sent = _acquire(body)
        extras = Extras(sent.receipt, sent.decisions) if sent.receipt or sent.decisions else NOTHING
        self._by_quota(sent, reply, extras)

    def acquire_all(self, body: bytes, reply: Responder) -> None:
        sent = _acquire_all(body)
        self._known.check_all([part.quota for part in sent.requests])
        op = self._operations.acquire_all(
            [(_key(part.key), part.quota, part.cost) for part in sent.requests], id=sent.id
        )
        self._run_acquire(op, reply, Extras(sent.receipt, sent.decisions))

    def hold(self, body: bytes, reply: Responder) -> None:
        sent = _either(body)
        if not _names_rules(sent):
            self._operations.check_places(self._quota(sent.quota))
        self._either(sent, reply)

    def reserve(self, body: bytes, reply: Responder) -> None:
        sent = _either(body)
        if sent.id is None:  # a reservation is settled by its record, and only an id leaves one
            sent.id = new_id().hex()
        self._either(sent, reply)

    def peek(self, body: bytes, reply: Responder) -> None:
        sent = _peek(body)
        extras = Extras(decisions=sent.decisions)
        if _names_rules(sent):
            self._by_rules(cast("bodies.Check", sent), reply, extras, dry=True)
        else:
            op = self._operations.acquire(_key(sent.key), self._quota(sent.quota), sent.cost, dry=True)
            self._run([op], reply, lambda outcomes: self._write(verdict_of(outcomes[0]), extras))

    def explain(self, body: bytes, reply: Responder) -> None:
        sent = _explain(body)

        def explained(explanation: Explanation | PenstockError) -> None:
            if isinstance(explanation, PenstockError):
                reply.fail(explanation)
            else:
                reply.tell(encode(_explained(explanation)))

        self._decider.explain(reply.batch, sent.descriptor, sent.cost, reply.expires, explained)

    def _quota(self, quota: bodies.JsonQuota | UnsetType) -> bodies.JsonQuota:
        return self._known.check(cast("bodies.JsonQuota", quota))

    def _either(self, sent: bodies.Either, reply: Responder) -> None:
        if _names_rules(sent):
            self._by_rules(cast("bodies.Check", sent), reply, A_RECEIPT)
        else:
            self._by_quota(sent, reply, A_RECEIPT)

    def _by_rules(self, sent: bodies.Check, reply: Responder, extras: Extras, *, dry: bool = False) -> None:
        id = None if dry else sent.id
        then = partial(self._ruled, reply, extras)
        known = self._decider.check(
            reply.batch, sent.descriptor, sent.cost, id, dry=dry, expires=reply.expires, then=then
        )
        if known is not None:
            reply.tell(self._write(known, extras))

    def _ruled(self, reply: Responder, extras: Extras, result: Result) -> None:
        if isinstance(result, PenstockError):
            reply.fail(result)
        else:
            reply.tell(self._write(result, extras))

    def _by_quota(self, sent: bodies.Acquire | bodies.Either, reply: Responder, extras: Extras) -> None:
        key, quota = _key(sent.key), self._quota(sent.quota)
        if self._acquire_now is not None:
            reply.tell(self._answer(self._acquire_now(key, quota, sent.cost, sent.id), reply, extras))
        else:
            self._run_acquire(self._operations.acquire(key, quota, sent.cost, id=sent.id), reply, extras)

    def _run_acquire(self, op: Acquire, reply: Responder, extras: Extras) -> None:
        self._run([op], reply, lambda outcomes: self._answer(verdict_of(outcomes[0]), reply, extras))

    def _answer(self, verdict: Verdict, reply: Responder, extras: Extras) -> bytes:
        reply.batch.decided.append(verdict)
        return self._write(verdict, extras)

    def _run(self, ops: Sequence[Op], reply: Responder, body_of: Callable[[Sequence[Outcome]], bytes]) -> None:
        """Run operations with the batch of the call. `body_of` makes the answer of their outcomes."""

        def then(outcomes: Sequence[Outcome]) -> None:
            try:
                body = body_of(outcomes)
            except PenstockError as error:
                reply.fail(error)
            else:
                reply.tell(body)

        reply.batch.add(ops, time_left(self._decider.budget, reply.expires), then)

    # ------------------------------------------------------------ amending

    def refund(self, body: bytes, reply: Responder) -> None:
        sent = _refund(body)
        receipt = self._opened(sent.receipt)
        op = self._operations.refund(receipt, sent.units) if receipt.charges else None
        self._amend(op, reply)

    def settle(self, body: bytes, reply: Responder) -> None:
        sent = _settle(body)
        receipt = self._opened(sent.receipt)
        op = self._operations.settle(receipt, sent.units) if receipt.charges else None
        self._amend(op, reply)

    def release(self, body: bytes, reply: Responder) -> None:
        receipt = self._opened(_places(body).receipt)
        op = self._operations.places("release", receipt) if _has_places(receipt) else None
        self._amend(op, reply)

    def renew(self, body: bytes, reply: Responder) -> None:
        receipt = self._opened(_places(body).receipt)
        if not _has_places(receipt):
            reply.tell(encode(bodies.Renewed(True)))
            return
        op = self._operations.places("renew", receipt)
        self._run([op], reply, lambda outcomes: encode(bodies.Renewed(all_renewed(op, amended_by(outcomes[0])))))

    def reset(self, body: bytes, reply: Responder) -> None:
        sent = _reset(body)
        if _names_rules(sent):
            plan = self._decider.enforcer.begin(cast("dict[str, object]", sent.descriptor), dry=True).plan
            ops: Sequence[Op] = [Reset(key, quota) for key, quota, _, _ in plan.posed]
        else:
            ops = self._operations.reset(_key(sent.key), self._quota(sent.quota))

        def forgotten(outcomes: Sequence[Outcome]) -> bytes:
            return encode(bodies.Forgotten(len([amended_by(outcome) for outcome in outcomes])))

        self._run(ops, reply, forgotten)

    def _amend(self, op: Amend | None, reply: Responder) -> None:
        """Run an amendment; without an operation there is nothing to amend."""

        def amended(outcomes: Sequence[Outcome]) -> bytes:
            changed = amended_by(outcomes[0])
            return encode(bodies.Amended(changed.units, changed.each))

        if op is None:
            reply.tell(_NOTHING)
        else:
            self._run([op], reply, amended)

    def _opened(self, token: str) -> Receipt:
        return self._tokens.open(token, self._operations.now())


_NOTHING = encode(bodies.Amended(0, ()))


class _PartResponder(Responder):
    """Answers one check of a batch of checks."""

    __slots__ = ("_gather", "_position")

    def __init__(self, whole: Responder, gather: Gather, position: int) -> None:
        self.batch, self.expires = whole.batch, whole.expires
        self._gather, self._position = gather, position

    def tell(self, body: bytes) -> None:
        self._gather.put(self._position, Raw(body))

    def fail(self, error: Exception) -> None:
        self.tell(encode({"problem": problem_of(error)}))


def _names_rules(sent: bodies.Either | bodies.Peek | bodies.Reset) -> bool:
    """Return whether a request is by descriptor, not by key and quota; it must be one of them."""
    by_quota = sent.key is not UNSET and sent.quota is not UNSET
    neither = sent.key is UNSET and sent.quota is UNSET
    if (sent.descriptor is UNSET and not by_quota) or (sent.descriptor is not UNSET and not neither):
        raise Unacceptable(422, "invalid_request", "body: expected descriptor, or key and quota")
    return sent.descriptor is not UNSET


def _key(key: JsonKey | UnsetType) -> Key:
    return tuple(key) if key.__class__ is list else cast("str", key)


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
