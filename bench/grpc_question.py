"""The question that all servers of gRPC are asked: one descriptor, cost 1, written by hand as protobuf has it."""

from __future__ import annotations

from bench.grpc_servers import DOMAIN, KEY

PATH = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


QUESTION = _field(1, DOMAIN.encode()) + _field(2, _field(1, _field(1, KEY.encode()) + _field(2, b"somebody")))
BODY = b"\0" + len(QUESTION).to_bytes(4, "big") + QUESTION
