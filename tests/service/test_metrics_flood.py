"""Clients that send whatever they like cannot make the figures grow."""

from __future__ import annotations

from penstock import Limiter, Quota
from penstock.events import Decided
from penstock.observability.accuracy import MAX_KEYS, Sampler
from penstock.observability.metrics import MAX_ROUTES, MAX_RULES, Metrics
from penstock.observability.shared import MOST
from penstock.stores.memory.store import MemoryStore
from tests.unit.observability.support import Samples

KEYS = 100_000
QUOTA = Quota.parse("5/minute")


def test_a_hundred_thousand_keys_and_rules_make_a_bounded_number_of_series() -> None:
    metrics, limiter = Metrics(), Limiter(MemoryStore())
    sampler = Sampler(b"secret", complete=True, share=1)
    metrics.watch(sampler=sampler)
    for start in range(0, KEYS, 1_000):
        verdicts = limiter.acquire_many([(f"key-{n}", QUOTA) for n in range(start, start + 1_000)])
        metrics.decided(verdicts, 50)
        sampler.decided(verdicts, 50)
        metrics.answered(f"/route/{start}", [200], 5)
        for n in range(start, start + 1_000):
            metrics(Decided(f"rule-{n}", "allowed", "", (), 1, "store", "v", "gcra"))
    sampler.hear([sampler.publish()])
    sampler._judge(2**60)
    text = metrics.text()
    seen = Samples(text)
    assert b"key-" not in text
    assert seen.total("penstock_decisions_total") == 2 * KEYS
    assert len(seen.labels("penstock_decisions_total", "rule")) == MAX_RULES + 2  # and other, and none
    assert seen.total("penstock_decisions_total", rule="other") == KEYS - MAX_RULES
    assert len(seen.labels("penstock_requests_total", "route")) == MAX_ROUTES
    assert (seen.of("penstock_accuracy_keys") or 0) <= MAX_KEYS
    assert len(text) < 1_000_000
    assert len(seen.values) < MOST
    metrics.close()
