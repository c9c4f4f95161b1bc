"""The decision API on a real server: over memory, or over a Redis that several servers share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock import AsyncLimiter, Limiter
from penstock.clock import SECOND
from penstock.enforcer import AsyncEnforcer, Enforcer
from penstock.engine.protocols import Unobserved
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet
from penstock.service.api import Api
from penstock.service.auth import Guarded
from penstock.service.decisions import Decider
from penstock.service.wire.calls import Handler
from penstock.stores.redis.store import AsyncRedisStore
from tests.integration.redis_support import PATIENT
from tests.rig.fixtures import Keyspace
from tests.service.harness import Running, serving

SECRET = b"a secret that all share"
RULES = """
rules:
  - {id: orders, match: {path: {prefix: /orders}}, key: user, quota: 3/day name orders}
  - {id: banned, match: {path: /banned}, action: deny}
  - {id: reports, match: {path: /reports}, key: user, quota: 2 concurrent ttl 300s}
  - {id: chat, match: {path: /chat}, key: user, quota: 1000/day}
  - {id: pages, match: {path: {prefix: /pages}}, key: ip, quota: 2/day name pages}
"""


@contextmanager
def over_memory(rules: str = RULES, *, tokens: tuple[str, ...] = ()) -> Iterator[Running]:
    """A server whose counters are its own."""
    decider = Decider(Enforcer(RuleSet(parse(rules)), Limiter()), Unobserved())
    api: Handler = Api(decider, SECRET)
    with serving(Guarded(api, tokens) if tokens else api) as running:
        yield running


@contextmanager
def over_redis(keyspace: Keyspace, rules: str = RULES, *, secret: bytes = SECRET) -> Iterator[Running]:
    """A server that shares its counters with others on the same keys."""
    store = AsyncRedisStore(keyspace.server.url, prefix=keyspace.prefix, **PATIENT)
    limiter = AsyncLimiter(store)
    enforcer = AsyncEnforcer(RuleSet(parse(rules)), limiter)
    decider = Decider(enforcer, Unobserved(), budget=30 * SECOND)
    with serving(Api(decider, secret)) as running:
        try:
            yield running
        finally:
            running.call(limiter.close())
            running.call(store.close())
