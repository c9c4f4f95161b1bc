"""However application and client behave, a finished request holds nothing and is charged by its outcome."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address
from itertools import count
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from penstock import AsyncLimiter
from penstock.middleware.asgi import Message, RateLimitMiddleware, Receive, Scope, Send
from penstock.middleware.gate import unless_server_error
from tests.unit.middleware.asgi_support import DistantStore, http_scope

QUOTAS = ("3 concurrent ttl 1h", "100/hour fixed_window")
# One for all examples, each of which comes from an address of its own: making one takes time.
LIMITERS = {False: AsyncLimiter(), True: AsyncLimiter(DistantStore(), layers=[])}
ADDRESSES = count(0x0A000000)
PATIENCE = 12  # turns of the event loop after which all that is under way has come to rest


class Conduct(NamedTuple):
    """What an application does, and what becomes of its client."""

    distant: bool
    status: int
    parts: int
    begins: bool
    ends: bool
    raises_at: int  # step after which it raises; beyond the last: never
    deaf_from: int  # message from which nothing can be sent
    cancelled_at: int  # turn of the event loop in which its task is cancelled, again and again; 40: never


_conducts = st.builds(
    Conduct,
    st.booleans(),
    st.sampled_from([200, 401, 503]),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(0, 25) | st.just(40),
)


class _Fault(Exception):
    """The application's own."""


def _application(conduct: Conduct, outcome: dict[str, Any]) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = []
        if conduct.begins:
            messages.append({"type": "http.response.start", "status": conduct.status, "headers": []})
            messages += [{"type": "http.response.body", "body": b"x", "more_body": True}] * conduct.parts
            if conduct.ends:
                messages.append({"type": "http.response.body", "body": b""})
        for step, message in enumerate(messages):
            if step == conduct.raises_at:
                outcome["raised"] = True
                raise _Fault
            await asyncio.sleep(0)
            outcome["begun"] = True
            outcome["ended"] = outcome.get("ended") or not message.get("more_body", step == 0)
            await send(message)

    return app


async def _live_through(conduct: Conduct) -> None:
    limiter, address = LIMITERS[conduct.distant], str(IPv4Address(next(ADDRESSES)))
    outcome: dict[str, Any] = {}
    app = RateLimitMiddleware(_application(conduct, outcome), limiter=limiter, quota=QUOTAS, charge=unless_server_error)
    sent = 0

    async def send(message: Message) -> None:
        nonlocal sent
        sent += 1
        if sent > conduct.deaf_from:
            outcome["deaf"] = True
            raise OSError

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    task = asyncio.create_task(app(http_scope(client=(address, 1)), receive, send))
    turns = 0
    while not task.done():
        if turns >= conduct.cancelled_at:
            task.cancel()
        await asyncio.sleep(0)
        turns += 1
    for _ in range(PATIENCE):
        await asyncio.sleep(0)
    error = None if task.cancelled() else task.exception()
    assert error is None or isinstance(error, _Fault | OSError)
    places, rate = (await limiter.peek(f"ip={address}", QUOTAS, 0)).decisions
    assert places.remaining == 3, "a place is taken for good"
    if not task.cancelled():
        failed = bool(outcome.get("raised")) and not outcome.get("ended") and not outcome.get("deaf")
        server_error = failed or (bool(outcome.get("begun")) and conduct.status == 503)
        assert rate.remaining == 100 - (not server_error)


@given(conduct=_conducts)
def test_finished_requests_hold_nothing(conduct: Conduct) -> None:
    asyncio.run(_live_through(conduct))
