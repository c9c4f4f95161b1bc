"""Through the gate: asking, waiting out a delay, and amending when a request is over. Once blocking, once for asyncio.

    passage = gate.enter(request)          # charges; sits out the delay of shaping
    if passage is None: ...                # the request is exempt
    elif not passage: passage.refusal()    # what to answer
    else:                                  # let the handler run, add passage.headers() to its response, and in any case
        passage.leave(status)              # refund, settle, give back places: when the last of the response is ready

`leave` may be called twice; the first time counts. Its status is the response's: 500 if the handler raised, and
`CLIENT_CLOSED` if the client was gone first. What the store cannot amend is logged and forgotten, because there is a
response to be sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, Generic, TypeVar

from penstock.enforcer import AsyncEnforcer, Enforcer
from penstock.errors import CostExceedsLimit, InvalidOption, RateLimited, StoreError
from penstock.headers import Header
from penstock.holds import AsyncHold, Hold
from penstock.limiter import ID_BYTES, AsyncLimiter, Limiter
from penstock.middleware.gate import CLIENT_CLOSED, AmendStep, Gate, Options, Refusal, holds_place, refusal_of
from penstock.middleware.request import Request
from penstock.model import Verdict, check_units
from penstock.rules.ruling import Ruling

G = TypeVar("G", bound=Gate)

_log = logging.getLogger("penstock.middleware")

_GIVE_BACK: Sequence[AmendStep] = (("refund", None),)


class _Passage:
    """One request on its way through a gate; true if it may pass."""

    __slots__ = ("_cost", "_hold", "_left", "gate", "verdict")

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
        """What the request turned out to cost; None until a handler says so."""
        return self._cost

    @cost.setter
    def cost(self, units: int) -> None:
        if not self.gate.settles:
            raise InvalidOption("cost of a passage: not to be settled (expected a middleware with settle=True)")
        self._cost = check_units("cost", units, least=0)

    def headers(self) -> list[Header]:
        """The headers to add to the response."""
        return self.gate.headers(self.verdict)

    def refusal(self) -> Refusal:
        """The response to a request that may not pass."""
        return self.gate.refusal(self.verdict)

    def keep(self, hold: Hold | AsyncHold) -> None:
        """Renew the places that came with it, if any did, until it is left."""
        if self and holds_place(self.verdict):
            self._hold = hold
            hold._keep()

    def _amends(self, status: int) -> Sequence[AmendStep]:
        """What is to be amended, the first time that somebody asks."""
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
        steps = self.gate.amends(verdict, status, self._cost)
        return _possible(verdict, steps) if verdict.degraded else steps


def _possible(verdict: Verdict, steps: Sequence[AmendStep]) -> Sequence[AmendStep]:
    """Of what is to be amended, that for which whoever stood in for the store has left a receipt."""
    receipt = verdict.receipt
    if receipt is None:
        return ()
    return [(verb, units) for verb, units in steps if verb != "settle" or receipt.record is not None]


class Passage(_Passage):
    """One request on its way through a gate, for blocking code."""

    __slots__ = ()

    def leave(self, status: int) -> None:
        """The request is over."""
        if self._hold is not None:
            self._hold._let_go()
        self._do(self._amends(status))

    def _do(self, steps: Sequence[AmendStep]) -> None:
        asked = self.gate.enforcer or self.gate.limiter
        for verb, units in steps:
            try:
                if verb == "settle":
                    asked.settle(self.verdict, units)
                else:
                    getattr(asked, verb)(self.verdict)
            except StoreError as error:
                _log.warning("%s: not done, the store could not answer: %s", verb, error)


class BlockingGate(Gate):
    """A gate for blocking code: WSGI, and whatever runs in threads."""

    kinds = (Limiter, Enforcer)

    def enter(self, request: Request, *, name: str | None = None) -> Passage | None:
        """Charge a request. It comes back when it is its turn; None if it is exempt.

        `name` is what is counted, where that is known only now.
        """
        if self._exempt is not None and self._exempt(request):
            return None
        request_id = os.urandom(ID_BYTES) if self.settles else None
        if self.enforcer is None:
            key = self._key(request) if name is None else self.named_key(request, name)
            verdict = self.limiter.acquire(key, self.quota, self.cost(request), request_id)
        else:
            verdict = self._check(request, request_id)
        passage = Passage(self, verdict)
        if not passage:
            return passage
        try:
            if delay := self.limiter._delay_left(verdict):
                self.limiter._clock.wait(threading.Event(), delay)
            if self.renews:
                passage.keep(Hold(self.enforcer or self.limiter, verdict))
        except BaseException:
            passage._amends(CLIENT_CLOSED)
            passage._do(_GIVE_BACK)
            raise
        return passage

    def _check(self, request: Request, request_id: bytes | None) -> Ruling:
        cost = self.cost(request)
        while True:
            try:
                return self.enforcer.check(request, cost, id=request_id)  # type: ignore[no-any-return]
            except CostExceedsLimit as error:
                cost = self.fitting(cost, error)


class AsyncPassage(_Passage):
    """One request on its way through a gate, for asyncio."""

    __slots__ = ()

    gate: AsyncGate

    async def leave(self, status: int) -> None:
        """The request is over. Cancelled, what is to be amended is amended all the same."""
        if self._hold is not None:
            self._hold._let_go()
        steps = self._amends(status)
        if steps:
            await self._finish(steps)

    async def _finish(self, steps: Sequence[AmendStep]) -> None:
        if self.gate.in_process:
            await self._do(steps)  # at once: there is nothing in it that waits, so nothing that could be cancelled
        else:
            await asyncio.shield(self.gate.start(self._do(steps)))

    async def _do(self, steps: Sequence[AmendStep]) -> None:
        asked = self.gate.enforcer or self.gate.limiter
        for verb, units in steps:
            try:
                if verb == "settle":
                    await asked.settle(self.verdict, units)
                else:
                    await getattr(asked, verb)(self.verdict)
            except StoreError as error:
                _log.warning("%s: not done, the store could not answer: %s", verb, error)


class AsyncGate(Gate):
    """A gate for asyncio."""

    kinds = (AsyncLimiter, AsyncEnforcer)

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._tasks: set[asyncio.Task[Any]] = set()
        # In this process there is nothing to await, which spares a coroutine.
        self._at_once = None if not self.in_process or self.enforcer or self.settles else self.limiter._at_once
        # A place that is granted to somebody who was cancelled meanwhile would stay taken until its ttl.
        self._sees_it_through = not self.in_process and (
            self.enforcer is not None or self.limiter._has_places(self.quota)
        )

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Work that goes on whatever becomes of who asked for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def enter(
        self, request: Request, *, lasting: bool = False, name: str | None = None, keep: bool = True
    ) -> AsyncPassage | None:
        """Charge a request. It comes back when it is its turn; None if it is exempt.

        The places of a `lasting` one are renewed even if nobody asked for that; `keep` is False if the caller sees to
        it. `name` is what is counted, where that is known only now.
        """
        if self._exempt is not None and self._exempt(request):
            return None
        if self._at_once is not None:
            key = self._key(request) if name is None else self.named_key(request, name)
            verdict = self._at_once(key, self.quota, self.cost(request), None)
            if verdict is None:  # it was not remembered how to ask: the long way
                verdict = await self._ask(request, name)
        elif self._sees_it_through:
            verdict = await self._asked_through(request, name)
        else:
            verdict = await self._ask(request, name)
        passage = AsyncPassage(self, verdict)
        if verdict[0][0] and verdict[0][5]:
            await self._sit_out(passage, verdict)
        if (lasting or self.renews) and keep:
            passage.keep(AsyncHold(self.enforcer or self.limiter, verdict))
        return passage

    def _ask(self, request: Request, name: str | None) -> Coroutine[Any, Any, Verdict]:
        request_id = os.urandom(ID_BYTES) if self.settles else None
        if self.enforcer is not None:
            return self._check(request, request_id)
        key = self._key(request) if name is None else self.named_key(request, name)
        asked: Coroutine[Any, Any, Verdict] = self.limiter.acquire(key, self.quota, self.cost(request), request_id)
        return asked

    async def _check(self, request: Request, request_id: bytes | None) -> Ruling:
        cost = self.cost(request)
        while True:
            try:
                return await self.enforcer.check(request, cost, id=request_id)  # type: ignore[no-any-return]
            except CostExceedsLimit as error:
                cost = self.fitting(cost, error)

    async def _asked_through(self, request: Request, name: str | None) -> Verdict:
        """The verdict; if nobody is there any more when it comes, the request is over."""
        task = self.start(self._ask(request, name))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self.start(self._leave_unseen(task))
            raise

    async def _leave_unseen(self, task: asyncio.Task[Verdict]) -> None:
        try:
            verdict = await task
        except Exception:  # nobody is left to be told
            return
        await AsyncPassage(self, verdict).leave(CLIENT_CLOSED)

    async def _sit_out(self, passage: AsyncPassage, verdict: Verdict) -> None:
        try:
            await self.limiter._clock.wait_async(asyncio.Event(), self.limiter._delay_left(verdict))
        except BaseException:  # given up on before it began
            passage._amends(CLIENT_CLOSED)
            await passage._finish(_GIVE_BACK)
            raise


# ---------------------------------------------------------------- visits


# A visit: one request in an application, with the passages that it was granted, as handlers see it.
#
# A request has one visit, however many middlewares and decorators ask: `visit.cost = 1432` settles what it cost, and
# `visit.verdict` tells what is left.


P = TypeVar("P", bound=Passage | AsyncPassage)

LISTS = frozenset(("RateLimit", "RateLimit-Policy"))
"""Headers that may be said by several: each limit adds its items. All others say one thing only."""


class Visit(Generic[P]):
    """One request in an application, and the passages that it was granted."""

    __slots__ = ("passages",)

    def __init__(self) -> None:
        self.passages: list[P] = []

    @property
    def verdict(self) -> Verdict | None:
        """What the last that was asked said; None if nobody was."""
        return self.passages[-1].verdict if self.passages else None

    @property
    def cost(self) -> int | None:
        """What the request turned out to cost. To be set by who knows, before the response ends."""
        return next((passage.cost for passage in self.passages if passage.cost is not None), None)

    @cost.setter
    def cost(self, units: int) -> None:
        settling = [passage for passage in self.passages if passage.gate.settles]
        if not settling:
            raise InvalidOption("cost of a visit: nothing is to be settled (expected a middleware with settle=True)")
        for passage in settling:
            passage.cost = units


def told(passages: Sequence[Passage | AsyncPassage]) -> list[Header]:
    """What a client is told of all limits that it passed; where there is room for one, of the innermost."""
    if len(passages) == 1:
        return passages[0].headers()
    headers: list[Header] = []
    for passage in reversed(passages):
        said = {name for name, _ in headers} - LISTS
        headers = [header for header in passage.headers() if header[0] not in said] + headers
    return headers


def raised_refusal(raised: RateLimited, passages: Sequence[Passage | AsyncPassage]) -> Refusal:
    """The response where a handler raised a refusal; it tells no more than the limits that the request has passed."""
    return passages[-1].gate.refusal(raised.verdict) if passages else refusal_of(raised.verdict)
