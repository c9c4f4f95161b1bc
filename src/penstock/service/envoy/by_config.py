"""`ShouldRateLimit` by a configuration: whatever requests came in together are one run of operations.

A request is bytes, and mostly bytes that came before: what they ask under the configuration in force is remembered, so
that an answer costs a lookup, a decision and some forty bytes. Another configuration has another memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from penstock.clock import SECOND, Micros, SystemClock, monotonic
from penstock.engine.engine import Runner
from penstock.engine.protocols import Observer, Unobserved
from penstock.errors import InvalidRequest
from penstock.model import Op, Outcome, Verdict
from penstock.quota import Quota
from penstock.service.decisions import BUDGET, STEP, TELLING
from penstock.service.envoy.answers import Answerer
from penstock.service.envoy.config import Config
from penstock.service.envoy.plans import Conduct, Plan, Planner
from penstock.service.envoy.protocol import SHOULD_RATE_LIMIT
from penstock.service.envoy.stats import Counts
from penstock.service.grpc import Status
from penstock.stores import Local

log = logging.getLogger("penstock.service")

ROUTE = "ShouldRateLimit"
"""What whoever measures calls it; the statuses are those of gRPC."""

MAX_PLANS = 20_000
MAX_REMEMBERED = 512
"""Bytes of a request whose plan is remembered: clients choose how long requests are."""


class Question(Protocol):
    """A request, and whom to answer: a `Message` of gRPC is one."""

    data: bytes

    @property
    def expires(self) -> float | None: ...

    def answer(self, data: bytes) -> None: ...

    def fail(self, status: int, text: str = "") -> None: ...


class Configured(Protocol):
    """Where the configuration in force comes from."""

    @property
    def current(self) -> Config: ...


class ShouldRateLimit:
    """The method, by the configuration in force.

    - `time_ns`: what time it is, by the clock of the limiter.
    - `budget`: how long the store may take, in microseconds.
    """

    path = SHOULD_RATE_LIMIT

    def __init__(
        self,
        source: Configured,
        runner: Runner,
        conduct: Conduct = Conduct(),  # noqa: B008
        *,
        observer: Observer | None = None,
        budget: Micros = BUDGET,
        time_ns: Callable[[], int] = SystemClock.time_ns,
    ) -> None:
        self.counts = Counts()
        self._source, self._runner, self._conduct = source, runner, conduct
        self._bind: Any = getattr(runner, "bind", None)
        self._observer = observer or Unobserved()
        self._budget, self._time_ns = budget, time_ns
        self._answerer = Answerer(conduct)
        self._config: Config | None = None
        self._planner = Planner(source.current, conduct, self.counts)
        self._plans: dict[bytes, Plan] = {}
        self._directs: dict[Quota, Local] = {}

    def handle(self, messages: Sequence[Question]) -> None:
        self._renew()
        plans, began = self._plans, monotonic()
        simple, now = self._answerer.simple, self._time_ns() // 1_000
        in_no_hurry = began + (self._budget + TELLING) / SECOND
        verdicts: list[Verdict] = []
        statuses: list[int] = []
        groups: dict[Micros, tuple[list[Op], list[tuple[Question, Plan]]]] = {}
        for message in messages:
            plan = plans.get(message.data) or self._planned(message)
            if plan is None:
                statuses.append(Status.INVALID_ARGUMENT)
                continue
            ops, fates, _, direct, _ = plan
            if direct is not None:
                verdict: Any = direct(ops[0][0][0][0], fates[0][3], now)
                verdicts.append(verdict)
                message.answer(simple(fates[0], verdict))
                statuses.append(Status.OK)
            elif not ops:
                message.answer(self._answerer.answer(plan, (), now))
                statuses.append(Status.OK)
            else:
                expires = message.expires
                deadline = self._budget
                if expires is not None and expires < in_no_hurry:
                    deadline = _hurried(expires - began)
                together, asking = groups.setdefault(deadline, ([], []))
                together += ops
                asking.append((message, plan))
        self._tell(verdicts, statuses, began)
        for deadline, (together, asking) in groups.items():
            self._runner.run(together, deadline, partial(self._done, asking, began))

    def _renew(self) -> None:
        """Forget what followed from an older configuration."""
        config = self._source.current
        if config is not self._config:
            self._config, self._plans, self._directs = config, {}, {}
            self._planner = Planner(config, self._conduct, self.counts)

    def _planned(self, message: Question) -> Plan | None:
        try:
            plan = self._planner.plan(message.data)
        except InvalidRequest as error:
            message.fail(Status.INVALID_ARGUMENT, str(error))
            return None
        if plan.simple and self._bind is not None:
            plan = plan._replace(direct=self._direct(plan.ops[0].asks[0].quota))
        if len(message.data) <= MAX_REMEMBERED:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[message.data] = plan
        return plan

    def _direct(self, quota: Quota) -> Local:
        direct = self._directs.get(quota)
        if direct is None:
            if len(self._directs) >= MAX_PLANS:  # requests bring limits along
                self._directs.clear()
            direct = self._directs[quota] = self._bind((quota,)).local
        return direct

    def _done(self, asking: Sequence[tuple[Question, Plan]], began: float, outcomes: Sequence[Outcome]) -> None:
        at, statuses = 0, []
        for message, plan in asking:
            until = at + len(plan.ops)
            try:
                statuses.append(self._answer(message, plan, outcomes[at:until]))
            except Exception as error:  # one who cannot be answered must not keep the others from their answers
                log.error("an answer that could not be told: %s", type(error).__name__)
                message.fail(Status.INTERNAL, "a fault of this server")
            at = until
        self._tell([outcome for outcome in outcomes if isinstance(outcome, Verdict)], statuses, began)

    def _answer(self, message: Question, plan: Plan, outcomes: Sequence[Outcome]) -> Status:
        verdicts = [outcome for outcome in outcomes if isinstance(outcome, Verdict)]
        if len(verdicts) < len(outcomes):  # the store could not answer, and nobody may answer in its place
            message.fail(Status.UNAVAILABLE, "the store could not answer")
            return Status.UNAVAILABLE
        if plan.simple:
            message.answer(self._answerer.simple(plan.fates[0], verdicts[0]))
        else:
            message.answer(self._answerer.answer(plan, verdicts, self._time_ns() // 1_000))
        return Status.OK

    def _tell(self, verdicts: Sequence[Verdict], statuses: Sequence[int], began: float) -> None:
        if isinstance(self._observer, Unobserved) or not statuses:
            return
        took = round((monotonic() - began) * SECOND)
        if verdicts:
            self._observer.decided(verdicts, took)
        self._observer.answered(ROUTE, statuses, took)


def _hurried(left: float) -> Micros:
    """How long the store may take for somebody who waits only `left` seconds."""
    micros = round(left * SECOND) - TELLING
    return max(micros - micros % STEP, STEP)
