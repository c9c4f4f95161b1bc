"""Logs: one line per record, as JSON or text; a log of some refusals; and a log of events.

    configure("json")                                     # penstock's loggers write JSON lines to stderr
    hook = Hooks(metrics, EventLog())                     # rules, shedding
    observer = Observers(metrics, DenialLog(secret))      # a sample of the refusals

No line holds a key, an identity or a secret. A refused key is shown as a keyed hash. The hash is the same in all
workers with the same secret, and without the secret no guess at the key can be checked.

Fields beside the message of a record are passed as `extra={"fields": {...}}`.
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
from penstock.engine.options import at_least
from penstock.errors import InvalidOption, shown
from penstock.events import LimitScaled, RulesLoaded, RulesRefused, Shedding
from penstock.model import Key, Verdict
from penstock.rules.ruling import BLOCKED, SHED, Ruling, reason_of

Form: TypeAlias = Literal["json", "text"]

PER_SECOND = 10
"""Refusals that a worker logs in one second."""

denials = logging.getLogger("penstock.denials")
events = logging.getLogger("penstock.events")


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, then the fields of the record."""

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
    """Readable text: `2026-01-31T12:00:00.000Z warning penstock.events: message (rule=api, used=5)`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = ", ".join([f"{name}={value}" for name, value in _fields(record).items()])
        text = f"{record.getMessage()} ({fields})" if fields else record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        # Indented, so that a line break smuggled into a message cannot forge a record.
        text = text.replace("\r", "\\r").replace("\n", "\n  ")
        return f"{_time(record)} {record.levelname.lower()} {record.name}: {text}"


FORMATTERS: dict[str, type[logging.Formatter]] = {"json": JsonLines, "text": TextLines}


def configure(form: Form = "text", level: str = "info", stream: TextIO | None = None) -> logging.Handler:
    """Write all records of the logger `penstock` and those below it in one form. Returns the handler."""
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
    """Return the keyed hash of a key, as logs may show it."""
    text = repr((key,) if isinstance(key, str) else key).encode()
    return blake2b(text, digest_size=8, key=secret[:64]).hexdigest()


class DenialLog:
    """An observer that logs refusals: one in `share`, and at most `per_second`.

    A line after refusals that were left out has their number.
    """

    def __init__(
        self, secret: bytes, *, share: int = 1, per_second: int = PER_SECOND, clock: Clock | None = None
    ) -> None:
        self._secret = secret
        self._share, self._per_second = at_least(1, "share", share), at_least(1, "per_second", per_second)
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
        fields = self._fields(verdict)
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

    def _fields(self, verdict: Verdict) -> dict[str, Any]:
        rule = verdict.rule if isinstance(verdict, Ruling) else ""
        fields: dict[str, Any] = {"rule": rule, "reason": reason_of(verdict), "source": verdict.source}
        quota = verdict.quota
        if quota is not SHED and quota is not BLOCKED:
            used = quota.capacity - verdict.remaining
            fields |= {"key": hashed(verdict.key, self._secret), "quota": str(quota), "used": used}
        return fields | {"cost": verdict.cost, "retry_after": round(verdict.retry_after, 3)}


class EventLog:
    """A hook that logs loaded and refused rules, changes of shedding, and scaled limits.

    Breakers, outages, internal errors and failing signals are logged by the components themselves.
    """

    def __call__(self, event: Any, /) -> None:
        if isinstance(event, RulesLoaded):
            _log(logging.INFO, "rules are in force", event._asdict())
        elif isinstance(event, RulesRefused):
            _log(logging.ERROR, "rules were refused, the previous rules stay in force", event._asdict())
        elif isinstance(event, LimitScaled):
            _log(logging.INFO, "a limit was scaled", event._asdict())
        elif isinstance(event, Shedding):
            fields = {"from": event.was, "to": event.level, "pressure": round(event.pressure, 3), "why": event.why}
            _log(logging.WARNING if event.level > event.was else logging.INFO, "shedding changed", fields)


def _log(level: int, message: str, fields: dict[str, Any]) -> None:
    events.log(level, message, extra={"fields": fields})
