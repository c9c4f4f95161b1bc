"""`grpc.health.v1`: whether the service answers, for Envoy's and Kubernetes' gRPC probes.

This is `Check`, which both of them call; `Watch` is in `penstock.service.envoy.watching`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.service.envoy.limiting import Question
from penstock.service.envoy.protocol import HEALTH_CHECK, DecodeError, HealthCheckRequest
from penstock.service.grpc_framing import Status

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
NAMES = ("", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit")
"""What may be asked about: the server, the service by its name, and the name that envoyproxy/ratelimit goes by."""


class HealthCheck:
    """The method. `ready` says whether traffic should come here."""

    path = HEALTH_CHECK

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready

    def handle(self, messages: Sequence[Question]) -> None:
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
