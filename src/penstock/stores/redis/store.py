"""The Redis store: counters that every server of a fleet shares. One script call decides a whole batch.

`RedisStore` is for blocking callers, `AsyncRedisStore` for asyncio. Both plan, send and read alike; see `talk`, `link`
and `async_link`. Neither raises for what goes wrong on the way: the outcome of an operation is then a `Failed`, which
says whether it may have been charged all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from penstock.clock import Clock, Micros
from penstock.model import Failed, Key, Op, Outcome, check_key
from penstock.quota import Quota
from penstock.stores.redis.async_link import AsyncLink
from penstock.stores.redis.dialing import check
from penstock.stores.redis.link import Link, NoAnswer
from penstock.stores.redis.settings import Settings, read_client, read_url
from penstock.stores.redis.talk import MAX_OPS, PORTION, Question, Talk, batches

if TYPE_CHECKING:
    import redis


class OnServer:
    """What both stores have: how to reach a server, how to talk to it, and the names of what is there."""

    def __init__(self, url: str, *, clock: Clock | None = None, **options: Any) -> None:
        self._begin(read_url(url, **options), clock)

    @classmethod
    def from_client(
        cls, client: redis.Redis | redis.asyncio.Redis, *, clock: Clock | None = None, **options: Any
    ) -> Self:
        """A store on the server of an existing client, with its address, credentials and TLS."""
        store = cls.__new__(cls)
        store._begin(read_client(client, **options), clock)
        return store

    def _begin(self, settings: Settings, clock: Clock | None) -> None:
        check(settings)
        self.settings = settings
        self.talk = Talk(settings, clock)

    def where(self, key: Key, quota: str | Quota) -> list[str]:
        """The names under which the counters of `key` are stored, for whoever looks into the database."""
        keys, subject = self.settings.keys, self.settings.keys.subject(check_key(key))
        quotas = (quota,) if isinstance(quota, Quota) else Quota.parse_all(quota)
        return [keys.counter(subject, keys.family(part)).decode() for whole in quotas for part in whole.parts]


class RedisStore(OnServer):
    """Counters in one Redis or Valkey, for blocking callers.

    - `deadline`: seconds within which a decision is made, or known to have failed; 0.05.
    - `connections`: how many may be open at once; 32.
    - `secret`: what identities are hashed with before they leave the process; the same on every server.
    - `namespace`: keeps applications apart that share a server and a secret.
    - `prefix`: what every key begins with.
    - `clock`: for tests; the script goes by it instead of the server's time.
    """

    def _begin(self, settings: Settings, clock: Clock | None) -> None:
        super()._begin(settings, clock)
        self._link = Link(settings, self.talk)

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        within = self.settings.deadline_us if deadline is None else deadline
        outcomes: list[Outcome] = []
        for batch in batches(ops):
            outcomes += self.talk.in_vain(batch, outcomes) or self._run(batch, within)
        return outcomes

    def _run(self, ops: Sequence[Op], deadline: Micros, now: Micros | None = None) -> list[Outcome]:
        question = self.talk.ask(ops, now)
        try:
            reply = self._link.call(question.packed, deadline)
        except NoAnswer as no_answer:
            return [no_answer.failed] * len(ops)
        outcomes, stale, at = self.talk.read(question, reply)
        if stale and now is None:  # our clock and the server's differ: plan again by the server's
            for position, outcome in zip(stale, self._run([ops[p] for p in stale], deadline, at), strict=True):
                outcomes[position] = outcome
        return outcomes

    def close(self) -> None:
        self._link.close()


class Asked:
    """What was asked in one turn of an event loop, with one deadline: it becomes one script call."""

    __slots__ = ("askers", "ops")

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.askers: list[tuple[asyncio.Future[list[Outcome]], int, int]] = []  # whose are the ops from, to

    def add(self, ops: Sequence[Op], asker: asyncio.Future[list[Outcome]]) -> None:
        first = len(self.ops)
        self.ops += ops
        self.askers.append((asker, first, len(self.ops)))

    def tell(self, outcomes: list[Outcome]) -> None:
        for asker, first, last in self.askers:
            if not asker.done():
                asker.set_result(outcomes[first:last])

    def without_those_who_left(self) -> Asked:
        """The same without callers that were cancelled before anything was sent."""
        if not any([asker.done() for asker, _, _ in self.askers]):  # noqa: C419  a generator costs more
            return self
        left = Asked()
        for asker, first, last in self.askers:
            if not asker.done():
                left.add(self.ops[first:last], asker)
        return left


class LoopStore:
    """What belongs to one event loop: its link, and what has been asked in this turn of the loop."""

    def __init__(self, settings: Settings, talk: Talk) -> None:
        self._loop = asyncio.get_running_loop()
        self.talk = talk
        self.link = AsyncLink(settings, talk)
        self._asked: dict[Micros, Asked] = {}

    def ask(self, ops: Sequence[Op], deadline: Micros) -> asyncio.Future[list[Outcome]]:
        asker: asyncio.Future[list[Outcome]] = self._loop.create_future()
        asked = self._asked.get(deadline)
        if asked is None or len(asked.ops) + len(ops) > PORTION:
            if not self._asked:
                self._loop.call_soon(self._send_all)
            elif asked is not None:
                self._send(asked, deadline)
            asked = self._asked[deadline] = Asked()
        asked.add(ops, asker)
        return asker

    def _send_all(self) -> None:
        asked, self._asked = self._asked, {}
        for deadline, together in asked.items():
            self._send(together, deadline)

    def _send(self, asked: Asked, deadline: Micros) -> None:
        asked = asked.without_those_who_left()
        if not asked.ops:
            return
        try:
            question = self.talk.ask(asked.ops)
        except Exception as error:  # one caller's nonsense must not leave the others without an answer
            self._send_each(asked, deadline, error)
        else:
            self._put(asked, question, deadline)

    def _send_each(self, asked: Asked, deadline: Micros, error: Exception) -> None:
        """One by one what could not be asked together; who is to blame is told."""
        if len(asked.askers) == 1:
            asked.askers[0][0].set_exception(error)
            return
        for asker, first, last in asked.askers:
            alone = Asked()
            alone.add(asked.ops[first:last], asker)
            self._send(alone, deadline)

    def _put(self, asked: Asked, question: Question, deadline: Micros) -> None:
        def heard(answer: Any) -> None:
            outcomes, stale, now = self._read(question, answer)
            if stale:  # our clock and the server's differ: plan those again by the server's
                self._ask_again(asked, outcomes, stale, now, deadline)
            else:
                asked.tell(outcomes)

        self.link.ask(question.packed, deadline, heard)

    def _ask_again(
        self, asked: Asked, outcomes: list[Outcome], stale: list[int], now: Micros, deadline: Micros
    ) -> None:
        question = self.talk.ask([asked.ops[position] for position in stale], now)

        def heard(answer: Any) -> None:
            for position, outcome in zip(stale, self._read(question, answer)[0], strict=True):
                outcomes[position] = outcome
            asked.tell(outcomes)

        self.link.ask(question.packed, deadline, heard)

    def _read(self, question: Question, answer: Any) -> tuple[list[Outcome], list[int], Micros]:
        if isinstance(answer, Failed):
            return [answer] * len(question.ops), [], 0
        return self.talk.read(question, answer)


async def _ask_in_portions(here: LoopStore, ops: Sequence[Op], deadline: Micros) -> list[Outcome]:
    """A long batch in calls that follow one another, each with a deadline of its own."""
    outcomes: list[Outcome] = []
    for batch in batches(ops):
        outcomes += here.talk.in_vain(batch, outcomes) or await here.ask(batch, deadline)
    return outcomes


class AsyncRedisStore(OnServer):
    """Counters in one Redis or Valkey, for asyncio. Options as `RedisStore`.

    Everything that is asked in one turn of an event loop goes out as one script call. Each loop has a connection.
    """

    def _begin(self, settings: Settings, clock: Clock | None) -> None:
        super()._begin(settings, clock)
        self._loops: dict[asyncio.AbstractEventLoop, LoopStore] = {}
        self._closed = False

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> Awaitable[list[Outcome]]:
        within = self.settings.deadline_us if deadline is None else deadline
        here = self._here()
        return here.ask(ops, within) if 0 < len(ops) <= MAX_OPS else _ask_in_portions(here, ops, within)

    def _here(self) -> LoopStore:
        loop = asyncio.get_running_loop()
        here = self._loops.get(loop)
        if here is None:
            self._forget_ended()
            here = self._loops[loop] = LoopStore(self.settings, self.talk)
            if self._closed:
                here.link.shut()
        return here

    def _forget_ended(self) -> None:
        for loop in list(self._loops):
            if loop.is_closed():
                self._loops.pop(loop, None)

    async def close(self) -> None:
        """Close the connections of all event loops; those of this one are closed when it returns."""
        self._closed = True
        self._forget_ended()
        here = self._loops.get(asyncio.get_running_loop())
        for loop, elsewhere in list(self._loops.items()):
            if elsewhere is not here:
                with suppress(RuntimeError):  # it has ended since we looked
                    loop.call_soon_threadsafe(elsewhere.link.shut)
        if here is not None:
            await here.link.close()
