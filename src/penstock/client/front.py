"""What both clients share: questions by rules, and what becomes of their answers. Nothing here waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from penstock.client.answers import Ruling, unanswered
from penstock.client.exchange import Guard, Heard, Lost, Question
from penstock.client.plan import body_of, check, explanation, problem, question, ruling, senseless
from penstock.clock import Micros
from penstock.errors import InvalidOption, InvalidRequest, shown
from penstock.events import Degraded, Hook, nobody, tell
from penstock.front import Id, check_id
from penstock.inspection import Explanation
from penstock.layers import DenyCache, Fallback, Layer
from penstock.model import Failed, check_units

Descriptor: TypeAlias = Mapping[str, object]
"""What is known of a request: names of entries, and their texts."""

Request: TypeAlias = Descriptor | tuple[Descriptor, int]
"""A descriptor, or (descriptor, cost)."""

WhenGone: TypeAlias = Literal["open", "closed", "raise"]
"""What happens when the service cannot be asked: everybody passes, nobody passes, an error is raised."""

BATCH = b"/v1/check/batch"

AT_ONCE = 500
"""How many requests are one question; a service takes a thousand."""

MAX_BODY = 524_288
"""Bytes of one question; a service takes twice as much."""


class Asked(NamedTuple):
    """Requests by rules that are one question, each with its cost."""

    question: Question
    costs: Sequence[int]
    remembered: bool = False


class RuleAsker:
    """How requests by rules are asked and answered."""

    def __init__(self, guard: Guard, on_failure: WhenGone, hook: Hook = nobody) -> None:
        if on_failure not in ("open", "closed", "raise"):
            raise InvalidOption(f"on_failure {shown(on_failure)}: expected open, closed or raise")
        self._guard, self._on_failure, self._hook = guard, on_failure, hook
        known = DenyCache()
        self.fallback = Fallback(on_failure, hosts=1, known=known, hook=hook)
        self.layers: tuple[Layer, ...] = (known, self.fallback)

    def check(self, path: bytes, descriptor: Descriptor, cost: int, request_id: Id | None = None) -> Asked:
        """One request; at `/v1/peek` it charges nothing."""
        known = None if request_id is None else check_id(request_id)
        asked = check(_checked(descriptor), check_units("cost", cost, least=0), known)
        dry = path == b"/v1/peek"
        if dry:
            del asked["receipt"]
        return Asked(question(path, asked, safe=dry or known is not None), (cost,), known is not None)

    def check_many(self, requests: Iterable[Request]) -> list[Asked]:
        """Many, in as few questions as a service takes."""
        pairs = [request if isinstance(request, tuple) else (request, 1) for request in requests]
        for position, pair in enumerate(pairs):
            if len(pair) != 2:
                raise InvalidRequest(f"request {position}: expected a descriptor, or (descriptor, cost)")
        checks = [check(_checked(one), check_units("cost", cost, least=0), None) for one, cost in pairs]
        each = [question(BATCH, one, safe=False) for one in checks]
        return [Asked(together(each[some]), [cost for _, cost in pairs[some]]) for some in portions(each)]

    def told(self, heard: Heard) -> Any:
        """What was said, or a `Failed`. What is the caller's fault is raised."""
        return self._guard.failed(heard) if isinstance(heard, Lost) else body_of(heard, self._guard.place)

    def told_each(self, heard: Heard, number: int) -> Sequence[Any]:
        """The same of each of so many requests that were asked as one."""
        told = self.told(heard)
        results = [told] * number if isinstance(told, Failed) else told.get("results", ())
        return results if len(results) == number else [senseless(self._guard.place)] * number

    def ruling(self, asked: Asked, told: Any, now: Micros) -> Ruling:
        """What became of one request."""
        return self._ruled(told, asked.costs[0], now, remembered=asked.remembered)

    def rulings(self, asked: Asked, heard: Heard, now: Micros) -> list[Ruling]:
        """What became of each request of a batch."""
        results = self.told_each(heard, len(asked.costs))
        return [self._ruled(one, cost, now) for one, cost in zip(results, asked.costs, strict=True)]

    def _ruled(self, told: Any, cost: int, now: Micros, *, remembered: bool = False) -> Ruling:
        if isinstance(told, dict) and "problem" in told:
            told = problem(told["problem"], int(told["problem"].get("status", 500)), self._guard.place)
        if not isinstance(told, Failed):
            try:
                return ruling(told, cost, now, remembered=remembered)
            except (KeyError, TypeError, ValueError):
                told = senseless(self._guard.place)
        if self._on_failure == "raise":
            raise told.error.to_raise(told.charged)
        why = str(told.error)
        tell(self._hook, Degraded(self._on_failure, 1, why))
        self.fallback.answered[self._on_failure] += 1
        self.fallback._log(1, why, now)
        return unanswered(cost, now, closed=self._on_failure == "closed")

    def explain(self, descriptor: Descriptor, cost: int) -> Question:
        asked = {"descriptor": dict(_checked(descriptor)), "cost": check_units("cost", cost, least=1)}
        return question(b"/v1/explain", asked, safe=True)

    def explanation(self, heard: Heard) -> Explanation:
        try:
            return explanation(self.answer(heard))
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InvalidRequest):
                raise
            raise senseless(self._guard.place).error from None

    def reset(self, descriptor: Descriptor) -> Question:
        return question(b"/v1/reset", {"descriptor": dict(_checked(descriptor))}, safe=True)

    def answer(self, heard: Heard) -> dict[str, Any]:
        """What was answered where nobody can stand in."""
        told = self.told(heard)
        if isinstance(told, Failed):
            raise told.error.to_raise(told.charged)
        answered: dict[str, Any] = told
        return answered


def portions(questions: Sequence[Question]) -> Iterator[slice]:
    """As many of them at a time as a service takes."""
    start = size = 0
    for position, one in enumerate(questions):
        length = len(one.body or b"")
        if position > start and (position - start >= AT_ONCE or size + length > MAX_BODY):
            yield slice(start, position)
            start, size = position, 0
        size += length
    if questions:
        yield slice(start, len(questions))


def together(questions: Sequence[Question]) -> Question:
    """Several checks as one question."""
    body = b",".join([one.body or b"" for one in questions])
    return Question(BATCH, b"[" + body + b"]", all(one.safe for one in questions))


def _checked(descriptor: Descriptor) -> Descriptor:
    if not isinstance(descriptor, Mapping):
        raise InvalidRequest(f"descriptor: expected a mapping of entries to texts, not {type(descriptor).__name__}")
    return descriptor
