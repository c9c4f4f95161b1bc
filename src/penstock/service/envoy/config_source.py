"""A configuration that follows its folder: all files in it are one, checked first and put in force by one assignment.

Read are files that end in `.yaml` or `.yml`, or have no ending, in subfolders too; what begins with a dot is not, so
that the links by which Kubernetes swaps a mounted folder do no harm. In place of a folder there may be a single file.
A folder that is bad, half written or gone changes nothing: see `penstock.rules.source`, which this is a case of.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.clock import Clock, Micros
from penstock.errors import Fault, InvalidRules
from penstock.events import Hook, nobody
from penstock.rules.document import MAX_BYTES
from penstock.rules.parser import version
from penstock.rules.source import FileState, RuleSource
from penstock.service.envoy.config import Config
from penstock.service.envoy.config_files import File, Options, read

SUFFIXES = (".yaml", ".yml", "")
MAX_FILES = 1_000


class ConfigSource(RuleSource[Config]):
    """The configuration in a folder; `current` is the one in force, `start` follows the folder."""

    def __init__(
        self,
        path: str | Path,
        options: Options = Options(),  # noqa: B008
        *,
        every: float = 1.0,
        hook: Hook = nobody,
        clock: Clock | None = None,
    ) -> None:
        self.options = options
        self._files: list[File] = []
        super().__init__(path, lambda _: Config({}), every=every, hook=hook, clock=clock)

    def _read(self, now: Micros) -> tuple[FileState, bytes]:
        """All of it, every time: there is no telling from outside whether a file of a folder has changed."""
        self._files = files = read_files(self.path)
        content = b"".join(b"%d:%b%d:%b" % (len(f.name), f.name.encode(), len(f.content), f.content) for f in files)
        return FileState(version(content), None), content

    def _made(self, content: bytes) -> Config:
        if not self._files:
            raise InvalidRules([Fault(self.path.name, 0, "", "", "no file in it", "files that end in .yaml")])
        return read(self._files, self.options)


def read_files(path: Path) -> list[File]:
    """The files at `path`, which is a folder or a file, in the order of their names."""
    if path.is_file():
        return [_file(path, path.name)]
    if not path.is_dir():
        raise FileNotFoundError(2, "No such file or directory")
    found = sorted(_found(path))
    if len(found) > MAX_FILES:
        raise InvalidRules([Fault(path.name, 0, "", "", f"{len(found)} files", f"at most {MAX_FILES}")])
    return [_file(one, str(one.relative_to(path))) for one in found]


def _found(folder: Path) -> Iterator[Path]:
    for one in folder.iterdir():
        if one.name.startswith("."):
            continue
        if one.is_dir():
            yield from _found(one)
        elif one.suffix in SUFFIXES:
            yield one


def _file(path: Path, name: str) -> File:
    with path.open("rb") as file:
        return File(name, file.read(MAX_BYTES + 1))
