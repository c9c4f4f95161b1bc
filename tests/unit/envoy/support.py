"""Requests and answers of the rate limit service, over a store in memory and a clock that is moved by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.clock import ManualClock
from penstock.limiter import Limiter
from penstock.service.envoy.by_config import ShouldRateLimit
from penstock.service.envoy.config import Config
from penstock.service.envoy.config_files import File, Options, read
from penstock.service.envoy.plans import Conduct
from penstock.service.envoy.protocol import RateLimitRequest, RateLimitResponse

OK, OVER = 1, 2


def request(domain: str, *descriptors: Any, hits: int = 0) -> bytes:
    """Descriptors are dicts of entries, or (dict, hits), or (dict, (requests, unit))."""
    message = RateLimitRequest(domain=domain, hits_addend=hits)
    for descriptor in descriptors:
        entries, more = descriptor if isinstance(descriptor, tuple) else (descriptor, None)
        one = message.descriptors.add()
        for key, value in entries.items():
            one.entries.add(key=key, value=value)
        if isinstance(more, int):
            one.hits_addend.value = more
        elif more is not None:
            one.limit.requests_per_unit, one.limit.unit = more
    data: bytes = message.SerializeToString()
    return data


class Asked:
    """A question that keeps what it was answered."""

    def __init__(self, data: bytes, expires: float | None = None) -> None:
        self.data = data
        self.expires = expires
        self.answers: list[bytes] = []
        self.failures: list[tuple[int, str]] = []

    def answer(self, data: bytes) -> None:
        self.answers.append(data)

    def fail(self, status: int, text: str = "") -> None:
        self.failures.append((int(status), text))

    @property
    def response(self) -> Any:
        (data,) = self.answers
        assert not self.failures
        response = RateLimitResponse.FromString(data)
        assert response.SerializeToString(deterministic=True) == data or len(response.dynamic_metadata.fields) > 0
        return response


class Bench:
    """A service with one configuration."""

    def __init__(self, text: str | Config, conduct: Conduct | None = None, options: Options | None = None) -> None:
        self.clock = ManualClock()
        self.limiter = Limiter(clock=self.clock)
        config = text if isinstance(text, Config) else self.config(text, options)
        self.source = SimpleNamespace(current=config)
        self.method = ShouldRateLimit(self.source, self.limiter.engine, conduct or Conduct())

    @staticmethod
    def config(text: str, options: Options | None = None) -> Config:
        return read([File("config.yaml", text.encode())], options or Options())

    def ask(self, *requests: bytes) -> list[Asked]:
        questions = [Asked(data) for data in requests]
        self.method.handle(questions)
        return questions

    def one(self, domain: str, *descriptors: Any, hits: int = 0) -> Any:
        (asked,) = self.ask(request(domain, *descriptors, hits=hits))
        return asked.response

    def codes(self, times: int, domain: str, *descriptors: Any, hits: int = 0) -> list[int]:
        return [self.one(domain, *descriptors, hits=hits).overall_code for _ in range(times)]
