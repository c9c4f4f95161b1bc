"""`grpc.health.v1`: whether the service answers, for Envoy's and Kubernetes' gRPC probes.

This is `Check`, which both of them call; `Watch` is in `penstock.service.envoy.health`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.service.envoy.by_config import UnaryCall
from penstock.service.envoy.protocol import HEALTH_CHECK, DecodeError, HealthCheckRequest
from penstock.service.grpc import NOT_GRPC, TYPE, Status, UnreadableMessage, encoding_of, fail, pack, unpack
from penstock.service.wire.calls import Head, StreamingCall

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
NAMES = ("", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit")
"""The names with a health: the server, the service, and the name of envoyproxy/ratelimit."""


class HealthCheck:
    """The method. `ready` says whether traffic should come here."""

    path = HEALTH_CHECK

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready

    def handle(self, messages: Sequence[UnaryCall]) -> None:
        answer = SERVING if self._ready() else NOT_SERVING
        for message in messages:
            try:
                service = HealthCheckRequest.FromString(message.data).service
            except DecodeError:
                message.fail(Status.INVALID_ARGUMENT, "expected a HealthCheckRequest")
                continue
            if service in NAMES:
                message.answer(answer)
            else:
                message.fail(Status.NOT_FOUND, "unknown service")


# ---------------------------------------------------------------- watching


# `grpc.health.v1` Watch: the health of the service, sent at once and again when it changes.
#
# Clients that balance load themselves keep one such stream open. When the service drains, all watchers receive that and
# their streams end, because they would keep connections open.


SERVICE_UNKNOWN = b"\x08\x03"
MAX_WATCHERS = 4_096
"""Watchers stay as long as they like, so their number is bounded. Beyond it the method answers as if it were unknown:
any other error would mean that the service is not healthy, and a client that takes all places could cause it."""
MAX_QUESTION = 1_024
"""Bytes."""

_HEAD = Head(200, [TYPE])
_DRAINING = ((b"grpc-status", b"%d" % Status.UNAVAILABLE), (b"grpc-message", b"draining"))


class HealthWatch:
    """All watchers. `ready` returns whether traffic should come here; once false, it stays so."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self.ready = ready
        self.watchers: set[Watcher] = set()

    def open(self, exchange: StreamingCall) -> Watcher:
        """Begin to watch, on a stream."""
        watcher = Watcher(self, exchange)
        if len(self.watchers) >= MAX_WATCHERS:
            watcher.refuse(Status.UNIMPLEMENTED, "too many who watch")
        else:
            self.watchers.add(watcher)
        return watcher

    def tell(self) -> None:
        """Send the health to all watchers; to be called when it has changed."""
        for watcher in tuple(self.watchers):
            watcher.tell()


class Watcher:
    """One stream of health."""

    __slots__ = ("_exchange", "_known", "_over", "_question", "_watch")

    def __init__(self, watch: HealthWatch, exchange: StreamingCall) -> None:
        self._watch, self._exchange = watch, exchange
        self._question: bytes | None = b""  # as far as it has come; None once it is understood
        self._known = False  # whether it asks about a known name
        self._over = False

    def received(self, data: bytes) -> None:
        if self._question is None or self._over:
            return
        self._question += data
        if len(self._question) > MAX_QUESTION:
            self.refuse(Status.RESOURCE_EXHAUSTED, f"a question: expected at most {MAX_QUESTION} bytes")

    def ended(self) -> None:
        encoding = encoding_of(self._exchange.headers)
        if self._over or self._question is None:
            return
        if encoding is None or self._exchange.method != b"POST":
            self._exchange.answer(NOT_GRPC, b"expected a POST of application/grpc\n")
            self.lost()
            return
        try:
            self._known = HealthCheckRequest.FromString(unpack(self._question, encoding, MAX_QUESTION)).service in NAMES
        except UnreadableMessage as reason:
            self.refuse(reason.status, reason.text)
        except DecodeError:
            self.refuse(Status.INVALID_ARGUMENT, "expected a HealthCheckRequest")
        else:
            self._question = None
            self._exchange.start(_HEAD)
            if not self._known:
                self._exchange.send(pack(SERVICE_UNKNOWN))
            self.tell()

    def lost(self) -> None:
        self._over = True
        self._watch.watchers.discard(self)

    def refuse(self, status: Status, text: str) -> None:
        fail(self._exchange, status, text)
        self.lost()

    def tell(self) -> None:
        """How the service is now."""
        ready = self._watch.ready()
        if self._question is not None:
            if not ready:
                self.refuse(Status.UNAVAILABLE, "draining")
            return
        if self._known:
            self._exchange.send(pack(SERVING if ready else NOT_SERVING))
        if not ready:
            self._exchange.finish(_DRAINING)
            self.lost()
