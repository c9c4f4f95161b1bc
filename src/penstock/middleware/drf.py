"""Django REST framework: a throttle, for views that are limited where the framework limits them.

    class Burst(RateLimitThrottle):
        options = {"limiter": Limiter(), "quota": "60/minute", "key": "user | ip"}

    REST_FRAMEWORK = {"DEFAULT_THROTTLE_CLASSES": ["shop.throttles.Burst"]}

A throttle runs when the client is authenticated, so the entry `user` is whom the framework knows. It does not see how a
request ends: quotas with places, `charge` and `settle` need the middleware or the decorator of
`penstock.middleware.django`. What clients are told of a refusal is the framework's own; where not a quota refused but a
rule that denies, or nobody could decide, the status is 403 or 503.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from rest_framework.exceptions import APIException
from rest_framework.request import Request as RestRequest
from rest_framework.throttling import BaseThrottle

from penstock.errors import InvalidOption
from penstock.middleware.django import DjangoRequest
from penstock.middleware.gate import GateOptions
from penstock.middleware.passage import BlockingGate

TOO_MANY = 429


class RestRequestRead(DjangoRequest):
    """What the framework tells of a request; all but the user is Django's."""

    __slots__ = ("_rest",)

    def __init__(self, rest: RestRequest, entries: Mapping[str, Any]) -> None:
        super().__init__(rest._request, entries)
        self._rest = rest

    def user(self) -> Any:
        user = self._rest.user
        return str(user.pk) if user is not None and user.is_authenticated else None


class ThrottleRefusal(APIException):  # type: ignore[misc]
    """A refusal that is not "too many requests"."""

    def __init__(self, status: int, detail: str, wait: int) -> None:
        self.status_code = status
        self.wait = wait  # what the framework makes Retry-After of
        super().__init__(detail)


class RateLimitThrottle(BaseThrottle):  # type: ignore[misc]
    """A throttle whose subclasses say `options`. Their counters are told apart by the names of the classes."""

    options: ClassVar[GateOptions]
    _gate: ClassVar[BlockingGate]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        options = cast("dict[str, Any]", getattr(cls, "options", {}))
        if late := {"charge", "settle", "renew"} & options.keys():
            raise InvalidOption(f"{late.pop()}: a throttle does not see the end of a request (expected a middleware)")
        named = {} if "enforcer" in options else {"name": f"{cls.__module__}.{cls.__qualname__}"}
        cls._gate = BlockingGate(cast("GateOptions", named | options))
        if "quota" in options and cls._gate.limiter.operations.has_places(options["quota"]):
            raise InvalidOption(
                "quota with places: a throttle does not see the end of a request (expected a middleware)"
            )

    def allow_request(self, request: RestRequest, view: Any) -> bool:
        passage = self._gate.enter(RestRequestRead(request, self._gate.entries))
        self._wait = 0
        if passage is None:
            return True
        if passage:
            passage.leave(200)  # what rules have it hold, it cannot hold any longer
            return True
        status, headers, body = passage.refusal()
        self._wait = int(dict(headers)["Retry-After"])
        if status != TOO_MANY:
            raise ThrottleRefusal(status, json.loads(body)["detail"], self._wait)
        return False

    def wait(self) -> int:
        return self._wait
