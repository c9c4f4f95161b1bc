"""From a request of the rate limit service to the operations that decide it.

Pure: no clock, no I/O. The plan of a request's bytes under one configuration never changes, so plans are made once and
remembered.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from penstock.engine.protocols import Local
from penstock.errors import InvalidRequest
from penstock.model import Acquire, Ask, OnFailure, new
from penstock.quota import MAX_LIMIT, Quota
from penstock.rules.plan import STRICTNESS
from penstock.service.envoy import answers
from penstock.service.envoy.config import UNITS_BY_NUMBER, Config, Entry, Found, Limit, counter_key
from penstock.service.envoy.protocol import DecodeError, RateLimitRequest
from penstock.service.envoy.stats import Counts, LimitHits

MAX_DESCRIPTORS = 256
"""In one request."""

PLAIN_OK = answers.status(answers.OK, b"", 0, 0)
NO_LIMIT = Limit(0, None, None)
UNLIMITED_OK = answers.status(answers.OK, b"", answers.UNLIMITED_REMAINING, 0)


class Conduct(NamedTuple):
    """How requests are answered; the names are those of envoyproxy/ratelimit where it has one.

    - `all_or_nothing`: a request whose descriptors do not all fit is charged to none of them.
    - `shadow_mode`, `quota_mode`: of every limit.
    - `headers`: the names of the response headers for limit, remaining and reset; none by default.
    - `retry_after`: refusals have a `retry-after` header.
    - `dynamic_metadata`: answers carry the request and the `metadata` of limits that were kept.
    - `near_limit_ratio`: from which share of a limit on hits are counted as near.
    - `algorithm`, `count_denied`: of limits that requests bring along.
    """

    all_or_nothing: bool = False
    shadow_mode: bool = False
    quota_mode: bool = False
    headers: tuple[str, str, str] | None = None
    retry_after: bool = True
    dynamic_metadata: bool = False
    near_limit_ratio: float = 0.8
    algorithm: str = "fixed_window"
    count_denied: bool = False


class Fate(NamedTuple):
    """How one descriptor is decided and answered.

    - `op`, `ask`: the positions of the operation that decides and of its first ask for the descriptor; -1: none.
    - `current`: the limit, as the answer holds it.
    - `never`: always refused: a limit of 0, or a cost that exceeds it.
    - `fixed`: the whole status, where nothing limits the descriptor.
    """

    limit: Limit
    op: int
    ask: int
    cost: int
    current: bytes
    never: bool
    near: int
    tally: LimitHits
    fixed: bytes


class RequestPlan(NamedTuple):
    """The operations of a request, and how its descriptors are answered.

    - `simple`: a single ask without special cases, as most requests are.
    - `local`: decides a simple plan in this process, if the store is in it.
    - `asked`: the request as dynamic metadata, where that is wanted.
    """

    ops: tuple[Acquire, ...]
    fates: tuple[Fate, ...]
    simple: bool
    local: Local | None = None
    asked: bytes = b""


def read_request(data: bytes) -> Any:
    """Return the request that `data` holds; raise `InvalidRequest` if there is none."""
    try:
        request = RateLimitRequest.FromString(data)
    except DecodeError:
        raise InvalidRequest("request: expected a RateLimitRequest") from None
    if not request.domain:
        raise InvalidRequest("domain: empty (expected the domain of a configuration)")
    if not 0 < len(request.descriptors) <= MAX_DESCRIPTORS:
        raise InvalidRequest(f"{len(request.descriptors)} descriptors: expected 1 to {MAX_DESCRIPTORS}")
    if any(descriptor.is_negative_hits for descriptor in request.descriptors):
        raise InvalidRequest("is_negative_hits: expected hits to charge; what was charged is not given back by key")
    return request


class RequestPlanner:
    """Plans of requests under one configuration."""

    def __init__(self, config: Config, conduct: Conduct, counts: Counts) -> None:
        self._config, self._conduct, self._counts = config, conduct, counts
        self._uncounted = LimitHits()

    def plan(self, data: bytes) -> RequestPlan:
        """Return the plan of a request; raise `InvalidRequest` if it is invalid."""
        request = read_request(data)
        found = [self._found(request.domain, descriptor) for descriptor in request.descriptors]
        replaced = {name for one in found if one is not None for name in one.limit.replaces}
        asked = answers.metadata(_described(request)) if self._conduct.dynamic_metadata else b""
        building = _Building(self._conduct, asked)
        for descriptor, one in zip(request.descriptors, found, strict=True):
            if one is None or (one.limit.name in replaced and one.limit.name and not one.limit.unlimited):
                building.free(PLAIN_OK, self._uncounted)
            elif one.limit.unlimited:
                building.free(UNLIMITED_OK, self._counts.tally(one.title))
            else:
                own = descriptor.HasField("hits_addend")
                cost = descriptor.hits_addend.value if own else request.hits_addend or 1
                building.limited(one, cost, self._counts.tally(one.title))
        return building.plan()

    def _found(self, domain: str, descriptor: Any) -> Found | None:
        entries: list[Entry] = [(entry.key, entry.value) for entry in descriptor.entries]
        if not descriptor.HasField("limit"):
            return self._config.find(domain, entries)
        if domain not in self._config.domains:
            return None
        limit = override(descriptor.limit.requests_per_unit, descriptor.limit.unit, self._conduct)
        return Found(limit, counter_key(domain, entries), f"{domain}.override")


class _Building:
    """Builds a plan, one descriptor after the other."""

    def __init__(self, conduct: Conduct, asked: bytes) -> None:
        self._conduct, self._asked = conduct, asked
        self._fates: list[Fate] = []
        self._ops: list[Acquire] = []
        self._joint: dict[tuple[str, object], int] = {}  # position of each counter's ask in the joint operation
        self._asks: list[Ask] = []
        self._behaviours: list[OnFailure] = []
        self._refused = False  # whatever the counters say

    def _in_quota_mode(self, limit: Limit) -> bool:
        """Return whether a request may pass although the limit is exceeded: then the other limits are charged."""
        return limit.quota_mode or self._conduct.quota_mode

    def free(self, status: bytes, tally: LimitHits) -> None:
        """Add a descriptor without a limit."""
        self._fates.append(Fate(NO_LIMIT, -1, -1, 1, b"", False, 0, tally, status))

    def limited(self, found: Found, cost: int, tally: LimitHits) -> None:
        limit, key, _ = found
        quota = limit.quota
        op, ask, never = -1, -1, quota is None
        if quota is not None:
            never = cost > quota.capacity
            charged = min(max(cost, 1), quota.capacity)  # a cost of 0 asks whether 1 would fit
            if self._conduct.all_or_nothing and cost and not never and not self._in_quota_mode(limit):
                op, ask = 0, self._join(key, quota, charged, limit)
            else:
                asks = _asks(key, quota, charged, advisory=False)
                op, ask = len(self._ops) + self._conduct.all_or_nothing, 0
                dry = not cost or (never and not quota.count_denied)  # where refused hits count, these use it all up
                self._ops.append(Acquire(asks, dry, None, limit.on_failure))
        if never and not (limit.shadow or self._conduct.shadow_mode or self._in_quota_mode(limit)):
            self._refused = True
        near = int(limit.requests * self._conduct.near_limit_ratio)
        self._fates.append(Fate(limit, op, ask, cost, answers.limit_field(limit), never, near, tally, b""))

    def _join(self, key: str, quota: Quota, cost: int, limit: Limit) -> int:
        """Return the position of a descriptor's first ask in the joint operation; equal counters are one ask."""
        same = (key, quota.identity)
        if same in self._joint:
            at = self._joint[same]
            self._asks[at] = self._asks[at]._replace(cost=min(self._asks[at].cost + cost, MAX_LIMIT))
            return at
        at = self._joint[same] = len(self._asks)
        self._asks += _asks(key, quota, cost, advisory=limit.shadow or self._conduct.shadow_mode)
        if limit.on_failure is not None:
            self._behaviours.append(limit.on_failure)
        return at

    def plan(self) -> RequestPlan:
        ops, fates, conduct = self._ops, self._fates, self._conduct
        if conduct.all_or_nothing:
            strictest = max(self._behaviours, key=STRICTNESS.index, default=None)
            if self._asks:
                ops.insert(0, Acquire(tuple(self._asks), self._refused, None, strictest))
            else:
                fates = [fate._replace(op=fate.op - 1) if fate.op >= 0 else fate for fate in fates]
        first = fates[0]
        simple = len(fates) == len(ops) == 1 and not ops[0].dry and len(ops[0].asks) == 1 and not first.never
        special = conduct.shadow_mode or conduct.headers is not None or first.limit.shadow or self._asked
        return RequestPlan(tuple(ops), tuple(fates), simple and not special, None, self._asked)


