"""Reads quotas from text, such as `"100/minute"` or `"10/second burst 20"`, and writes their durations.

    text     = quota ((";" | ",") quota)*
    quota    = NUMBER ("/" | "per") [NUMBER] UNIT option*
             | NUMBER ("/" | "per") ("day" | "week" | "month" | "year") "calendar" [ZONE] option*
             | NUMBER "concurrent" option*   |   "min_interval" DURATION option*
    option   = ALGORITHM | "burst" NUMBER | "queue" NUMBER | "ttl" DURATION | "min_interval" DURATION
             | "penalty" DURATION | "count" "denied" | "starts" WEEKDAY | "anchor" NUMBER | "name" WORD
    DURATION = NUMBER UNIT

Case and spaces do not matter. Reading yields plain fields, which `Quota` checks: this module knows the grammar and not
the meaning. Every error quotes the text, points at the wrong word, and lists what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, NoReturn, TypedDict, cast

from penstock.clock import Micros
from penstock.errors import InvalidQuota, shown
from penstock.quota.periods import CALENDAR_UNITS, WEEKDAYS

MAX_TEXT = 1_024
MAX_DIGITS = 20
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,63}")

UNITS: dict[str, Micros] = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
SHORT = {"microsecond": "us", "millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w"}
SPELLINGS: Mapping[str, str] = {
    **{name: name for name in UNITS},
    **{f"{name}s": name for name in UNITS},
    **{short: name for name, short in SHORT.items()},
    "\u00b5s": "microsecond",  # the micro sign
    "\u03bcs": "microsecond",  # the Greek letter
    "sec": "second",
    "secs": "second",
    "min": "minute",
    "mins": "minute",
    "hr": "hour",
    "hrs": "hour",
}
NO_FIXED_LENGTH = {"month": "30 days", "months": "30 days", "year": "365 days", "years": "365 days"}
OPTIONS = ("burst", "queue", "ttl", "min_interval", "penalty", "count denied", "starts", "anchor", "name")


class QuotaFields(TypedDict, total=False):
    """The fields that a quota's text states, in whole units and microseconds."""

    limit: int
    period_us: Micros
    algorithm: str
    burst: int
    queue: int
    ttl_us: Micros
    calendar_unit: str
    calendar_zone: str
    calendar_first: int
    min_interval_us: Micros
    penalty_us: Micros
    count_denied: bool
    name: str


class _Word(NamedTuple):
    text: str
    column: int


_WORDS = re.compile(r"[0-9][0-9_]*|[^\W\d][\w.:-]*|\S")
_ZONE = re.compile(r"[^\s;,]+")


def read(text: str, algorithms: tuple[str, ...]) -> list[QuotaFields]:
    """Return the fields of every quota in `text`, in the order written."""
    if not isinstance(text, str):
        raise InvalidQuota(f'quota {shown(text)}: expected text such as "100/minute", not {type(text).__name__}')
    if len(text) > MAX_TEXT:
        raise InvalidQuota(f"quota text of {len(text)} characters: expected at most {MAX_TEXT}")
    return list(_QuotaReader(text, algorithms).quotas())


def read_duration(text: str) -> Micros:
    """Return the microseconds of a duration such as `"250ms"` or `"15 m"`."""
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise InvalidQuota(f'duration {shown(text)}: expected text such as "250ms"')
    return _QuotaReader(text, ()).duration()


def write_period(micros: Micros) -> str:
    """Write a period in the largest unit that divides it: `"minute"`, `"5 minutes"`."""
    name = _largest_unit(micros)
    count = micros // UNITS[name]
    return name if count == 1 else f"{count} {name}s"


def write_duration(micros: Micros) -> str:
    """Write a duration in the largest unit that divides it: `"15m"`, `"250ms"`."""
    name = _largest_unit(micros)
    return f"{micros // UNITS[name]}{SHORT[name]}"


def _largest_unit(micros: Micros) -> str:
    return next(name for name in reversed(UNITS) if micros % UNITS[name] == 0)


