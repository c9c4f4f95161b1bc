"""`ShouldRateLimit` by a configuration: the requests that came in together go to the store together.

A request is bytes, and mostly bytes that came before: its plan under the configuration in force is remembered, so that
an answer costs a lookup, a decision and some forty bytes. A new configuration begins with no plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from penstock.clock import Micros
from penstock.engine.batch import INTERNAL_FAILURE, Batch, time_left
from penstock.engine.engine import AsyncEngine, Engine
from penstock.engine.protocols import Local, Observer, Unobserved
from penstock.errors import InvalidRequest
from penstock.model import Failed
from penstock.quota import Quota
from penstock.service.decisions import BUDGET
from penstock.service.envoy.answers import Answerer
from penstock.service.envoy.config import Config
from penstock.service.envoy.plans import Conduct, RequestPlan, RequestPlanner
from penstock.service.envoy.protocol import SHOULD_RATE_LIMIT
from penstock.service.envoy.stats import Counts
from penstock.service.grpc import Status

ROUTE = "ShouldRateLimit"
"""The name of the route in metrics; the statuses are those of gRPC."""

MAX_PLANS = 20_000
MAX_REMEMBERED = 512
"""Bytes of a request whose plan is remembered: clients choose how long requests are."""


class UnaryCall(Protocol):
    """A call of a method that takes one message, such as a `Message` of gRPC."""

    data: bytes

    @property
    def expires(self) -> float | None: ...

    def answer(self, data: bytes) -> None: ...

    def fail(self, status: int, text: str = "") -> None: ...


class Configured(Protocol):
    """The source of the configuration in force."""

    @property
    def current(self) -> Config: ...


class ShouldRateLimit:
    """The method, by the configuration in force.

    - `budget`: how long the store may take, in microseconds.
    """

    path = SHOULD_RATE_LIMIT

    def __init__(
        self,
        source: Configured,
        engine: Engine | AsyncEngine,
        conduct: Conduct = Conduct(),  # noqa: B008
        *,
        observer: Observer | None = None,
        budget: Micros = BUDGET,
    ) -> None:
        self.counts = Counts()
        self._source, self._engine, self._conduct = source, engine, conduct
        self._bind: Any = engine.bind if engine.in_process else None
        self._observer = observer or Unobserved()
        self._budget, self._time_ns = budget, engine.clock.time_ns
        self._answerer = Answerer(conduct)
        self._config: Config | None = None
        self._planner = RequestPlanner(source.current, conduct, self.counts)
        self._plans: dict[bytes, RequestPlan] = {}
        self._locals: dict[Quota, Local] = {}

    def handle(self, messages: Sequence[UnaryCall]) -> None:
        config = self._source.current
        if config is not self._config:  # plans of an older one are of no use
            self._config, self._plans, self._locals = config, {}, {}
            self._planner = RequestPlanner(config, self._conduct, self.counts)
        batch = Batch(self._engine, self._observer)
        plans, simple = self._plans, self._answerer.simple
        now = self._time_ns() // 1_000
        for message in messages:
            plan = plans.get(message.data) or self._planned(message)
            if plan is None:
                batch.statuses[ROUTE].append(Status.INVALID_ARGUMENT)
                continue
            ops, fates, _, local, _ = plan
            if local is not None:
                verdict = local(ops[0][0][0][0], fates[0][3], now)
                batch.decided.append(verdict)  # type: ignore[arg-type]
                message.answer(simple(fates[0], verdict))  # type: ignore[arg-type]
                batch.statuses[ROUTE].append(Status.OK)
            elif ops:
                expires = message.expires
                deadline = self._budget if expires is None else time_left(self._budget, expires)
                batch.add(ops, deadline, partial(self._answer, batch, message, plan))
            else:
                message.answer(self._answerer.answer(plan, (), now))
                batch.statuses[ROUTE].append(Status.OK)
        batch.run()

    def _planned(self, message: UnaryCall) -> RequestPlan | None:
        try:
            plan = self._planner.plan(message.data)
        except InvalidRequest as error:
            message.fail(Status.INVALID_ARGUMENT, str(error))
            return None
        if plan.simple and self._bind is not None:
            plan = plan._replace(local=self._local(plan.ops[0].asks[0].quota))
        if len(message.data) <= MAX_REMEMBERED:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[message.data] = plan
        return plan

    def _local(self, quota: Quota) -> Local:
        local = self._locals.get(quota)
        if local is None:
            if len(self._locals) >= MAX_PLANS:  # requests bring limits along
                self._locals.clear()
            local = self._locals[quota] = self._bind((quota,)).local
        return local

    def _answer(self, batch: Batch, message: UnaryCall, plan: RequestPlan, outcomes: Sequence[Any]) -> None:
        """Answer a call by the outcomes of its operations."""
        failed = None
        for outcome in outcomes:
            if outcome.__class__ is Failed:
                failed = outcome
            else:
                batch.decided.append(outcome)
        if failed is not None:
            fail(batch, message, failed)
            return
        if plan.simple:
            message.answer(self._answerer.simple(plan.fates[0], outcomes[0]))
        else:
            message.answer(self._answerer.answer(plan, outcomes, self._time_ns() // 1_000))
        batch.statuses[ROUTE].append(Status.OK)


def fail(batch: Batch, message: UnaryCall, failed: Failed) -> None:
    """Fail a call that neither the store nor a fallback decided."""
    status, text = Status.UNAVAILABLE, "the store could not answer"
    if failed is INTERNAL_FAILURE:
        status, text = Status.INTERNAL, "a fault of this server"
    batch.statuses[ROUTE].append(status)
    message.fail(status, text)