def _described(request: Any) -> dict[str, object]:
    """Return a request in the form of envoyproxy/ratelimit's dynamic metadata."""
    descriptors = []
    for descriptor in request.descriptors:
        one: dict[str, object] = {"entries": [f"{entry.key}={entry.value}" for entry in descriptor.entries]}
        if descriptor.HasField("hits_addend"):
            one["hitsAddend"] = descriptor.hits_addend.value
        descriptors.append(one)
    hits = {"hitsAddend": request.hits_addend} if request.hits_addend else {}
    return {"domain": request.domain, "descriptors": descriptors, **hits}


def _asks(key: str, quota: Quota, cost: int, *, advisory: bool) -> tuple[Ask, ...]:
    return tuple(new(Ask, (key, part, 1 if part.flat else cost, advisory)) for part in quota.parts)


@lru_cache(4_096)
def override(requests: int, unit: int, conduct: Conduct) -> Limit:
    """Return the limit that a request brings along."""
    known = UNITS_BY_NUMBER.get(unit)
    if known is None:
        raise InvalidRequest(f"limit.unit {unit}: expected the number of a unit from second to year")
    if not requests:
        return Limit(0, known, None)
    quota = Quota(requests, known.seconds, conduct.algorithm, count_denied=conduct.count_denied)
    return Limit(requests, known, quota)
