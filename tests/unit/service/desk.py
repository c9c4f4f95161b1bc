"""An Api without a transport: calls are made by hand, and answers kept."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock import Limiter, ManualClock
from penstock.clock import Micros
from penstock.enforcer import Enforcer
from penstock.engine.protocols import Done
from penstock.layers import Layer
from penstock.model import Op, Outcome, Verdict
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet
from penstock.service.api import Api
from penstock.service.decisions import Decider
from penstock.service.wire.calls import Call, Head, Header, Peer
from tests.unit.support import Passing

LOCAL = Peer("127.0.0.1")
SECRET = b"a secret that all share"
RULES = """
rules:
  - {id: orders, match: {path: {prefix: /orders}}, key: user, quota: 3/minute name orders}
  - {id: banned, match: {path: /banned}, action: deny, response: {message: Go away.}}
  - {id: health, match: {path: /health}, action: allow}
  - {id: reports, match: {path: /reports}, key: user, quota: 2 concurrent ttl 30s}
  - {id: tokens, match: {path: /chat}, key: user, quota: 1000/hour}
  - {id: trial, match: {path: /orders}, key: user, quota: 1/minute name trial, mode: shadow}
"""


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ByHand(Call):
    """A call that was made by hand."""

    __slots__ = ("answers",)

    def __init__(
        self,
        method: bytes,
        path: bytes,
        body: bytes = b"",
        headers: Sequence[Header] = (),
        peer: Peer = LOCAL,
        expires: float | None = None,
    ) -> None:
        self.method, self.body, self.headers, self.peer, self.expires = method, body, headers, peer, expires
        self.path, _, self.query = path.partition(b"?")
        self.answers: list[Answer] = []

    @property
    def gone(self) -> bool:
        return False

    def answer(self, head: Head, body: bytes = b"", extra: Sequence[Header] = ()) -> None:
        self.answers.append(Answer(head.status, dict([*head.headers, *extra]), body))

    @property
    def answered(self) -> Answer:
        (answer,) = self.answers
        return answer


class Held:
    """An engine that runs nothing until `go`, as a store elsewhere takes its time."""

    def __init__(self, limiter: Limiter) -> None:
        self._run = limiter.engine.run
        self.waiting: list[tuple[Sequence[Op], Micros | None, Done]] = []

    def submit(self, ops: Sequence[Op], deadline: Micros | None, done: Done) -> None:
        self.waiting.append((ops, deadline, done))

    def go(self, outcomes: list[Outcome] | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for ops, deadline, done in waiting:
            done(self._run(ops, deadline) if outcomes is None else outcomes)


class Noted:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.decisions: list[list[Verdict]] = []
        self.answers: list[tuple[str, list[int]]] = []

    def decided(self, verdicts: Sequence[Verdict], took: Micros) -> None:
        self.decisions.append([*verdicts])

    def answered(self, route: str, statuses: Sequence[int], took: Micros) -> None:
        self.answers.append((route, [*statuses]))


class Desk:
    """An Api to ask. `shared`: as over a store elsewhere, where nothing is answered at once."""

    def __init__(self, rules: str = RULES, *, shared: bool = False, secret: bytes = SECRET, **options: Any) -> None:
        self.clock = ManualClock()
        layers: Sequence[Layer] | None = [Passing()] if shared else None
        self.limiter = Limiter(clock=self.clock, layers=layers)
        self.enforcer = Enforcer(RuleSet(parse(rules)), self.limiter)
        self.observer = Noted()
        self.held = Held(self.limiter)
        self.decider = Decider(self.enforcer, self.observer)
        if shared:
            self.decider.engine = self.held  # type: ignore[assignment]
        self.api = Api(self.decider, secret, **options)

    def ask(self, *calls: ByHand) -> list[Answer]:
        self.api.handle([*calls])
        self.held.go()
        return [call.answered for call in calls]

    def post(self, path: str, body: Any) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        (answer,) = self.ask(ByHand(b"POST", path.encode(), raw))
        return answer
