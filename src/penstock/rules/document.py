"""Reads the part of YAML that rules need: mappings, lists, texts, whole numbers and booleans.

The rest of YAML causes mistakes that go unnoticed, so it is refused: aliases (of which a few lines expand to
gigabytes), tags, several documents, repeated keys, blank values. `off`, `no`, `1.10` and `007` are texts; only `true`
and `false` are booleans, and only plain whole numbers are numbers. So every value can be written back as it was.
`lenient` reading is for files written for other programs: there an alias is the object that it stands for, and a blank
is None.

Bytes, values and depth are bounded while they are read. Mappings and lists know their lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import yaml

from penstock.rules.faults import HIDDEN, Flaw, Path

MAX_BYTES = 8 * 2**20
MAX_VALUES = 1_000_000
MAX_DEPTH = 24

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, if PyYAML was built with it: ten times faster
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BLANK = ("", "~", "null", "Null", "NULL")


class Mapping(dict[str, object]):
    """A mapping that knows the line of each of its keys."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class List(list[object]):
    """A list that knows the line of each of its items."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []


class Located(NamedTuple):
    """A flaw, and the line it is on."""

    line: int
    flaw: Flaw


class Document(NamedTuple):
    """The data that was read, and the flaws found; not `whole` if reading stopped early."""

    data: object
    flaws: list[Located]
    whole: bool


class _Stop(Exception):
    """A flaw after which reading stops."""

    def __init__(self, line: int, path: Path, problem: str, expected: str) -> None:
        super().__init__(problem)
        self.located = _located(line, path, problem, expected)


def read(content: bytes | str, *, lenient: bool = False) -> Document:
    """Read the one document in `content`. Lenient data may share values, so traversals of it must be bounded."""
    reader, text = _DocumentReader(lenient=lenient), ""
    try:
        text = _decoded(content)
        reader.read(text)
        return Document(reader.data, reader.flaws, whole=True)
    except _Stop as stop:
        fatal = stop.located
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        fatal = _located(line, (), f"not YAML: {error.problem}", "well-formed YAML")
    except yaml.YAMLError:
        fatal = _unprintable(text)
    return Document(reader.data, [*reader.flaws, fatal], whole=False)


def line_of(data: Any, path: Path) -> int:
    """Return the line of the value at `path`, or of the innermost container if there is no such value."""
    line: int = data.line if isinstance(data, Mapping | List) else 0
    for step in path:
        try:
            data, line = data[step], data.lines[step]
        except (AttributeError, LookupError, TypeError):
            break
    return line


def _decoded(content: bytes | str) -> str:
    """Return the text of `content`, if it is UTF-8 and not too long."""
    if len(content) > MAX_BYTES:
        raise _Stop(0, (), f"more than {MAX_BYTES} bytes", f"at most {MAX_BYTES}")
    try:
        encoded = content.encode() if isinstance(content, str) else content
        return encoded.decode("utf-8-sig")
    except UnicodeError as error:
        before = error.object[: error.start]  # type: ignore[attr-defined]
        newline = "\n" if isinstance(content, str) else b"\n"
        raise _Stop(before.count(newline) + 1, (), "not UTF-8", "text in UTF-8") from None


def _unprintable(text: str) -> Located:
    """Locate the character that YAML does not allow."""
    found = _UNPRINTABLE.search(text)
    line = text.count("\n", 0, found.start()) + 1 if found else 0
    what = f", {found.group()!r}" if found else ""
    return _located(line, (), f"a character that YAML does not allow{what}", "printable text")


def _located(line: int, path: Path, problem: str, expected: str) -> Located:
    return Located(line, Flaw(path, HIDDEN, problem, expected))


class _DocumentReader:
    """Builds the data from parser events. `open` are the containers being filled; `path` leads to the last."""

    def __init__(self, *, lenient: bool) -> None:
        self.lenient = lenient
        self.anchors: dict[str, object] = {}  # the values of aliases, if lenient
        self.data: object = None
        self.flaws: list[Located] = []
        self.open: list[Mapping | List] = []
        self.path: list[str | int] = []
        self.mapping: Mapping | None = None  # the last container, if it is a mapping
        self.key: str | None = None  # of that mapping, until its value comes
        self.repeats = False  # whether that key was there before
        self.values = 0
        self.documents = 0

    def read(self, text: str) -> None:
        handlers: dict[type, Callable[[Any, int], None]] = {
            yaml.ScalarEvent: self._scalar,
            yaml.MappingStartEvent: lambda event, line: self._start(Mapping(line), event, line),
            yaml.SequenceStartEvent: lambda event, line: self._start(List(line), event, line),
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.AliasEvent: self._alias,
            yaml.DocumentStartEvent: self._document,
        }
        events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        for event in events:
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event, event.start_mark.line + 1)

    def _document(self, _: object, line: int) -> None:
        self.documents += 1
        if self.documents > 1:
            raise _Stop(line, (), "a second document", "one document in a file")

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        text: str = event.value
        if self.mapping is not None and self.key is None:
            self._take_key(self.mapping, text, line)
            return
        plain = event.implicit[0]  # neither quoted nor tagged
        if plain and text in _BLANK and not self.lenient:
            self._fault(line, "blank", "a value, or no such field")
        if event.tag:
            self._tag(event.tag, line)
        value = _resolved(text) if plain else text
        self._anchor(event.anchor, value)
        self._place(value, line)

    def _start(self, container: Mapping | List, event: Any, line: int) -> None:
        self._no_key(line, "a list or mapping")
        if len(self.open) >= MAX_DEPTH:
            raise _Stop(line, (), f"more than {MAX_DEPTH} levels deep", f"at most {MAX_DEPTH} levels")
        if event.tag:
            self._tag(event.tag, line)
        step = self._step()
        self._place(container, line)
        self._anchor(event.anchor, container)
        self.path += step
        self.open.append(container)
        self.mapping = container if isinstance(container, Mapping) else None

    def _end(self, *_: object) -> None:
        self.open.pop()
        del self.path[-1:]
        last = self.open[-1] if self.open else None
        self.mapping = last if isinstance(last, Mapping) else None

    def _alias(self, event: Any, line: int) -> None:
        """Place the value of an alias as one object, so that nothing expands."""
        self._no_key(line, "an alias")
        value = self.anchors.get(event.anchor) if self.lenient else None
        if not self.lenient:
            self._fault(line, "an alias", "the value itself: aliases are not followed")
        elif event.anchor not in self.anchors or any(value is container for container in self.open):
            self._fault(line, "an alias of nothing that is complete", "the name of an anchor above")
            value = None
        self._place(value, line)

    def _anchor(self, name: str | None, value: object) -> None:
        if name is not None:
            self.anchors[name] = value

    def _no_key(self, line: int, found: str) -> None:
        if self.mapping is not None and self.key is None:
            raise _Stop(line, tuple(self.path), f"{found} in place of a name", "a name")

    def _take_key(self, mapping: Mapping, key: str, line: int) -> None:
        self.key, self.repeats = key, key in mapping.lines
        if self.repeats:
            self._fault(line, f"repeated: also on line {mapping.lines[key]}", "each field once")
        else:
            mapping.lines[key] = line

    def _place(self, value: object, line: int) -> None:
        """Put a value into the last container; of repeated keys the first stays."""
        self.values += 1
        if self.values > MAX_VALUES:
            raise _Stop(line, (), f"more than {MAX_VALUES} values", f"at most {MAX_VALUES}")
        if self.mapping is not None and self.key is not None:
            if not self.repeats:
                self.mapping[self.key] = value
            self.key = None
        elif self.open:
            items = cast("List", self.open[-1])
            items.append(value)
            items.lines.append(line)
        else:
            self.data = value

    def _tag(self, tag: str, line: int) -> None:
        self._fault(line, f"a tag, {tag[:64]!r}", "no tags")

    def _fault(self, line: int, problem: str, expected: str) -> None:
        self.flaws.append(_located(line, (*self.path, *self._step()), problem, expected))

    def _step(self) -> list[str | int]:
        """Return the step from the last container to the next value."""
        if not self.open:
            return []
        return [len(self.open[-1]) if self.key is None else self.key]


def _resolved(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    if text in _BLANK:
        return None
    return int(text) if _WHOLE.fullmatch(text) else text
