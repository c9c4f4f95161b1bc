"""Logs: one line each, as JSON or as text; refusals, a few of many; and what happened.

    configure("json")                                     # penstock's loggers write JSON lines to stderr
    hook = Hooks(metrics, EventLog())                     # rules, shedding
    observer = Observers(metrics, DenialLog(secret))      # some of the refusals

No line holds a key, an identity or a secret. A refused key is shown as a keyed hash: the same key looks the same in all
lines of all workers that have the same secret, and nobody without it can tell whose it is.

What a record is to say beside its message is given as `extra={"fields": {...}}`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Literal, TextIO, TypeAlias

import msgspec

from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import InvalidOption, shown
from penstock.events import LimitScaled, RulesLoaded, RulesRefused, Shedding
from penstock.model import Key, Verdict
from penstock.rules.ruling import BLOCKED, SHED, Ruling, reason_of

Form: TypeAlias = Literal["json", "text"]

PER_SECOND = 10
"""Refusals that are logged in one second, of one worker."""

denials = logging.getLogger("penstock.denials")
events = logging.getLogger("penstock.events")


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, then whatever fields the record has."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in _fields(record).items() if name not in line}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class TextLines(logging.Formatter):
    """The same for people: `2026-01-31T12:00:00.000Z warning penstock.events: message (rule=api, used=5)`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = ", ".join([f"{name}={value}" for name, value in _fields(record).items()])
        text = f"{record.getMessage()} ({fields})" if fields else record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        # A line that somebody smuggled into a message stays visibly a part of it.
        text = text.replace("\r", "\\r").replace("\n", "\n  ")
        return f"{_time(record)} {record.levelname.lower()} {record.name}: {text}"


FORMATTERS: dict[str, type[logging.Formatter]] = {"json": JsonLines, "text": TextLines}


def configure(form: Form = "text", level: str = "info", stream: TextIO | None = None) -> logging.Handler:
    """Have everything below the logger `penstock` written in one form; the answer is the handler that writes it."""
    if form not in FORMATTERS:
        raise InvalidOption(f"log_format {shown(form)}: expected json or text")
    known = logging.getLevelNamesMapping()
    if level.upper() not in known:
        raise InvalidOption(f"log_level {shown(level)}: expected debug, info, warning, error or critical")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(FORMATTERS[form]())
    ours = logging.getLogger("penstock")
    ours.handlers[:] = [handler]
    ours.setLevel(known[level.upper()])
    ours.propagate = False
    return handler


def hashed(key: Key, secret: bytes) -> str:
    """A key as logs may show it."""
    text = repr((key,) if isinstance(key, str) else key).encode()
    return blake2b(text, digest_size=8, key=secret[:64]).hexdigest()


class DenialLog:
    """An observer that logs refusals: one in `share` of them, and at most `per_second`. The line after those that were
    left out says how many there were.
    """

    def __init__(
        self, secret: bytes, *, share: int = 1, per_second: int = PER_SECOND, clock: Clock | None = None
    ) -> None:
        for name, value in (("share", share), ("per_second", per_second)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidOption(f"{name} {shown(value)}: expected a whole number, at least 1")
        self._secret, self._share, self._per_second = secret, share, per_second
        self._time_ns = (clock or SystemClock()).time_ns
        self._refusals = self._left_out = self._logged = 0
        self._second = 0

    def decided(self, verdicts: Sequence[Verdict], took: Micros) -> None:
        for verdict in verdicts:
            if not verdict[0][0]:
                self._refused(verdict)

    def answered(self, route: str, statuses: Sequence[int], took: Micros) -> None: ...

    def _refused(self, verdict: Verdict) -> None:
        self._refusals += 1
        if self._refusals % self._share or not self._has_room() or not denials.isEnabledFor(logging.INFO):
            self._left_out += 1
            return
        fields = self._said(verdict)
        if self._left_out:
            fields["left_out"] = self._left_out
            self._left_out = 0
        denials.info("refused", extra={"fields": fields})

    def _has_room(self) -> bool:
        second = self._time_ns() // 1_000_000_000
        if second != self._second:
            self._second, self._logged = second, 0
        self._logged += 1
        return self._logged <= self._per_second

    def _said(self, verdict: Verdict) -> dict[str, Any]:
        rule = verdict.rule if isinstance(verdict, Ruling) else ""
        fields: dict[str, Any] = {"rule": rule, "reason": reason_of(verdict), "source": verdict.source}
        quota = verdict.quota
        if quota is not SHED and quota is not BLOCKED:
            used = quota.capacity - verdict.remaining
            fields |= {"key": hashed(verdict.key, self._secret), "quota": str(quota), "used": used}
        return fields | {"cost": verdict.cost, "retry_after": round(verdict.retry_after, 3)}


class EventLog:
    """A hook that logs what happened: rules that were loaded or refused, shedding, limits that were scaled.

    Breakers, outages, faults and signals that fail are logged where they happen, and not said twice.
    """

    def __call__(self, event: Any, /) -> None:
        if isinstance(event, RulesLoaded):
            _log(logging.INFO, "rules are in force", event._asdict())
        elif isinstance(event, RulesRefused):
            _log(logging.ERROR, "rules were refused, those before them stay in force", event._asdict())
        elif isinstance(event, LimitScaled):
            _log(logging.INFO, "a limit was scaled", event._asdict())
        elif isinstance(event, Shedding):
            fields = {"from": event.was, "to": event.level, "pressure": round(event.pressure, 3), "why": event.why}
            _log(logging.WARNING if event.level > event.was else logging.INFO, "shedding changed", fields)


def _log(level: int, message: str, fields: dict[str, Any]) -> None:
    events.log(level, message, extra={"fields": fields})
