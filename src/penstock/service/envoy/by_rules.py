"""`ShouldRateLimit` by Penstock's own rules: every descriptor of a request is checked as any other descriptor is.

The entries of a descriptor are its entries by their keys (of a key that comes twice, the first). `domain` is the
domain, and `entries` are the keys in their order, with commas between. So the rule

    - {id: per-address, match: {domain: edge}, key: remote_address, quota: 100/minute}

limits requests that Envoy describes by `remote_address: {}`. Each descriptor is decided for itself; the request is
refused if one of them is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

from penstock.clock import SECOND
from penstock.engine.batch import Batch, Gather
from penstock.errors import CostExceedsLimit, InvalidInput, InvalidRequest
from penstock.quota import MAX_LIMIT, Quota
from penstock.rules.ruling import Ruling
from penstock.service.decisions import Decider
from penstock.service.envoy import answers
from penstock.service.envoy.answers import OK, OVER_LIMIT
from penstock.service.envoy.by_config import MAX_PLANS, MAX_REMEMBERED, ROUTE, UnaryCall
from penstock.service.envoy.config import DOMAIN, ENTRIES, UNITS, UNITS_BY_NUMBER
from penstock.service.envoy.plans import PLAIN_OK, UNLIMITED_OK, read_request
from penstock.service.envoy.protocol import SHOULD_RATE_LIMIT
from penstock.service.grpc import Status

RETRY_AFTER = answers.header_name("retry-after")
REFUSED = answers.status(OVER_LIMIT, b"", 0, 0)
UNIT_NUMBERS = {unit.seconds * 1_000_000: unit.number for unit in UNITS_BY_NUMBER.values()}
MAX_REQUESTS = 2**32 - 1

_Described: TypeAlias = tuple[tuple[dict[str, str], int], ...]
"""The descriptors of a request as rules see them, and their costs."""


class ByRules:
    """The method, by the rules of a decider's enforcer."""

    path = SHOULD_RATE_LIMIT

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self._known: dict[bytes, _Described] = {}  # by the bytes of earlier requests

    def handle(self, messages: Sequence[UnaryCall]) -> None:
        batch = Batch(self._decider.engine, self._decider.observer)
        for message in messages:
            try:
                described = self._known.get(message.data) or self._described(message.data)
            except InvalidRequest as error:
                batch.statuses[ROUTE].append(Status.INVALID_ARGUMENT)
                message.fail(Status.INVALID_ARGUMENT, str(error))
            else:
                self._check(batch, message, described)
        batch.run()

    def _described(self, data: bytes) -> _Described:
        request = read_request(data)
        described = tuple(_descriptor(request, descriptor) for descriptor in request.descriptors)
        if len(data) <= MAX_REMEMBERED:
            if len(self._known) >= MAX_PLANS:
                self._known.clear()
            self._known[data] = described
        return described

    def _check(self, batch: Batch, message: UnaryCall, described: _Described) -> None:
        gather = Gather(len(described), partial(_answer, batch, message))
        for position, (descriptor, cost) in enumerate(described):
            then = partial(gather.put, position)
            try:
                known = self._decider.check(
                    batch, descriptor, max(cost, 1), dry=not cost, expires=message.expires, then=then
                )
            except InvalidInput as error:
                then(error)
            else:
                if known is not None:
                    then(known)


def _descriptor(request: Any, descriptor: Any) -> tuple[dict[str, str], int]:
    described = {entry.key: entry.value for entry in reversed(descriptor.entries)}
    described[DOMAIN] = request.domain
    described[ENTRIES] = ",".join([entry.key for entry in descriptor.entries])
    cost = descriptor.hits_addend.value if descriptor.HasField("hits_addend") else request.hits_addend or 1
    return described, min(cost, MAX_LIMIT + 1)  # more than any rule admits is refused, for an error would let it pass


def _answer(batch: Batch, message: UnaryCall, results: Sequence[Any]) -> None:
    """Answer a request by the rulings and errors of its descriptors."""
    refusals: list[Any] = []
    for result in results:
        if isinstance(result, Exception):
            if not isinstance(result, CostExceedsLimit):
                _fail(batch, message, result)
                return
            refusals.append(result)
        elif not result[0][0]:
            refusals.append(result)
    parts = [answers.OVERALL[OVER_LIMIT if refusals else OK], *map(_status, results)]
    if refusals:
        rulings = [one for one in refusals if isinstance(one, Ruling)]
        wait = max([answers.seconds(one.retry_after_us) for one in rulings], default=0)
        message_of_rule = next((one.message for one in rulings if one.message), None)
        parts += [answers.header(RETRY_AFTER, wait)] if wait else []
        parts += [answers.field(5, message_of_rule.encode())] if message_of_rule else []
    message.answer(b"".join(parts))
    batch.statuses[ROUTE].append(Status.OK)


def _fail(batch: Batch, message: UnaryCall, error: Exception) -> None:
    mistaken = isinstance(error, InvalidInput)
    status = Status.INVALID_ARGUMENT if mistaken else Status.UNAVAILABLE
    batch.statuses[ROUTE].append(status)
    message.fail(status, str(error) if mistaken else "the store could not answer")


def _status(result: Any) -> bytes:
    """Return the status of a descriptor: of the tightest rule whose headers are shown."""
    if not isinstance(result, Ruling):  # it costs more than a rule ever admits
        return REFUSED
    allowed, owners = result[0][0], result.plan[2]
    if not result[5] and len(owners) == 1 and not owners[0].hidden:
        shown: list[Any] = [result]  # a lone verdict is its own decision
    elif result.decisions:
        shown = [decision for decision in result.shown().decisions if not decision[5]]
    else:
        return UNLIMITED_OK if allowed and result.rule else PLAIN_OK if allowed else REFUSED
    if not shown:
        return PLAIN_OK if allowed else REFUSED
    tightest = min(shown, key=_tightness) if len(shown) > 1 else shown[0]
    limit = _current_limit(tightest[3], owners[0].id if len(owners) == 1 else result.rule)
    if allowed:
        _, remaining, _, reset_after, *_ = tightest[0]
        return answers.status(OK, limit, min(remaining, MAX_REQUESTS), -(-reset_after // SECOND))
    return answers.status(OVER_LIMIT, limit, 0, -(-result[0][2] // SECOND))


def _tightness(decision: Any) -> tuple[bool, float]:
    return decision[0][0], decision[0][1] / decision[3].capacity


@lru_cache(4_096)
def _current_limit(quota: Quota, rule: str) -> bytes:
    """Return the limit of a status, with the number of the unit that the quota's period is; 0 where it is none."""
    known = quota.calendar is not None
    unit = UNITS[quota.calendar.unit].number if known else UNIT_NUMBERS.get(quota.period_us, 0)  # type: ignore[union-attr]
    return answers.current_limit(min(quota.limit, MAX_REQUESTS), unit, rule)
