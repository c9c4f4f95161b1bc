"""Behaviour that every framework shares."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import AsyncLimiter, Limiter, ManualClock
from tests.unit.middleware.adapters import AWAITING, BLOCKING

ADAPTERS = [
    *[pytest.param(adapter, AsyncLimiter, id=name) for name, adapter in AWAITING.items()],
    *[pytest.param(adapter, Limiter, id=name) for name, adapter in BLOCKING.items()],
]
TOLD = {
    "ietf": {"RateLimit": '"2-per-minute";r=1;t=30', "RateLimit-Policy": '"2-per-minute";q=2;w=60'},
    "draft6": {"RateLimit-Limit": "2", "RateLimit-Remaining": "1"},
    "x-seconds": {"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "30"},
    "none": {},
}


@pytest.mark.parametrize("dialect", TOLD)
@pytest.mark.parametrize(("adapter", "kind"), ADAPTERS)
async def test_headers_have_the_dialect_that_was_chosen(adapter: Any, kind: Any, dialect: str) -> None:
    limiter = kind(clock=ManualClock())
    async with adapter(limiter=limiter, quota="2/minute gcra", dialect=dialect) as get:
        passed, _, refused = [await get("/") for _ in range(3)]
    assert (passed[0], refused[0]) == (200, 429)
    assert {name: passed[1].get(name) for name in TOLD[dialect]} == TOLD[dialect]
    others = [name for names in TOLD.values() for name in names if name not in TOLD[dialect]]
    assert [name for name in others if name in passed[1] or name in refused[1]] == []
    assert refused[1]["Retry-After"] == "30"


@pytest.mark.parametrize(("adapter", "kind"), ADAPTERS)
async def test_headers_may_have_two_dialects_at_once(adapter: Any, kind: Any) -> None:
    limiter = kind(clock=ManualClock())
    async with adapter(limiter=limiter, quota="2/minute gcra", dialect=["ietf", "x-epoch"]) as get:
        _, headers = await get("/")
    assert (headers["RateLimit"], headers["X-RateLimit-Remaining"]) == ('"2-per-minute";r=1;t=30', "1")