class _QuotaReader:
    """Reads the words of a text in one pass; `at` is the index of the current word."""

    def __init__(self, text: str, algorithms: tuple[str, ...]) -> None:
        self.text = text
        self.words = [_Word(found.group(), found.start() + 1) for found in _WORDS.finditer(text)]
        self.at = 0
        self.algorithms = algorithms
        self.options: dict[str, tuple[str, Callable[[QuotaFields], object]]] = {
            "burst": ("burst", lambda _: self._number("a number of units")),
            "queue": ("queue", lambda _: self._number("a number of units")),
            "ttl": ("ttl_us", lambda _: self._duration()),
            "min_interval": ("min_interval_us", lambda _: self._duration()),
            "penalty": ("penalty_us", lambda _: self._duration()),
            "count": ("count_denied", self._denied),
            "starts": ("calendar_first", self._weekday),
            "anchor": ("calendar_first", self._anchor),
            "name": ("name", lambda _: self._name()),
        }

    def quotas(self) -> Iterator[QuotaFields]:
        yield self._quota()
        while self._peek():  # a quota ends only at a separator or with the text
            self.at += 1
            if self._peek():  # a trailing separator is harmless
                yield self._quota()

    def duration(self) -> Micros:
        """Read a duration; anything after it is an error."""
        micros = self._duration()
        if self._peek():
            self._fail("unexpected", "nothing more")
        return micros

    def _quota(self) -> QuotaFields:
        fields: QuotaFields = {}
        if self._peek() == "min_interval":
            self.at += 1
            fields = {"limit": 1, "period_us": self._duration(), "algorithm": "min_interval"}
        else:
            fields["limit"] = self._number('an amount, as in "100/minute"')
            self._period(fields)
        while self._peek() not in ("", ";", ","):
            self._option(fields)
        return fields

    def _period(self, fields: QuotaFields) -> None:
        """Read what follows the amount: a length of time, a unit of the calendar, or "concurrent"."""
        if self._peek() == "concurrent":
            self.at += 1
            fields["algorithm"] = "concurrency"
            return
        if self._peek() not in ("/", "per"):
            self._fail("unexpected", '"/", "per" or "concurrent"')
        self.at += 1
        if self._peek() in CALENDAR_UNITS and self._peek(1) == "calendar":
            fields["calendar_unit"] = self._peek()
            self.at += 2
            if self._peek() not in ("", ";", ",", *self.algorithms, *self.options):
                fields["calendar_zone"] = self._zone()
            return
        count = self._number("a number") if self._at_number() else 1
        fields["period_us"] = count * self._unit()

    def _zone(self) -> str:
        """Read the name of a time zone: all characters up to the next space or separator."""
        found = cast("re.Match[str]", _ZONE.match(self.text, self.words[self.at].column - 1))
        while self.at < len(self.words) and self.words[self.at].column <= found.end():
            self.at += 1
        return found.group()

    def _option(self, fields: QuotaFields) -> None:
        word = self._peek()
        if word in self.algorithms:
            if "calendar_unit" in fields or fields.get("algorithm") in ("concurrency", "min_interval"):
                self._fail("unexpected", "no algorithm: this kind of quota implies one")
            self._once("algorithm", fields)
            fields["algorithm"] = word
        elif word in self.options:
            field, reader = self.options[word]
            self._once(field, fields)
            fields[field] = reader(fields)  # type: ignore[literal-required]
        elif word == "calendar":
            self._fail("unexpected", "calendar only right after day, week, month or year")
        else:
            self._fail("unknown word", ", ".join((*self.algorithms, *OPTIONS)))

    def _denied(self, _: QuotaFields) -> bool:
        if self._peek() != "denied":
            self._fail("unexpected", '"denied"')
        self.at += 1
        return True

    def _weekday(self, fields: QuotaFields) -> int:
        if fields.get("calendar_unit") != "week":
            self.at -= 1
            self._fail("unexpected", "starts only after week calendar")
        if self._peek() not in WEEKDAYS:
            self._fail("unexpected", ", ".join(WEEKDAYS))
        self.at += 1
        return WEEKDAYS.index(self.words[self.at - 1].text.lower()) + 1

    def _anchor(self, fields: QuotaFields) -> int:
        if fields.get("calendar_unit") != "month":
            self.at -= 1
            self._fail("unexpected", "anchor only after month calendar")
        return self._number("a day of the month")

    def _once(self, field: str, fields: QuotaFields) -> None:
        """Step over the word of an option, which may stand only once in a quota."""
        if field in fields:
            self._fail("repeated", "each option, and one algorithm, at most once")
        self.at += 1

    def _number(self, expected: str) -> int:
        word = self._peek()
        if not self._at_number():
            self._fail("unexpected", expected)
        if len(word) > MAX_DIGITS:
            self._fail("too many digits in", f"at most {MAX_DIGITS}")
        self.at += 1
        return int(word.replace("_", ""))

    def _at_number(self) -> bool:
        first = self._peek()[:1]
        return first.isascii() and first.isdecimal()

    def _duration(self) -> Micros:
        return self._number('a duration, as in "250ms"') * self._unit()

    def _unit(self) -> Micros:
        word = self._peek()
        if word in NO_FIXED_LENGTH:
            self._fail("no fixed length:", f'"{NO_FIXED_LENGTH[word]}", or "{word.removesuffix("s")} calendar UTC"')
        if word not in SPELLINGS:
            self._fail("unknown unit", ", ".join(UNITS))
        self.at += 1
        return UNITS[SPELLINGS[word]]

    def _name(self) -> str:
        word = self._raw()
        if not NAME.fullmatch(word):
            self._fail("unusable name", "a letter, then at most 63 letters, digits, or any of _ . : -")
        self.at += 1
        return word

    def _peek(self, ahead: int = 0) -> str:
        return self._raw(ahead).lower().replace("-", "_")

    def _raw(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.words[at].text if at < len(self.words) else ""

    def _fail(self, fault: str, expected: str) -> NoReturn:
        if self.at < len(self.words):
            word, column = self.words[self.at]
            found = f"{fault} {word!r} at column {column}"
        else:
            found = "ends too early"
        raise InvalidQuota(f'quota "{self.text}": {found} (expected {expected})')
