"""YAML, and no more of it than rules need: text to mappings, lists, texts, whole numbers and truth values.

What YAML offers beyond that is where files go wrong without anybody noticing, so it is refused: aliases (a few lines of
which unfold to gigabytes), tags, several documents, repeated keys, blank values. Words mean what they say: `off`, `no`,
`1.10` and `007` are texts, only `true` and `false` are truth values, and only plain whole numbers are numbers, so that
every value can be turned back into what was written.

Everything is bounded while it is read: bytes, values, depth. Mappings and lists remember their lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from penstock.rules.flaws import HIDDEN, Flaw, Path

MAX_BYTES = 8 * 2**20
MAX_VALUES = 1_000_000
MAX_DEPTH = 24

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # some ten times faster, where it was compiled
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BLANK = ("", "~", "null", "Null", "NULL")


class Mapping(dict[str, object]):
    """A mapping that knows on which line each of its keys stands."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class List(list[object]):
    """A list that knows on which line each of its items starts."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []


class Located(NamedTuple):
    """A flaw, and the line it is on."""

    line: int
    flaw: Flaw


class Document(NamedTuple):
    """What was read, and what is wrong with the way it was written. Not `whole` where reading stopped too early."""

    data: object
    flaws: list[Located]
    whole: bool


class _Stop(Exception):
    """There is no sense in reading on."""

    def __init__(self, line: int, path: Path, problem: str, expected: str) -> None:
        super().__init__(problem)
        self.located = _located(line, path, problem, expected)


def read(content: bytes | str) -> Document:
    """The one document in `content`."""
    reader = _Reader()
    try:
        reader.read(_checked(content))
        return Document(reader.data, reader.flaws, whole=True)
    except _Stop as stop:
        fatal = stop.located
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", "unreadable")
        fatal = _located(mark.line + 1 if mark else 0, (), f"not YAML: {problem}", "well-formed YAML")
    return Document(reader.data, [*reader.flaws, fatal], whole=False)


def line_of(data: Any, path: Path) -> int:
    """The line on which the value at `path` is written; where there is none, the line of what should have held it."""
    line: int = data.line if isinstance(data, Mapping | List) else 0
    for step in path:
        try:
            data, line = data[step], data.lines[step]
        except (AttributeError, LookupError, TypeError):
            break
    return line


def _checked(content: bytes | str) -> str:
    """The text, if it is text at all and not too long."""
    if len(content) > MAX_BYTES:
        raise _Stop(0, (), f"more than {MAX_BYTES} bytes", f"at most {MAX_BYTES}")
    try:
        encoded = content.encode() if isinstance(content, str) else content
        text = encoded.decode("utf-8-sig")
    except UnicodeError as error:
        before = error.object[: error.start]  # type: ignore[attr-defined]
        newline = "\n" if isinstance(content, str) else b"\n"
        raise _Stop(before.count(newline) + 1, (), "not UTF-8", "text in UTF-8") from None
    if found := _UNPRINTABLE.search(text):
        problem = f"a character that YAML does not allow, {found.group()!r}"
        raise _Stop(text.count("\n", 0, found.start()) + 1, (), problem, "printable text")
    return text


def _located(line: int, path: Path, problem: str, expected: str) -> Located:
    return Located(line, Flaw(path, HIDDEN, problem, expected))


class _Reader:
    """Builds the data from the parser's events. `open` are the containers being filled; `path` leads to the last."""

    def __init__(self) -> None:
        self.data: object = None
        self.flaws: list[Located] = []
        self.open: list[Mapping | List] = []
        self.path: list[str | int] = []
        self.key: str | None = None  # of a mapping, until its value comes
        self.repeats = False  # whether that key was there before
        self.values = 0
        self.documents = 0

    def read(self, text: str) -> None:
        events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        for event in events:
            line = event.start_mark.line + 1
            match event:
                case yaml.ScalarEvent():
                    self._scalar(event, line)
                case yaml.MappingStartEvent():
                    self._start(Mapping(line), event, line)
                case yaml.SequenceStartEvent():
                    self._start(List(line), event, line)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    self._end()
                case yaml.AliasEvent():
                    self._alias(line)
                case yaml.DocumentStartEvent():
                    self._document(line)

    def _document(self, line: int) -> None:
        self.documents += 1
        if self.documents > 1:
            raise _Stop(line, (), "a second document", "one document in a file")

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        if self._wants_key():
            self._take_key(event.value, line)
            return
        plain = event.style in (None, "") and not event.tag
        if plain and event.value in _BLANK:
            self._fault(line, "blank", "a value, or no such field")
        self._place(_resolved(event.value) if plain else event.value, event, line)

    def _start(self, container: Mapping | List, event: Any, line: int) -> None:
        if self._wants_key():
            raise _Stop(line, tuple(self.path), "a list or mapping in place of a name", "a name")
        if len(self.open) >= MAX_DEPTH:
            raise _Stop(line, (), f"more than {MAX_DEPTH} levels deep", f"at most {MAX_DEPTH} levels")
        step = self._step()
        self._place(container, event, line)
        self.open.append(container)
        self.path += step

    def _end(self) -> None:
        self.open.pop()
        if self.path:
            self.path.pop()

    def _alias(self, line: int) -> None:
        """What an alias stands for is not looked at, so there is nothing that could unfold."""
        if self._wants_key():
            raise _Stop(line, tuple(self.path), "an alias in place of a name", "a name")
        self._fault(line, "an alias", "the value itself: aliases are not followed")
        self._place(None, None, line)

    def _wants_key(self) -> bool:
        return bool(self.open) and isinstance(self.open[-1], Mapping) and self.key is None

    def _take_key(self, key: str, line: int) -> None:
        mapping = self.open[-1]
        assert isinstance(mapping, Mapping)  # noqa: S101 - as _wants_key saw
        self.key, self.repeats = key, key in mapping
        if self.repeats:
            self._fault(line, f"repeated: also on line {mapping.lines[key]}", "each field once")
        else:
            mapping.lines[key] = line

    def _place(self, value: object, event: Any, line: int) -> None:
        """Put a value where it belongs; the first of repeated keys stays."""
        self.values += 1
        if self.values > MAX_VALUES:
            raise _Stop(line, (), f"more than {MAX_VALUES} values", f"at most {MAX_VALUES}")
        if event is not None and event.tag:
            self._fault(line, f"a tag, {str(event.tag)[:64]!r}", "no tags")
        if not self.open:
            self.data = value
            return
        container = self.open[-1]
        if isinstance(container, List):
            container.append(value)
            container.lines.append(line)
            return
        if not self.repeats and self.key is not None:
            container[self.key] = value
        self.key = None

    def _step(self) -> list[str | int]:
        """The step from the innermost container to the value that comes next."""
        if not self.open:
            return []
        container = self.open[-1]
        return [len(container) if isinstance(container, List) else self.key or ""]

    def _fault(self, line: int, problem: str, expected: str) -> None:
        self.flaws.append(_located(line, (*self.path, *self._step()), problem, expected))


def _resolved(text: str) -> object:
    if text in _BLANK:
        return None
    if text in ("true", "false"):
        return text == "true"
    return int(text) if _WHOLE.fullmatch(text) else text
