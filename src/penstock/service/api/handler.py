"""Api: the handler of every path under `/v1/`. The operations of a batch of calls go to the store together."""

from __future__ import annotations

from collections.abc import Collection

from penstock.engine.batch import Batch
from penstock.headers import HeaderWriter
from penstock.service.api import openapi
from penstock.service.api.authz import Authz, AuthzOptions
from penstock.service.api.endpoints import Endpoints, Responder
from penstock.service.api.problems import TYPE, Unacceptable, answer_of, note
from penstock.service.api.verdicts import Verdicts
from penstock.service.decisions import Decider
from penstock.service.receipts import Tokens
from penstock.service.wire.calls import Call, Head

JSON = Head(200, [(b"content-type", b"application/json")])
POST_ONLY = Head(405, [TYPE, (b"allow", b"POST")])
GET_ONLY = Head(405, [TYPE, (b"allow", b"GET, HEAD")])
NOT_FOUND, _NOT_FOUND = answer_of(Unacceptable(404, "not_found", "path: unknown (expected one of /v1/openapi.json)"))
_, _WRONG_METHOD = answer_of(Unacceptable(405, "wrong_method", "method: expected POST"))
_, _WRONG_METHOD_OF_A_DOCUMENT = answer_of(Unacceptable(405, "wrong_method", "method: expected GET or HEAD"))


class Api:
    """Answers calls of the decision API.

    - `decider`: decides by rules; requests that name a quota go to the limiter of its enforcer.
    - `secret`: the key that receipts are sealed with; all servers of a fleet share it.
    - `writer`: writes the headers that verdicts carry, and those of answers to proxies.
    - `authz`: how the requests of proxies are read.
    """

    def __init__(
        self,
        decider: Decider,
        secret: bytes,
        *,
        writer: HeaderWriter | None = None,
        authz: AuthzOptions | None = None,
    ) -> None:
        self._decider = decider
        tokens, writer = Tokens(secret), writer or HeaderWriter()
        verdicts = Verdicts(writer, tokens)
        self._authz = Authz(decider, writer, authz or AuthzOptions())
        self._endpoints = {
            path: (endpoint, path.decode()) for path, endpoint in Endpoints(decider, tokens, verdicts).by_path.items()
        }

    @property
    def paths(self) -> Collection[bytes]:
        """The paths of all endpoints that a POST calls."""
        return self._endpoints.keys()

    def handle(self, calls: list[Call]) -> None:
        batch = Batch(self._decider.engine, self._decider.observer)
        endpoints = self._endpoints
        for call in calls:
            found = endpoints.get(call.path)
            if found is not None and call.method == b"POST":
                endpoint, route = found
                reply = _CallResponder(call, batch, route)
                try:
                    endpoint(call.body, reply)
                except Exception as error:
                    note(route, error)
                    reply.fail(error)
            elif found is None and self._authz.knows(call.path):
                self._authz.take(call, batch)
            else:
                self._other(call, batch, None if found is None else found[1])
        batch.run()

    def _other(self, call: Call, batch: Batch, route: str | None) -> None:
        """Answer a call of an unknown path or a wrong method."""
        if route is not None:
            _answer(call, batch, route, POST_ONLY, _WRONG_METHOD)
        elif call.path == openapi.PATH and call.method in (b"GET", b"HEAD"):
            _answer(call, batch, "/v1/openapi.json", JSON, openapi.DOCUMENT)
        elif call.path == openapi.PATH:
            _answer(call, batch, "/v1/openapi.json", GET_ONLY, _WRONG_METHOD_OF_A_DOCUMENT)
        else:
            _answer(call, batch, "other", NOT_FOUND, _NOT_FOUND)


class _CallResponder(Responder):
    """Answers a call of a batch."""

    __slots__ = ("_call", "_route")

    def __init__(self, call: Call, batch: Batch, route: str) -> None:
        self.batch, self.expires = batch, call.expires
        self._call, self._route = call, route

    def tell(self, body: bytes) -> None:
        self._call.answer(JSON, body)
        self.batch.statuses[self._route].append(200)

    def fail(self, error: Exception) -> None:
        _answer(self._call, self.batch, self._route, *answer_of(error))


def _answer(call: Call, batch: Batch, route: str, head: Head, body: bytes) -> None:
    call.answer(head, body)
    batch.statuses[route].append(head.status)
