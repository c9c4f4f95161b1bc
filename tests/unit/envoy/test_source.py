"""A configuration follows its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidRules
from penstock.service.envoy.config_source import ConfigSource

LIMIT = "descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: %d}}]"


def _write(folder: Path, name: str, domain: str, requests: int = 1) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"domain: {domain}\n{LIMIT % requests}\n", encoding="utf-8")


def _requests(source: ConfigSource, domain: str) -> int | None:
    found = source.current.find(domain, [("k", "v")])
    return None if found is None else found.limit.requests


def test_all_files_of_a_folder_are_one_configuration(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yml", "c", "sub/d.yaml"):
        _write(tmp_path, name, name)
    for name in (".hidden.yaml", "..data/e.yaml", "README.md"):
        _write(tmp_path, name, name)
    source = ConfigSource(tmp_path)
    assert sorted(source.current.domains) == ["a.yaml", "b.yml", "c", "sub/d.yaml"]
    assert list(ConfigSource(tmp_path / "a.yaml").current.domains) == ["a.yaml"]


def test_a_change_counts_when_two_looks_found_the_same(tmp_path: Path) -> None:
    clock = ManualClock()
    _write(tmp_path, "a.yaml", "d", 1)
    source = ConfigSource(tmp_path, clock=clock)
    _write(tmp_path, "a.yaml", "d", 2)
    assert not source.look(clock.micros)
    assert _requests(source, "d") == 1
    assert source.look(clock.micros)
    assert _requests(source, "d") == 2
    _write(tmp_path, "b.yaml", "e", 3)
    assert source.reload(clock.micros)
    assert (_requests(source, "d"), _requests(source, "e")) == (2, 3)


def test_a_folder_that_became_bad_changes_nothing(tmp_path: Path) -> None:
    _write(tmp_path, "a.yaml", "d", 1)
    source = ConfigSource(tmp_path)
    (tmp_path / "b.yaml").write_text("domain: e\ndescriptors: [{kye: k}]\n", encoding="utf-8")
    assert not source.reload()
    assert (_requests(source, "d"), len(source.faults)) == (1, 2)
    assert str(source.faults[0]).startswith("b.yaml:2: descriptors[0].")
    (tmp_path / "b.yaml").unlink()
    (tmp_path / "a.yaml").unlink()
    assert not source.reload()
    assert _requests(source, "d") == 1
    assert source.faults[0].problem == "no file in it"


@pytest.mark.parametrize("name", ["none", "empty"])
def test_source_needs_a_valid_configuration_to_begin_with(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidRules, match=r"no file in it|No such file"):
        ConfigSource(tmp_path / name)
