"""Api: the handler of every path under `/v1/`. Whatever a batch of calls wants of the store is one run."""

from __future__ import annotations

import logging
from traceback import format_tb

from msgspec import DecodeError

from penstock.errors import PenstockError
from penstock.headers import HeaderWriter
from penstock.limiter import AsyncLimiter, Limiter
from penstock.service.api.endpoints import Endpoint, Endpoints, Reply
from penstock.service.api.problems import TYPE, Unacceptable, answer_of
from penstock.service.api.verdicts import Verdicts
from penstock.service.deciding import Batch, Decider
from penstock.service.observing import Observer
from penstock.service.running import Runner
from penstock.service.tokens import Tokens
from penstock.service.wire.calls import Call, Head

log = logging.getLogger("penstock.service")

JSON = Head(200, [(b"content-type", b"application/json")])
POST_ONLY = Head(405, [TYPE, (b"allow", b"POST")])


class Api:
    """Answers calls of the decision API.

    - `decider`: for requests that rules decide on; `limiter`: for those that name a quota, on the same store.
    - `secret`: what receipts are sealed with; all servers of a fleet share it.
    - `writer`: writes the headers that verdicts carry.
    """

    def __init__(
        self,
        decider: Decider,
        limiter: Limiter | AsyncLimiter,
        runner: Runner,
        observer: Observer,
        secret: bytes,
        *,
        writer: HeaderWriter | None = None,
    ) -> None:
        self._runner, self._observer = runner, observer
        tokens = Tokens(secret)
        verdicts = Verdicts(writer or HeaderWriter(), tokens)
        self._endpoints = {
            path: (endpoint, path.decode())
            for path, endpoint in Endpoints(decider, limiter, tokens, verdicts).by_path.items()
        }

    def handle(self, calls: list[Call]) -> None:
        batch = Batch(self._runner, self._observer)
        endpoints = self._endpoints
        for call in calls:
            found = endpoints.get(call.path)
            if found is not None and call.method == b"POST":
                endpoint, route = found
                self._take(call, endpoint, _Answer(call, batch, route), batch)
            elif found is not None:
                _, route = found
                _refuse(call, batch, route, _wrong_method(call))
            else:
                _refuse(call, batch, "other", Unacceptable(404, "not_found", "no such path: see /v1/openapi.json"))
        batch.run()

    def _take(self, call: Call, endpoint: Endpoint, reply: _Answer, batch: Batch) -> None:
        try:
            endpoint(call.body, call.expires, batch, reply)
        except (DecodeError, PenstockError) as error:
            reply.fail(error)
        except Exception as error:
            where = "".join(format_tb(error.__traceback__))  # not what it says, which may quote a key
            log.error("%s: a fault of our own, %s:\n%s", reply.route, type(error).__name__, where)
            reply.fail(error)


class _Answer(Reply):
    """Tells a call what came of it."""

    __slots__ = ("_batch", "_call", "route")

    def __init__(self, call: Call, batch: Batch, route: str) -> None:
        self._call, self._batch, self.route = call, batch, route

    def tell(self, body: bytes) -> None:
        self._call.answer(JSON, body)
        self._batch.answered(self.route, 200)

    def fail(self, error: Exception) -> None:
        head, body = answer_of(error)
        self._call.answer(head, body)
        self._batch.answered(self.route, head.status)


def _wrong_method(call: Call) -> Unacceptable:
    return Unacceptable(405, "wrong_method", "method: expected POST")


def _refuse(call: Call, batch: Batch, route: str, error: Unacceptable) -> None:
    head, body = answer_of(error)
    call.answer(POST_ONLY if error.status == 405 else head, body)
    batch.answered(route, head.status)
