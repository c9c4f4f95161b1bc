"""However application and server behave, a finished request holds nothing and is charged by its outcome."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from itertools import count
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from penstock import Limiter
from penstock.middleware.wsgi import RateLimitMiddleware

QUOTAS = ("3 concurrent ttl 1h", "100/hour fixed_window")
LIMITER = Limiter()  # one for all examples, each of which comes from an address of its own: making one takes time
ADDRESSES = count(0x0A000000)


class Conduct(NamedTuple):
    """What an application does, and what the server does with it."""

    is_generator: bool
    status: str
    parts: int
    raises_at: int  # 0: when it is called; 1 to 4: at that part, if there is one; 5: when it is closed; 6: never
    takes: int  # parts that the server takes
    closes: bool  # or drops the response


_conducts = st.builds(
    Conduct,
    st.booleans(),
    st.sampled_from(["200 OK", "401 Unauthorized", "503 Service Unavailable", "oops"]),
    st.integers(0, 3),
    st.integers(0, 6),
    st.integers(0, 5),
    st.booleans(),
)


class Boom(Exception):
    """On purpose."""


class _Body:
    def __init__(self, conduct: Conduct) -> None:
        self.conduct = conduct

    def __iter__(self) -> Iterator[bytes]:
        for number in range(1, self.conduct.parts + 1):
            if number == self.conduct.raises_at:
                raise Boom
            yield b"part"

    def close(self) -> None:
        if self.conduct.raises_at == 5:
            raise Boom


def _app(conduct: Conduct) -> Any:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        if conduct.raises_at == 0:
            raise Boom
        start_response(conduct.status, [])
        return _Body(conduct)

    def generator(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        yield from app(environ, start_response)

    return generator if conduct.is_generator else app


def _served(app: Any, conduct: Conduct, client: str) -> int:
    """What the outcome is, as the server saw it: the status that was begun, 500 if anything was raised, else 499."""
    status = 499

    def start_response(text: str, headers: object, exc_info: object = None) -> Any:
        nonlocal status
        status = int(text[:3]) if text[:3].isdecimal() else 500

    body: Any = ()
    try:
        body = app({"REMOTE_ADDR": client}, start_response)
        chunks = iter(body)
        for _ in range(conduct.takes):
            if next(chunks, None) is None:
                break
    except Boom:
        status = 500
    try:
        if conduct.closes and hasattr(body, "close"):
            body.close()
    except Boom:
        pass  # the response is as it is
    return status


@given(st.lists(_conducts, min_size=1, max_size=3))
def test_requests_that_are_over_hold_nothing_and_are_charged_by_their_outcome(conducts: list[Conduct]) -> None:
    client = str(IPv4Address(next(ADDRESSES)))
    charged = 0
    for conduct in conducts:
        app = RateLimitMiddleware(_app(conduct), limiter=LIMITER, quota=QUOTAS, charge=lambda status: status < 500)
        charged += _served(app, conduct, client) < 500
    places, rate = LIMITER.peek(f"ip={client}", QUOTAS, cost=0).decisions
    assert (places.remaining, rate.remaining) == (3, 100 - charged)
