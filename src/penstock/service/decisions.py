"""From descriptors to rulings, in batches: the part of the service that every API shares.

    batch = Batch(decider.engine, decider.observer)
    decider.check(batch, descriptor, then=answer)    # as often as there are requests
    batch.run()                                      # one run for all that need the store

A decider never waits. Where the counters are in this process a ruling is returned at once. Elsewhere `then` receives it
when the store has answered. Each request fails alone: its error is raised, or goes to `then` if it occurs later.

**How long the store may take.** The deadline of the rules, else `budget`; and never longer than the caller waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from penstock.clock import Micros
from penstock.enforcer import AsyncEnforcer, Enforcer, Pending
from penstock.engine.batch import Batch, time_left
from penstock.engine.engine import AsyncEngine, Engine
from penstock.engine.operations import Id
from penstock.engine.protocols import Observer
from penstock.errors import InvalidOption, PenstockError
from penstock.model import Explanation, Outcome
from penstock.rules.api_keys import AsyncKeyDirectory
from penstock.rules.ruleset import Descriptor
from penstock.rules.ruling import Ruling

BUDGET: Micros = 3_000
"""How long the store may take, where neither a rule nor a setting says otherwise."""

Result: TypeAlias = Ruling | PenstockError


class Decider:
    """Rulings by the rules of an enforcer."""

    def __init__(
        self,
        enforcer: Enforcer | AsyncEnforcer,
        observer: Observer,
        *,
        budget: Micros = BUDGET,
    ) -> None:
        if isinstance(enforcer.directory, AsyncKeyDirectory):
            raise InvalidOption("directory: expected a KeyDirectory, because a service waits for nothing but its store")
        self.enforcer, self.observer, self.budget = enforcer, observer, budget
        self.engine: Engine | AsyncEngine = enforcer.limiter.engine

    def check(
        self,
        batch: Batch,
        descriptor: Descriptor,
        cost: int = 1,
        id: Id | None = None,
        *,
        dry: bool = False,
        expires: float | None = None,
        then: Callable[[Result], None],
    ) -> Ruling | None:
        """Return the ruling on a request if it is known now; else None, and `then` receives it after `batch.run()`."""
        begun = self.enforcer.begin(descriptor, cost, id, dry=dry)
        if isinstance(begun, Pending):
            budget = self.budget if begun.deadline is None else begun.deadline
            deadline = budget if expires is None else time_left(budget, expires)
            batch.add((begun.op,), deadline, partial(self._finish, batch, begun, then))
            return None
        if not dry:
            batch.decided.append(begun)
            if begun.admission is not None:
                begun.end()  # a shedder counts the work of this service, and that is done
        return begun

    def explain(
        self,
        batch: Batch,
        descriptor: Descriptor,
        cost: int,
        expires: float | None,
        then: Callable[[Explanation | PenstockError], None],
    ) -> None:
        """Explain the ruling on a request. Charges nothing."""
        begun, explanation = self.enforcer.begin_explain(descriptor, cost)

        def explained(result: Result) -> None:
            then(explanation(result) if isinstance(result, Ruling) else result)

        if isinstance(begun, Pending):
            budget = self.budget if begun.deadline is None else begun.deadline
            batch.add((begun.op,), time_left(budget, expires), partial(self._finish, batch, begun, explained))
        else:
            explained(begun)

    def _finish(
        self, batch: Batch, pending: Pending, then: Callable[[Result], None], outcomes: Sequence[Outcome]
    ) -> None:
        try:
            ruling = self.enforcer.finish(pending, outcomes[0])
        except PenstockError as error:
            then(error)
            return
        if not pending.op.dry:
            batch.decided.append(ruling)
            if ruling.admission is not None:
                ruling.end()
        then(ruling)
