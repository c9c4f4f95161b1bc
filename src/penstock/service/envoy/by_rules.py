"""`ShouldRateLimit` by Penstock's own rules: every descriptor of a request is checked as any other descriptor is.

The entries of a descriptor are its entries by their keys (of a key that comes twice, the first). `domain` is the
domain, and `entries` are the keys in their order, with commas between. So the rule

    - {id: per-address, match: {domain: edge}, key: remote_address, quota: 100/minute}

limits what Envoy describes by `remote_address: {}`. Each descriptor is decided for itself; the request is refused if
one of them is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.errors import CostExceedsLimit, InvalidInput, InvalidRequest
from penstock.quota import MAX_LIMIT, Quota
from penstock.rules.ruling import Ruling
from penstock.service.decisions import Batch, Decider, Result
from penstock.service.envoy import answers
from penstock.service.envoy.answers import OK, OVER_LIMIT
from penstock.service.envoy.by_config import ROUTE, Question
from penstock.service.envoy.config import DOMAIN, ENTRIES, UNITS, UNITS_BY_NUMBER
from penstock.service.envoy.plans import PLAIN_OK, UNLIMITED_OK, read_request
from penstock.service.envoy.protocol import SHOULD_RATE_LIMIT
from penstock.service.grpc import Status

log = logging.getLogger("penstock.service")

RETRY_AFTER = answers.header_name("retry-after")
REFUSED = answers.status(OVER_LIMIT, b"", 0, 0)
UNIT_NUMBERS = {unit.seconds * 1_000_000: unit.number for unit in UNITS_BY_NUMBER.values()}
MAX_REQUESTS = 2**32 - 1


class _Request:
    """A request, and what has become of its descriptors so far."""

    def __init__(self, batch: Batch, question: Question, descriptors: int) -> None:
        self._batch, self._question = batch, question
        self._missing = descriptors
        self._results: list[Any] = [None] * descriptors

    def decided(self, position: int, result: Result) -> None:
        self._results[position] = result
        self._missing -= 1
        if not self._missing:
            self._answer()

    def _answer(self) -> None:
        errors = [one for one in self._results if isinstance(one, Exception) and not isinstance(one, CostExceedsLimit)]
        if errors:
            mistaken = isinstance(errors[0], InvalidInput)
            status = Status.INVALID_ARGUMENT if mistaken else Status.UNAVAILABLE
            self._batch.answered(ROUTE, status)
            self._question.fail(status, str(errors[0]) if mistaken else "the store could not answer")
            return
        refusals = [one for one in self._results if not isinstance(one, Ruling) or not one]
        parts = [answers.OVERALL[OVER_LIMIT if refusals else OK], *map(_status, self._results)]
        if refusals:
            rulings = [one for one in refusals if isinstance(one, Ruling)]
            wait = max([answers.seconds(one.retry_after_us) for one in rulings], default=0)
            message = next((one.message for one in rulings if one.message), None)
            parts += [answers.header(RETRY_AFTER, wait)] if wait else []
            parts += [answers.field(5, message.encode())] if message else []
        self._batch.answered(ROUTE, Status.OK)
        self._question.answer(b"".join(parts))


class ByRules:
    """The method, by the rules of a decider's enforcer."""

    path = SHOULD_RATE_LIMIT

    def __init__(self, decider: Decider) -> None:
        self._decider = decider

    def handle(self, messages: Sequence[Question]) -> None:
        batch = self._decider.batch()
        for message in messages:
            try:
                self._ask(batch, message)
            except InvalidRequest as error:
                batch.answered(ROUTE, Status.INVALID_ARGUMENT)
                message.fail(Status.INVALID_ARGUMENT, str(error))
        batch.run()

    def _ask(self, batch: Batch, message: Question) -> None:
        request = read_request(message.data)
        waiting = _Request(batch, message, len(request.descriptors))
        for position, descriptor in enumerate(request.descriptors):
            described = {entry.key: entry.value for entry in reversed(descriptor.entries)}
            described[DOMAIN] = request.domain
            described[ENTRIES] = ",".join([entry.key for entry in descriptor.entries])
            cost = descriptor.hits_addend.value if descriptor.HasField("hits_addend") else request.hits_addend or 1
            cost = min(cost, MAX_LIMIT + 1)  # more than any rule admits is refused, for an error would let it pass
            then = partial(waiting.decided, position)
            try:
                known = self._decider.check(
                    batch, described, max(cost, 1), dry=not cost, expires=message.expires, then=then
                )
            except InvalidInput as error:
                then(error)
            else:
                if known is not None:
                    then(known)


def _status(result: Result) -> bytes:
    """The status of a descriptor: of the tightest rule whose headers are shown."""
    if not isinstance(result, Ruling):  # it costs more than a rule ever admits
        return REFUSED
    if not result.decisions:
        return UNLIMITED_OK if result and result.rule else PLAIN_OK if result else REFUSED
    shown = [decision for decision in result.shown().decisions if not decision.advisory]
    if not shown:
        return PLAIN_OK if result else REFUSED
    tightest = min(shown, key=lambda decision: (decision.allowed, decision.remaining / decision.quota.capacity))
    current = answers.current_limit(min(tightest.limit, MAX_REQUESTS), _unit(tightest.quota), result.rule)
    if result:
        seconds = answers.seconds(tightest.reset_after_us)
        return answers.status(OK, current, min(tightest.remaining, MAX_REQUESTS), seconds)
    return answers.status(OVER_LIMIT, current, 0, answers.seconds(result.retry_after_us))


def _unit(quota: Quota) -> int:
    """The number of the unit that a quota's period is; 0 where it is none."""
    if quota.calendar is not None:
        return UNITS[quota.calendar.unit].number
    return UNIT_NUMBERS.get(quota.period_us, 0)
