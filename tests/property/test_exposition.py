"""Whatever was counted, by however many workers, a scrape says it in both formats, and nothing else."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.observability import exposition
from penstock.observability.series import BATCH, FAULTS, SHED_LEVEL
from penstock.observability.tally import Snapshot, Tally
from tests.unit.observability.support import Samples

words = st.sampled_from(["", "\\", '"', "a\nb", "{}", ",", "\\n", "é ∕"]) | st.text('\\"\n{}=, a', max_size=4)
counts = st.lists(st.integers(0, 1_000), max_size=3)
workers = st.lists(st.tuples(st.lists(words, max_size=3), counts, st.integers(0, 9)), max_size=3)


@given(workers, st.booleans())
def test_exposed_figures_equal_the_counts(told: list[tuple[list[str], list[int], int]], openmetrics: bool) -> None:
    snapshots: list[Snapshot] = []
    for number, (faults, batches, level) in enumerate(told):
        tally = Tally()
        for what in faults:
            tally.add(FAULTS, FAULTS.labelled(what))
        sizes = tally.histogram(BATCH)
        for size in batches:
            sizes.observe(size)
        snapshots.append(tally.snapshot(str(number), {SHED_LEVEL.name: {"": level}}))
    seen = Samples(exposition.text(snapshots, openmetrics=openmetrics), openmetrics=openmetrics)
    counted = Counter(what for faults, _, _ in told for what in faults)
    assert {what: seen.of(FAULTS.name, what=what) for what in counted} == counted
    assert seen.total(FAULTS.name) == counted.total()
    assert seen.of(SHED_LEVEL.name) == max((level for _, _, level in told), default=None)
    sizes_seen = [size for _, batches, _ in told for size in batches]
    if told:
        assert seen.of(f"{BATCH.name}_sum") == sum(sizes_seen)
        for bound in BATCH.bounds:
            within = sum(size <= bound for size in sizes_seen)
            assert seen.of(f"{BATCH.name}_bucket", le=str(float(bound))) == within
        assert seen.of(f"{BATCH.name}_bucket", le="+Inf") == len(sizes_seen) == seen.of(f"{BATCH.name}_count")
