"""Django REST framework: a throttle, for views that are limited where the framework limits them.

    class Burst(RateLimitThrottle):
        options = {"limiter": Limiter(), "quota": "60/minute", "key": "user | ip"}

    REST_FRAMEWORK = {"DEFAULT_THROTTLE_CLASSES": ["shop.throttles.Burst"]}

A throttle runs after authentication, so the entry `user` is the authenticated one. It does not see the end of a
request: quotas with places, `charge` and `settle` need the middleware or the decorator of `penstock.middleware.django`.
The response to a refusal is the framework's own; its status is 403 if a rule denies the request, and 503 if the store
cannot answer.
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
    """A request of the framework: all but the user comes from Django's."""

    __slots__ = ("_rest",)

    def __init__(self, rest: RestRequest, entries: Mapping[str, Any]) -> None:
        super().__init__(rest._request, entries)
        self._rest = rest

    def user(self) -> Any:
        user = self._rest.user
        return str(user.pk) if user is not None and user.is_authenticated else None


class ThrottleRefusal(APIException):  # type: ignore[misc]
    """A refusal with another status than 429."""

    def __init__(self, status: int, detail: str, wait: int) -> None:
        self.status_code = status
        self.wait = wait  # the framework makes Retry-After of it
        super().__init__(detail)


class RateLimitThrottle(BaseThrottle):  # type: ignore[misc]
    """A throttle whose subclasses set `options`. The names of the classes tell their counters apart."""

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
            passage.leave(200)  # places of rules cannot be held any longer
            return True
        status, headers, body = passage.refusal()
        self._wait = int(dict(headers)["Retry-After"])
        if status != TOO_MANY:
            raise ThrottleRefusal(status, json.loads(body)["detail"], self._wait)
        return False

    def wait(self) -> int:
        return self._wait
