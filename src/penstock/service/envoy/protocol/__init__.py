"""Messages of the protocols, made of the descriptors that `tools/protocols.py` compiles from the `.proto` files here.

They keep the packages of the protocols, which make the paths of methods, but live in a pool of their own: an
application that has the full protocols loaded as well would otherwise see every name twice, which is an error.
"""

from __future__ import annotations

from base64 import b85decode
from typing import Any

from google.protobuf import duration_pb2, struct_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError as DecodeError
from google.protobuf.message_factory import GetMessageClass

from penstock.service.envoy.protocol import descriptors

_pool = DescriptorPool()
for _known in (duration_pb2, struct_pb2, wrappers_pb2):
    _pool.AddSerializedFile(_known.DESCRIPTOR.serialized_pb)
for _compiled in (descriptors.RLS, descriptors.HEALTH):
    _pool.AddSerializedFile(b85decode(_compiled))


def _message(name: str) -> Any:
    return GetMessageClass(_pool.FindMessageTypeByName(name))


RateLimitRequest = _message("envoy.service.ratelimit.v3.RateLimitRequest")
RateLimitResponse = _message("envoy.service.ratelimit.v3.RateLimitResponse")
HealthCheckRequest = _message("grpc.health.v1.HealthCheckRequest")
HealthCheckResponse = _message("grpc.health.v1.HealthCheckResponse")
Struct = _message("google.protobuf.Struct")

SHOULD_RATE_LIMIT = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
HEALTH_CHECK = b"/grpc.health.v1.Health/Check"
HEALTH_WATCH = b"/grpc.health.v1.Health/Watch"
