"""Passages: a request enters a gate, waits out a delay, and leaves again. One flow for blocking code and for asyncio.

    passage = gate.enter(request)          # charges, and waits out the delay of shaping
    if passage is None: ...                # the request is exempt
    elif not passage: passage.refusal()    # the response to send
    else:                                  # let the handler run, add passage.headers() to its response, and in any case
        passage.leave(status)              # refund, settle, give back places: when the last of the response is ready

`leave` may be called twice; the first call counts. Its status is that of the response: 500 if the handler raised, and
`CLIENT_CLOSED` if the client was gone first. An amendment that the store cannot make is logged and dropped, because
the response has to be sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from penstock.enforcer import AsyncEnforcer, Enforcer, Pending
from penstock.engine.cancelled import new_id
from penstock.engine.flows import Flow, drive, drive_async
from penstock.errors import CostExceedsLimit, InvalidOption, RateLimited, StoreError
from penstock.headers import Header
from penstock.holds import AsyncHold, Hold, holds_place
from penstock.limiter import AsyncLimiter, Limiter
from penstock.middleware.gate import CLIENT_CLOSED, AmendStep, Gate, GateOptions
from penstock.middleware.request import Request
from penstock.model import Verdict, check_units
from penstock.rules.refusal import RefusalResponse, refusal_of
from penstock.rules.ruleset import Descriptor
from penstock.rules.ruling import Ruling

_log = logging.getLogger("penstock.middleware")

_GIVE_BACK: Sequence[AmendStep] = (("refund", None),)


class _Passage:
    """A request that has entered a gate; true if it may pass."""

    __slots__ = ("_cost", "_hold", "_left", "gate", "verdict")

    gate: Any

    def __init__(self, gate: Gate, verdict: Verdict) -> None:
        self.gate = gate
        self.verdict = verdict
        self._cost: int | None = None
        self._left = False
        self._hold: Any = None

    def __bool__(self) -> bool:
        return self.verdict[0][0]  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.verdict!r}>"

    @property
    def cost(self) -> int | None:
        """The true cost of the request; None until a handler sets it."""
        return self._cost

    @cost.setter
    def cost(self, units: int) -> None:
        if not self.gate.settles:
            raise InvalidOption("cost of a passage: not to be settled (expected a middleware with settle=True)")
        self._cost = check_units("cost", units, least=0)

    def headers(self) -> list[Header]:
        """Return the headers to add to the response."""
        return self.gate.headers(self.verdict)  # type: ignore[no-any-return]

    def refusal(self) -> RefusalResponse:
        """Return the response to a request that may not pass."""
        return self.gate.refusal(self.verdict)  # type: ignore[no-any-return]

    def keep(self, hold: Hold | AsyncHold) -> None:
        """Renew the places of this request, if it has any, until it leaves."""
        if self and holds_place(self.verdict):
            self._hold = hold
            hold.keep()

    def end(self, status: int) -> Sequence[AmendStep]:
        """Mark the request as over. Return what has to be amended, at the first call only."""
        if self._hold is not None:
            self._hold.let_go()
        if self._left:
            return ()
        self._left = True
        verdict = self.verdict
        if isinstance(verdict, Ruling):
            verdict.end()
            if not verdict.decisions:
                return ()
        if not verdict[0][0]:
            return ()
        steps: Sequence[AmendStep] = self.gate.amends(verdict, status, self._cost)
        return _possible(verdict, steps) if verdict.degraded else steps

    def amending(self, steps: Sequence[AmendStep]) -> Flow[None]:
        """Carry out `steps`, each on its own."""
        decider = self.gate.enforcer or self.gate.limiter
        for verb, units in steps:
            amend = getattr(decider, verb)
            try:
                yield amend(self.verdict, units) if verb == "settle" else amend(self.verdict)
            except StoreError as error:
                _log.warning("%s: not done, the store could not answer: %s", verb, error)


def _possible(verdict: Verdict, steps: Sequence[AmendStep]) -> Sequence[AmendStep]:
    """Return the steps for which a verdict has a receipt, where a fallback decided in place of the store."""
    receipt = verdict.receipt
    if receipt is None:
        return ()
    return [(verb, units) for verb, units in steps if verb != "settle" or receipt.record is not None]


class Passage(_Passage):
    """A request that has entered a blocking gate."""

    __slots__ = ()

    gate: BlockingGate

    def leave(self, status: int) -> None:
        """End the request: refund, settle, give back places."""
        if steps := self.end(status):
            self.amend(steps)

    def amend(self, steps: Sequence[AmendStep]) -> None:
        """Carry out `steps`."""
        for _ in self.amending(steps):  # which blocks; results are not needed, and this costs half as much as `drive`
            pass


class AsyncPassage(_Passage):
    """A request that has entered a gate for asyncio."""

    __slots__ = ()

    gate: AsyncGate

    async def leave(self, status: int) -> None:
        """End the request: refund, settle, give back places. A cancellation does not keep that from being done."""
        if steps := self.end(status):
            await self.amend(steps)

    def amend(self, steps: Sequence[AmendStep]) -> Awaitable[None]:
        """Carry out `steps`, also if the caller is cancelled. In this process nothing waits, so it needs no task."""
        work = drive_async(self.amending(steps))
        return work if self.gate.in_process else asyncio.shield(self.gate.start(work))


class _WaitingGate(Gate):
    """What blocking gates and those for asyncio share: the steps that wait, as flows."""

    def __init__(self, options: GateOptions) -> None:
        super().__init__(options)
        self._engine = self.limiter.engine
        self._decide = self.limiter.operations.decide
        self._may_decide_at_once = self._engine.in_process and not self.settles

    def decided_at_once(self, request: Request, name: str | None) -> Verdict | None:
        """Return the verdict if it takes no waiting, which spares a flow and a coroutine: 2.0 instead of 2.8 µs."""
        if not self._may_decide_at_once:
            return None
        if self.enforcer is None:
            key = self.key(request) if name is None else self.named_key(request, name)
            return self._decide(key, self.quota, self.cost(request), None)  # type: ignore[no-any-return]
        return None if self.enforcer.directory is not None else self._begun(request, request, None)

    def asking(self, request: Request, name: str | None) -> Flow[Verdict]:
        """Charge a request."""
        request_id = new_id() if self.settles else None
        enforcer = self.enforcer
        if enforcer is None:
            key = self.key(request) if name is None else self.named_key(request, name)
            return (yield self.limiter.acquire(key, self.quota, self.cost(request), request_id))  # type: ignore[no-any-return]
        descriptor = request if enforcer.directory is None else (yield enforcer.describe(request))
        begun = self._begun(request, descriptor, request_id)
        if isinstance(begun, Pending):
            begun = enforcer.finish(begun, (yield self._engine.run((begun.op,), begun.deadline))[0])
        return begun  # type: ignore[no-any-return]

    def _begun(self, request: Request, descriptor: Descriptor, request_id: bytes | None) -> Any:
        """Begin a request by rules. A cost that no matching rule could ever admit is lowered to what they could."""
        cost = self.cost(request)
        while True:
            try:
                return self.enforcer.begin(descriptor, cost, request_id)
            except CostExceedsLimit as error:
                cost = self.fitting(cost, error)

    def going_ahead(self, passage: Any, hold: type[Hold] | type[AsyncHold] | None) -> Flow[None]:
        """Wait out the delay of shaping, then renew places by a `hold`, if asked for. Interrupted, give all back."""
        try:
            if delay := self.limiter.operations.delay_left(passage.verdict):
                alarm, _ = self._engine.alarm()
                yield self._engine.sleep(alarm, delay)
            if hold is not None:
                passage.keep(hold(self.enforcer or self.limiter, passage.verdict))
        except BaseException:
            passage.end(CLIENT_CLOSED)
            yield passage.amend(_GIVE_BACK)
            raise


class BlockingGate(_WaitingGate):
    """A gate for blocking code: WSGI, and handlers that run in threads."""

    kinds = (Limiter, Enforcer)

    def enter(self, request: Request, *, name: str | None = None) -> Passage | None:
        """Charge a request, and return when its turn has come; None if it is exempt.

        `name` is what is counted, where that is known only now.
        """
        if self.exempt is not None and self.exempt(request):
            return None
        verdict = self.decided_at_once(request, name)
        if verdict is None:
            verdict = drive(self.asking(request, name))
        passage = Passage(self, verdict)
        if verdict[0][0] and (verdict[0][5] or self.renews):
            drive(self.going_ahead(passage, Hold if self.renews else None))
        return passage


class AsyncGate(_WaitingGate):
    """A gate for asyncio."""

    kinds = (AsyncLimiter, AsyncEnforcer)

    def __init__(self, options: GateOptions) -> None:
        super().__init__(options)
        self._tasks: set[asyncio.Task[Any]] = set()
        # Without this, a place that is granted to a request that was cancelled meanwhile stays taken until its ttl.
        self._shields = not self.in_process and (
            self.enforcer is not None or self.limiter.operations.has_places(self.quota)
        )

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` to its end, even if the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def enter(
        self, request: Request, *, lasting: bool = False, name: str | None = None, keep: bool = True
    ) -> AsyncPassage | None:
        """Charge a request, and return when its turn has come; None if it is exempt.

        The places of a `lasting` request are renewed even without the option `renew`; with `keep` False they are not
        renewed here. `name` is what is counted, where that is known only now.
        """
        if self.exempt is not None and self.exempt(request):
            return None
        verdict = self.decided_at_once(request, name)
        if verdict is None:
            asking = drive_async(self.asking(request, name))
            verdict = await (self._shielded(asking) if self._shields else asking)
        passage = AsyncPassage(self, verdict)
        renews = keep and (lasting or self.renews)
        if verdict[0][0] and (verdict[0][5] or renews):
            await drive_async(self.going_ahead(passage, AsyncHold if renews else None))
        return passage

    async def _shielded(self, asking: Coroutine[Any, Any, Verdict]) -> Verdict:
        """Return the verdict. If the caller is cancelled before it comes, the request leaves when it comes."""
        task = self.start(asking)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self.start(self._leave_unseen(task))
            raise

    async def _leave_unseen(self, task: asyncio.Task[Verdict]) -> None:
        try:
            verdict = await task
        except Exception:  # the caller is gone, so there is nothing to give back and no one to tell
            return
        await AsyncPassage(self, verdict).leave(CLIENT_CLOSED)


P = TypeVar("P", bound=Passage | AsyncPassage)

LISTS = frozenset(("RateLimit", "RateLimit-Policy"))
"""Headers that are lists: each limit adds its items. All other headers hold one value."""


class Visit(Generic[P]):
    """One request in an application as handlers see it, however many middlewares and decorators it passes.

    `visit.cost = 1432` settles its cost, and `visit.verdict` tells what is left.
    """

    __slots__ = ("passages",)

    def __init__(self) -> None:
        self.passages: list[P] = []

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of the last gate that was entered; None if there was none."""
        return self.passages[-1].verdict if self.passages else None

    @property
    def cost(self) -> int | None:
        """The true cost of the request. A handler sets it before the response ends."""
        return next((passage.cost for passage in self.passages if passage.cost is not None), None)

    @cost.setter
    def cost(self, units: int) -> None:
        settling = [passage for passage in self.passages if passage.gate.settles]
        if not settling:
            raise InvalidOption("cost of a visit: nothing is to be settled (expected a middleware with settle=True)")
        for passage in settling:
            passage.cost = units


def headers_of(passages: Sequence[Passage | AsyncPassage]) -> list[Header]:
    """Return the headers of all limits that a request passed; where a header has room for one, of the innermost."""
    if len(passages) == 1:
        return passages[0].headers()
    headers: list[Header] = []
    for passage in reversed(passages):
        others = {name for name, _ in headers} - LISTS
        headers = [header for header in passage.headers() if header[0] not in others] + headers
    return headers


def raised_refusal(raised: RateLimited, passages: Sequence[Passage | AsyncPassage]) -> RefusalResponse:
    """Return the response for a refusal that a handler raised. It shows what the limits on its way may show."""
    return passages[-1].gate.refusal(raised.verdict) if passages else refusal_of(raised.verdict)
