"""Rules follow their file, and no state of the file takes the last good set away."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidOption, InvalidRules
from penstock.events import RulesLoaded, RulesRefused
from penstock.rules.model import RuleFile
from penstock.rules.ruleset import RuleSet
from penstock.rules.source import RuleSource

GOOD = "rules:\n  - {{id: {0}, key: ip, quota: 100/minute}}\n"
BAD = "rules:\n  - {id: first, key: ip, quota: 100/fortnight}\n"


class Bench:
    """A file, the source that follows it, and what its hook was told."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "penstock.yaml"
        self.clock = ManualClock()
        self.events: list[Any] = []
        self.write(GOOD.format("first"))
        self.source = RuleSource(self.path, lambda file: file, hook=self.events.append, clock=self.clock)
        self.events.clear()

    def write(self, text: str, *, modified: float | None = None) -> None:
        """Write in place, so that the time on the file is that of our clock."""
        self.path.write_text(text, encoding="utf-8")
        self.stamp(modified)

    def replace(self, text: str) -> None:
        """Write beside, and rename over it."""
        beside = self.path.with_suffix(".new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(self.path)
        self.stamp(None)

    def stamp(self, modified: float | None) -> None:
        at = self.clock.time_ns() if modified is None else round(modified * 1e9)
        os.utime(self.path, ns=(at, at))

    def look(self, times: int = 1) -> bool:
        """Look so often, a second apart; whether the last of them put another set in force."""
        changed = False
        for _ in range(times):
            self.clock.advance(1)
            changed = self.source.look(self.clock.micros)
        return changed

    @property
    def ids(self) -> list[str]:
        return [rule.id for rule in self.source.current.rules]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.source.close()


def test_a_file_that_stays_the_same_puts_nothing_else_in_force(bench: Bench) -> None:
    before = bench.source.in_force
    assert not bench.look(10)
    assert bench.source.in_force is before
    assert bench.events == []
    assert bench.source.age() == 10
    assert bench.source.stale() == 0


@pytest.mark.parametrize("way", ["write", "replace"])
def test_a_changed_file_is_followed_when_two_looks_agree(bench: Bench, way: str) -> None:
    before = bench.source.version
    getattr(bench, way)(GOOD.format("second"))
    assert not bench.look()
    assert bench.ids == ["first"]
    assert bench.look()
    assert bench.ids == ["second"]
    assert bench.source.version != before
    assert bench.events == [RulesLoaded("penstock.yaml", bench.source.version)]
    assert bench.source.age() == 0


def test_a_half_written_file_is_not_taken_for_a_whole_one(bench: Bench) -> None:
    whole = GOOD.format("second") + "  - {id: third, key: ip, quota: 10/minute}\n"
    bench.write(GOOD.format("second"))  # sound, but only half of what is meant
    bench.look()
    bench.write(whole)
    bench.look()
    assert bench.ids == ["first"]
    bench.look()
    assert bench.ids == ["second", "third"]


def test_half_of_a_line_keeps_the_last_good_set_until_the_rest_is_there(bench: Bench) -> None:
    bench.write("rules:\n  - {id: second, key: i")
    bench.look(5)
    assert bench.ids == ["first"]
    assert "not YAML" in str(bench.source.faults[0])
    bench.write(GOOD.format("second"))
    bench.look(2)
    assert bench.ids == ["second"]
    assert bench.source.faults == ()


def test_a_bad_file_keeps_the_last_good_set_and_is_reported_once(bench: Bench) -> None:
    before = bench.source.in_force
    bench.write(BAD)
    assert not bench.look(10)
    assert bench.source.in_force is before
    (event,) = bench.events
    assert isinstance(event, RulesRefused)
    assert (event.file, event.faults) == ("penstock.yaml", 1)
    assert event.version not in ("", before.version)
    assert "unknown unit 'fortnight'" in event.why
    assert [fault.line for fault in bench.source.faults] == [2]
    assert bench.source.stale() == 10


@pytest.mark.parametrize("text", ["", "rules: []\n", "# all gone\n"])
def test_an_empty_file_keeps_the_last_good_set(bench: Bench, text: str) -> None:
    bench.write(text)
    bench.look(3)
    assert bench.ids == ["first"]
    assert len(bench.source.faults) == 1


def test_a_file_with_empty_true_is_followed(bench: Bench) -> None:
    bench.write("empty: true\n")
    bench.look(2)
    assert bench.ids == []
    assert bench.source.faults == ()


def test_a_file_that_is_bad_and_then_as_before_is_no_change_but_clears_the_faults(bench: Bench) -> None:
    before = bench.source.in_force
    bench.write(BAD)
    bench.look(3)
    bench.write(GOOD.format("first"))
    assert not bench.look()
    assert bench.source.in_force is before
    assert bench.source.faults == ()
    assert bench.source.stale() == 0
    assert [type(event) for event in bench.events] == [RulesRefused, RulesLoaded]


def test_a_deleted_file_keeps_the_last_good_set_and_is_followed_when_it_returns(bench: Bench) -> None:
    bench.path.unlink()
    bench.look(3)
    assert bench.ids == ["first"]
    assert [str(fault) for fault in bench.source.faults] == [
        "penstock.yaml: cannot be read: No such file or directory (expected a file with rules)"
    ]
    assert len(bench.events) == 1
    bench.write(GOOD.format("second"))
    bench.look(2)
    assert bench.ids == ["second"]
    assert bench.source.faults == ()


def test_an_unreadable_file_keeps_the_last_good_set(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.write(GOOD.format("second"))
    bench.path.chmod(0)
    if os.access(bench.path, os.R_OK):  # root may read everything, so the refusal is simulated

        def refused(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", refused)
    bench.look(3)
    assert bench.ids == ["first"]
    assert "cannot be read: Permission denied" in str(bench.source.faults[0])


def test_a_folder_in_place_of_the_file_keeps_the_last_good_set(bench: Bench) -> None:
    bench.path.unlink()
    bench.path.mkdir()
    bench.look(2)
    assert bench.ids == ["first"]
    assert "Is a directory" in str(bench.source.faults[0])


def test_a_change_that_leaves_time_and_size_as_they_were_is_seen_while_the_file_is_young(bench: Bench) -> None:
    modified = bench.clock.micros / 1e6
    bench.write(GOOD.format("other"), modified=modified)  # as long as "first", the same inode, the same time
    bench.look(2)
    assert bench.ids == ["other"]


def test_an_old_file_is_not_read_again_while_its_stamp_is_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.look(3)  # old enough by now that every later write would change the stamp

    def opened(*_: object) -> None:
        raise AssertionError("it was read again")

    monkeypatch.setattr(Path, "open", opened)
    bench.look(3)
    assert bench.source.faults == ()


def test_a_touched_file_is_no_change(bench: Bench) -> None:
    before = bench.source.in_force
    bench.look(5)
    bench.stamp(None)
    bench.look(3)
    assert bench.source.in_force is before


def test_reload_waits_for_no_second_look(bench: Bench) -> None:
    bench.write(GOOD.format("second"))
    assert bench.source.reload()
    assert bench.ids == ["second"]


def test_rules_that_cannot_be_compiled_keep_the_last_good_set(tmp_path: Path) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text(GOOD.format("first"), encoding="utf-8")

    def compiled(file: RuleFile) -> str:
        if file.rules[0].id == "second":
            raise RuntimeError("no room")
        return file.rules[0].id

    source = RuleSource(path, compiled)
    path.write_text(GOOD.format("second"), encoding="utf-8")
    assert not source.reload()
    assert source.current == "first"
    assert "cannot be compiled: RuntimeError: no room" in str(source.faults[0])


def test_the_first_reading_raises_faults(tmp_path: Path) -> None:
    path = tmp_path / "penstock.yaml"
    with pytest.raises(InvalidRules, match="cannot be read"):
        RuleSource(path, lambda file: file)
    path.write_text(BAD, encoding="utf-8")
    with pytest.raises(InvalidRules, match="fortnight"):
        RuleSource(path, lambda file: file)


@pytest.mark.parametrize("every", [0, -1, True, "1s", float("nan"), 10**9])
def test_invalid_intervals_are_refused(tmp_path: Path, every: Any) -> None:
    with pytest.raises(InvalidOption, match="every"):
        RuleSource(tmp_path / "penstock.yaml", lambda file: file, every=every)


def test_a_hook_that_fails_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text(GOOD.format("first"), encoding="utf-8")

    def hook(event: object) -> None:
        raise RuntimeError("deaf")

    source = RuleSource(path, lambda file: [rule.id for rule in file.rules], hook=hook)
    path.write_text(GOOD.format("second"), encoding="utf-8")
    assert source.reload()
    assert source.current == ["second"]
    assert "a hook failed" in caplog.text


# ---------------------------------------------------------------- in the background


class Waiting:
    """A hook that lets a test wait for what happens in another thread."""

    def __init__(self, kind: type, times: int = 1) -> None:
        self.kind, self.times = kind, times
        self.told = threading.Event()

    def __call__(self, event: object) -> None:
        if isinstance(event, self.kind):
            self.times -= 1
            if not self.times:
                self.told.set()


def test_the_background_thread_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text(GOOD.format("first"), encoding="utf-8")
    hook = Waiting(RulesLoaded, times=2)
    with RuleSource(path, lambda file: file.rules[0].id, every=0.01, hook=hook) as source:
        path.write_text(GOOD.format("second"), encoding="utf-8")
        assert hook.told.wait(30)
        assert source.current == "second"
    assert not any(thread.name == "penstock-rules" for thread in threading.enumerate())


def test_a_signal_has_the_file_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text(GOOD.format("first"), encoding="utf-8")
    hook = Waiting(RulesLoaded, times=2)
    with RuleSource(path, lambda file: file.rules[0].id, every=3_600, hook=hook) as source:
        before = signal.signal(signal.SIGHUP, lambda *_: source.ask())
        try:
            path.write_text(GOOD.format("second"), encoding="utf-8")
            os.kill(os.getpid(), signal.SIGHUP)
            assert hook.told.wait(30)
        finally:
            signal.signal(signal.SIGHUP, before)
        assert source.current == "second"


def test_starting_and_closing_twice_is_harmless(bench: Bench) -> None:
    bench.source.start().start()
    bench.source.close()
    bench.source.close()


def test_a_hook_may_close_the_source(tmp_path: Path) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text(GOOD.format("first"), encoding="utf-8")
    closed = threading.Event()

    def hook(event: object) -> None:
        if isinstance(event, RulesRefused):
            source.close()
            closed.set()

    source = RuleSource(path, lambda file: file, every=3_600, hook=hook).start()
    thread = source._thread
    path.write_text(BAD, encoding="utf-8")
    source.ask()
    assert closed.wait(30)
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()


def test_a_forked_process_starts_with_locks_of_its_own(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getpid()
    bench.source._looking.acquire()  # as if the parent had been looking when it forked
    bench.source.ask()  # and had been asked for something
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    bench.source.start()
    bench.write(GOOD.format("second"))
    assert bench.source.reload()
    assert bench.ids == ["second"]


def test_the_background_thread_outlives_an_internal_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text(GOOD.format("first"), encoding="utf-8")
    hook = Waiting(RulesLoaded, times=2)
    source = RuleSource(path, lambda file: file.rules[0].id, every=0.01, hook=hook)
    failed = threading.Event()

    def broken(now: int) -> bool:
        failed.set()
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(source, "look", broken)
    with source:
        assert failed.wait(30)
        source.ask()
        assert hook.told.wait(30)
    assert "checking penstock.yaml failed" in caplog.text


def test_content_replaced_under_the_same_time_and_size_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("rules: [{id: a, key: ip, quota: 1/minute}]")
    os.utime(file, (1, 1))
    later = time.time_ns() // 1_000 + 3_600_000_000
    source = RuleSource(file, RuleSet)
    source.look(later)
    file.write_text("rules: [{id: b, key: ip, quota: 1/minute}]")
    os.utime(file, (1, 1))
    assert [source.look(later + second) for second in (1, 2)] == [False, True]
    assert source.current.rules[0].id == "b"
