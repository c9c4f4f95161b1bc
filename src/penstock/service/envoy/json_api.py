"""What envoyproxy/ratelimit answers over HTTP: `POST /json`, the same request in JSON, and `GET /healthcheck`.

Statuses of `/json` are its own: 200 within the limit, 429 over it, 400 for an invalid body. Where it answers
400 because its Redis could not answer, the answer here is 503, so that an outage does not look like a caller's error.
"""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf import json_format

from penstock.service.envoy.by_config import UnaryCall
from penstock.service.envoy.protocol import RateLimitRequest, RateLimitResponse
from penstock.service.grpc import Status
from penstock.service.wire.calls import Call, Head

JSON, TEXT = (b"content-type", b"application/json"), (b"content-type", b"text/plain")
JSON_PATH, HEALTHCHECK = b"/json", b"/healthcheck"
MAX_NESTING = 16

WITHIN, OVER = Head(200, [JSON]), Head(429, [JSON])
BAD = Head(400, [TEXT])
FAILED = {int(Status.UNAVAILABLE): Head(503, [TEXT]), int(Status.INVALID_ARGUMENT): BAD}
FAULT = Head(500, [TEXT])
NOT_ALLOWED = Head(405, [TEXT, (b"allow", b"POST")])
HEALTHY, UNHEALTHY = Head(200, [TEXT]), Head(500, [TEXT])


class _JsonCall:
    """A call of `/json`, as a call of the method."""

    __slots__ = ("_call", "data")

    def __init__(self, call: Call, data: bytes) -> None:
        self._call, self.data = call, data

    @property
    def expires(self) -> float | None:
        return self._call.expires

    def answer(self, data: bytes) -> None:
        response = RateLimitResponse.FromString(data)
        body = json_format.MessageToJson(response, indent=None).encode()
        extra = [(header.key.encode(), header.value.encode()) for header in response.response_headers_to_add]
        self._call.answer(OVER if response.overall_code == RateLimitResponse.OVER_LIMIT else WITHIN, body, extra)

    def fail(self, status: int, text: str = "") -> None:
        self._call.answer(FAILED.get(int(status), FAULT), text.encode())


class JsonMethod:
    """The handler of `/json`, over the method of gRPC."""

    def __init__(self, ask: Callable[[list[UnaryCall]], None]) -> None:
        self._ask = ask

    def handle(self, calls: list[Call]) -> None:
        questions: list[UnaryCall] = []
        for call in calls:
            if call.method != b"POST":
                call.answer(NOT_ALLOWED, b"expected POST")
                continue
            try:
                message = json_format.Parse(call.body, RateLimitRequest(), max_recursion_depth=MAX_NESTING)
                questions.append(_JsonCall(call, message.SerializeToString()))
            except (json_format.ParseError, UnicodeDecodeError, RecursionError):
                call.answer(BAD, b"expected a RateLimitRequest in JSON")
        if questions:
            self._ask(questions)


class HealthPage:
    """The handler of `/healthcheck`."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready

    def handle(self, calls: list[Call]) -> None:
        ready = self._ready()
        for call in calls:
            call.answer(HEALTHY if ready else UNHEALTHY, b"OK" if ready else b"")
