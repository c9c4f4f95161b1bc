"""The health endpoints `/livez` and `/readyz`, for orchestrators and load balancers.

`/livez` shows that the process answers. `/readyz` is 200 while the service can decide, even without its store (then
`degraded` lists why), and 503 while it drains. Both need no authentication, so they show no names, addresses or rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from penstock.service.wire.calls import Call, Head, Header

LIVE, READY = b"/livez", b"/readyz"
STALE = 60.0
"""Seconds without a check of the rules file, after which the service counts as degraded."""

_HEADERS: tuple[Header, ...] = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))
_OK, _UNAVAILABLE = Head(200, _HEADERS), Head(503, _HEADERS)
_WRONG_METHOD = Head(405, [*_HEADERS, (b"allow", b"GET, HEAD")])
_UNKNOWN = Head(404, _HEADERS)


class FollowedRules(Protocol):
    """The part of `penstock.rules.source.RuleSource` that health needs."""

    faults: tuple[Any, ...]

    @property
    def version(self) -> str: ...

    def age(self) -> float: ...

    def stale(self) -> float: ...


class HealthStatus(NamedTuple):
    """The health of a service. `degraded` lists what does not work; it is empty if everything does."""

    status: str
    degraded: tuple[str, ...]

    @property
    def ready(self) -> bool:
        return self.status != "draining"


def _no_breakers() -> Mapping[str, str]:
    return {}


class Health:
    """The handler of both paths, and the source of the status for other endpoints.

    - `rules`: the rules in force, if any.
    - `envoy_config`: the Envoy configuration in force, if any.
    - `breakers`: the state of the breaker of each server of the store.
    - `refused`: other causes of degradation, in words that reveal no secrets.
    """

    def __init__(
        self,
        rules: FollowedRules | None = None,
        breakers: Callable[[], Mapping[str, str]] = _no_breakers,
        refused: Callable[[], Iterable[str]] = tuple,
        *,
        envoy_config: FollowedRules | None = None,
    ) -> None:
        followed = {"rules": rules, "envoy_config": envoy_config}
        self._followed = {name: one for name, one in followed.items() if one is not None}
        self._breakers, self._refused = breakers, refused
        self.draining = False

    def state(self) -> HealthStatus:
        degraded = self._degraded()
        status = "draining" if self.draining else "degraded" if degraded else "ready"
        return HealthStatus(status, degraded)

    def handle(self, calls: list[Call]) -> None:
        for call in calls:
            if call.method not in (b"GET", b"HEAD"):
                call.answer(_WRONG_METHOD, b'{"status":"wrong method"}')
            elif call.path == LIVE:
                call.answer(_OK, b'{"status":"live"}')
            elif call.path == READY:
                state = self.state()
                call.answer(_OK if state.ready else _UNAVAILABLE, self._body(state))
            else:
                call.answer(_UNKNOWN, b'{"status":"unknown path"}')

    def _degraded(self) -> tuple[str, ...]:
        why = []
        states = list(self._breakers().values())
        failed = sum(state != "closed" for state in states)
        if failed:
            why.append(f"store: {failed} of {len(states)} servers not asked, because they failed")
        for name, followed in self._followed.items():
            faults = len(followed.faults)
            if faults:
                why.append(f"{name}: the file was refused ({faults} {'fault' if faults == 1 else 'faults'})")
            elif followed.stale() > STALE:
                why.append(f"{name}: the file is not followed any more")
        return (*why, *self._refused())

    def _body(self, state: HealthStatus) -> bytes:
        body: dict[str, object] = {"status": state.status, "degraded": state.degraded}
        for name, followed in self._followed.items():
            age, stale = round(followed.age(), 1), round(followed.stale(), 1)
            body[name] = {"version": followed.version, "age": age, "stale": stale}
        return json.dumps(body, separators=(",", ":")).encode()
