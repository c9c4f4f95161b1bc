"""What workers write to the directory they share, and what becomes of it when they are gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.observability import shared as module
from penstock.observability.series import BATCH, DECISIONS, WORKERS
from penstock.observability.shared import Shared, prepare
from penstock.observability.tally import Snapshot

ALLOWED = '{rule="a"}'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return prepare(tmp_path / "shared")


Join = Callable[[str], Shared]


@pytest.fixture
def join(directory: Path) -> Iterator[Join]:
    """Workers that join the directory; they leave it at the end of a test."""
    joined: list[Shared] = []

    def join(worker: str) -> Shared:
        joined.append(Shared(directory, worker))
        return joined[-1]

    yield join
    for shared in joined:
        shared.close()


def figures(worker: str, count: float) -> Snapshot:
    totals, now = {DECISIONS.name: {ALLOWED: count}}, {WORKERS.name: {"": 1.0}}
    return Snapshot(worker, totals, now, {BATCH.name: {"": [int(count)] * (len(BATCH.bounds) + 2)}})


def counted(snapshots: list[Snapshot]) -> float:
    return sum(snapshot.totals.get(DECISIONS.name, {}).get(ALLOWED, 0) for snapshot in snapshots)


def alive(snapshots: list[Snapshot]) -> float:
    return sum(snapshot.now.get(WORKERS.name, {}).get("", 0) for snapshot in snapshots)


def test_each_worker_reads_the_figures_of_the_others(join: Join) -> None:
    workers = [join(str(n)) for n in range(3)]
    for n, worker in enumerate(workers):
        worker.write(figures(str(n), 10**n))
    assert [counted(worker.read()) for worker in workers] == [110, 101, 11]
    workers[1].write(figures("1", 20))
    assert counted(workers[0].read()) == 120


def test_counts_of_dead_workers_are_kept_and_their_gauges_are_not(join: Join, directory: Path) -> None:
    reader, dying = join("0"), join("1")
    dying.write(figures("1", 7))
    assert (counted(reader.read()), alive(reader.read())) == (7, 1)
    dying.close()
    for _ in range(3):
        assert (counted(reader.read()), alive(reader.read())) == (7, 0)
    assert reader.read()[0].histograms[BATCH.name][""] == [7] * (len(BATCH.bounds) + 2)
    assert not list(directory.glob("1-*"))
    successor = join("1")
    successor.write(figures("1", 2))
    assert counted(reader.read()) == 9
    successor.close()
    assert counted(reader.read()) == 9


def test_a_crash_after_the_dead_were_added_counts_nothing_twice(join: Join, directory: Path) -> None:
    """A worker may end between adding the figures of a dead worker and removing their file."""
    reader, dying = join("0"), join("1")
    dying.write(figures("1", 7))
    dying.close()
    kept = [(file, file.read_bytes()) for file in directory.glob("1-*")]
    assert counted(reader.read()) == 7
    for file, content in kept:
        file.write_bytes(content)
    assert counted(join("2").read()) == 7
    another = join("3")  # whose death is the occasion to remove what was left
    another.write(figures("3", 1))
    another.close()
    assert counted(reader.read()) == 8
    assert not list(directory.glob("1-*"))


def test_damaged_files_are_left_out(join: Join, directory: Path) -> None:
    reader, writer = join("0"), join("1")
    writer.write(figures("1", 7))
    (file,) = directory.glob("1-*.figures")
    file.write_bytes(b"half of")
    assert counted(reader.read()) == 0
    writer.write(figures("1", 8))
    assert counted(reader.read()) == 8


def test_labels_of_the_dead_are_bounded(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that runs for years, with rules that come and go."""
    monkeypatch.setattr(module, "MOST", 3)
    reader = join("0")
    for n in range(10):
        worker = join("1")
        worker.write(Snapshot("1", {DECISIONS.name: {f'{{rule="r{n}"}}': 1}}))
        worker.close()
        reader.read()
    gone = reader.read()[0].totals[DECISIONS.name]
    assert sum(gone.values()) == 10
    assert gone[DECISIONS.overflow] == 7
    assert len(gone) == 4


def test_one_worker_leads_and_another_takes_over(join: Join) -> None:
    first, second = join("0"), join("1")
    assert [first.lead(), second.lead(), first.lead()] == [True, False, True]
    first.close()
    assert second.lead()


def test_files_of_an_earlier_service_are_removed(join: Join, directory: Path) -> None:
    worker = join("0")
    worker.write(figures("0", 7))
    worker.close()
    (directory / "README").write_text("not ours")
    prepare(directory)
    assert [file.name for file in directory.iterdir()] == ["README"]
    assert counted(join("1").read()) == 0


def test_writing_to_a_vanished_directory_is_an_error(join: Join, directory: Path) -> None:
    reader = join("0")
    shutil.rmtree(directory)
    with pytest.raises(OSError, match="No such file"):
        reader.write(figures("0", 1))
