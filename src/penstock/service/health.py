"""`/livez` and `/readyz`: for whoever starts, stops and routes to a service.

`/livez` says that the process answers. `/readyz` says whether to send it requests: 200 while it can decide, even if it
does so without its store (then `degraded` lists why), and 503 once it drains. Both are open to everybody, so they tell
neither names nor addresses nor what a rule says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from penstock.service.wire.calls import Call, Head, Header

LIVE, READY = b"/livez", b"/readyz"
STALE = 60.0
"""Seconds without a look at the file of rules, after which something is wrong with whoever looks."""

_HEADERS: tuple[Header, ...] = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))
_OK, _UNAVAILABLE = Head(200, _HEADERS), Head(503, _HEADERS)
_WRONG_METHOD = Head(405, [*_HEADERS, (b"allow", b"GET, HEAD")])
_UNKNOWN = Head(404, _HEADERS)


class FollowedRules(Protocol):
    """What is to be known of the rules in force; `penstock.rules.source.RuleSource` is such."""

    faults: tuple[Any, ...]

    @property
    def version(self) -> str: ...

    def age(self) -> float: ...

    def stale(self) -> float: ...


class HealthStatus(NamedTuple):
    """How a service is; `degraded` says what does not work as it should, empty if all does."""

    status: str
    degraded: tuple[str, ...]

    @property
    def ready(self) -> bool:
        return self.status != "draining"


def _no_breakers() -> Mapping[str, str]:
    return {}


class Health:
    """Answers both paths, and whoever else wants to know.

    - `rules`: those that are followed, if any are.
    - `envoy_config`: the configuration that Envoy is answered by, where there is one beside the rules.
    - `breakers`: the state of the breaker of each server of the store.
    - `refused`: what else does not work as it should, in words that everybody may read.
    """

    def __init__(
        self,
        rules: FollowedRules | None = None,
        breakers: Callable[[], Mapping[str, str]] = _no_breakers,
        refused: Callable[[], Iterable[str]] = tuple,
        *,
        envoy_config: FollowedRules | None = None,
    ) -> None:
        said = {"rules": rules, "envoy_config": envoy_config}
        self._followed = {name: one for name, one in said.items() if one is not None}
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
                call.answer(_OK if state.ready else _UNAVAILABLE, self._told(state))
            else:
                call.answer(_UNKNOWN, b'{"status":"unknown path"}')

    def _degraded(self) -> tuple[str, ...]:
        why = []
        states = list(self._breakers().values())
        troubled = sum(state != "closed" for state in states)
        if troubled:
            why.append(f"store: {troubled} of {len(states)} servers not asked, because they failed")
        for name, followed in self._followed.items():
            faults = len(followed.faults)
            if faults:
                why.append(f"{name}: the file was refused ({faults} {'fault' if faults == 1 else 'faults'})")
            elif followed.stale() > STALE:
                why.append(f"{name}: the file is not followed any more")
        return (*why, *self._refused())

    def _told(self, state: HealthStatus) -> bytes:
        told: dict[str, object] = {"status": state.status, "degraded": state.degraded}
        for name, followed in self._followed.items():
            age, stale = round(followed.age(), 1), round(followed.stale(), 1)
            told[name] = {"version": followed.version, "age": age, "stale": stale}
        return json.dumps(told, separators=(",", ":")).encode()
