"""With and without the deny cache, every request of a history passes or is refused alike, and waits alike or less."""

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.clock import SECOND, ManualClock
from penstock.engine.engine import Engine
from penstock.layers.deny_cache import DenyCache
from penstock.model import Acquire, Amend, Ask, Op, Receipt, Reset, Verdict
from penstock.quota import Quota
from penstock.stores.memory.store import MemoryStore

QUOTAS = [
    Quota.parse(text)
    for text in (
        "3/second fixed_window",
        "4/2 seconds",
        "5/3 seconds rolling_window",
        "2/second gcra",
        "3/second token_bucket burst 5",
        "2/second queue 3",
        "3/2 seconds count denied",
        "2/second penalty 2s",
        "2 concurrent ttl 1s",
    )
]
STEPS = st.tuples(
    st.sampled_from(["acquire", "acquire", "acquire", "once", "refund", "reset", "dry"]),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, len(QUOTAS) - 1)), min_size=1, max_size=3, unique=True),
    st.integers(1, 3),
    st.sampled_from([0, 0, 1, SECOND // 7, SECOND // 2, SECOND - 1, SECOND, 3 * SECOND]),
)


DEARER_THAN_REFUSED = [("acquire", [("a", 0)], 1, 0)] * 4 + [
    ("acquire", [("a", 1), ("a", 3)], cost, 0) for cost in (3, 1, 2)
]
"""The last request costs more than the refused one before it, and its own tightest quota is another."""


@example(DEARER_THAN_REFUSED, 2)
@given(st.lists(STEPS, min_size=5, max_size=40), st.sampled_from([2, 10_000]))
def test_a_repeated_refusal_is_what_the_store_would_say(steps: list[tuple], max_keys: int) -> None:  # type: ignore[type-arg]
    clock = ManualClock()
    bare, below = MemoryStore(clock=clock), MemoryStore(clock=clock)
    cached = Engine(below, [DenyCache(max_keys)], clock)
    receipts: list[tuple[Receipt, Receipt]] = []
    for number, (kind, where, cost, wait) in enumerate(steps):
        clock.micros += wait
        asks = tuple(
            Ask(key, QUOTAS[quota], 1 if QUOTAS[quota].flat else min(cost, QUOTAS[quota].capacity))
            for key, quota in where
        )
        if kind == "reset":
            ops: tuple[Op, Op] = Reset(asks[0].key, asks[0].quota), Reset(asks[0].key, asks[0].quota)
        elif kind == "refund":
            if not receipts:
                continue
            one, other = receipts.pop()
            ops = Amend(one, "refund"), Amend(other, "refund")
        else:
            op = Acquire(asks, dry=kind == "dry", id=str(number % 3).encode() if kind == "once" else None)
            ops = op, op
        (expected,), (answer,) = bare.run(ops[:1]), cached.run(ops[1:])
        if isinstance(expected, Verdict):
            assert isinstance(answer, Verdict)
            assert bool(answer) == bool(expected)
            assert answer.retry_after_us <= expected.retry_after_us  # a dearer request is told a cheaper one's time
            if answer or (len({ask.cost for ask in asks}) == 1 and cost == 1):
                assert answer.retry_after_us == expected.retry_after_us
                assert (answer.key, answer.quota) == (expected.key, expected.quota)
            assert answer.cost == expected.cost
            if not answer:  # a dearer request is told of the quota that refused the cheaper one, which refuses it too
                assert (answer.key, answer.quota) in [
                    (d.key, d.quota) for d in expected.decisions if not d.allowed and not d.advisory
                ]
            assert [d.quota for d in answer.decisions] == [d.quota for d in expected.decisions]
            if expected.receipt is not None and answer.receipt is not None:
                receipts.append((expected.receipt, answer.receipt))
