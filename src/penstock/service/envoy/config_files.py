"""From the files of envoyproxy/ratelimit to a `Config`, or to everything that is wrong with them.

    domain: edge
    descriptors:
      - key: remote_address
        rate_limit: {unit: minute, requests_per_unit: 100}

Files are read as that service reads them: anchors, aliases and merge keys included, units in any case, a key without a
value for all values. What it refuses is refused here, located and all at once. In `rate_limit` there may stand more
than it knows: `algorithm`, `burst`, `min_interval`, `on_failure`, `count_denied`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast

from penstock.clock import SECOND
from penstock.errors import Fault, InvalidQuota, InvalidRules
from penstock.model import OnFailure
from penstock.quota import CALENDAR, RATES, Quota
from penstock.quota import text as quota_text
from penstock.quota.periods import CalendarPeriod
from penstock.rules import document
from penstock.rules.document import Located
from penstock.rules.faults import HIDDEN, MAX_FLAWS, Flaw, Path, unknown
from penstock.rules.parser import faults_of, version
from penstock.service.envoy.config import UNITS, Branch, Config, Level, Limit, Unit

ROOT = ("domain", "descriptors")
DESCRIPTOR = (
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
)
OURS = ("algorithm", "burst", "min_interval", "on_failure", "count_denied")
RATE_LIMIT = ("unit", "requests_per_unit", "unlimited", "name", "replaces", *OURS)
ALGORITHMS = (*RATES, CALENDAR)
CALENDAR_UNITS = ("day", "week", "month", "year")
BEHAVIOURS = ("local", "open", "closed")
MAX_REQUESTS = 2**32 - 1
MAX_DESCRIPTORS = 100_000
"""Entries after aliases are resolved, because a small file can be large then."""

TRUTHS = {"yes": True, "on": True, "no": False, "off": False}  # words that YAML 1.1 takes for truth values


class File(NamedTuple):
    """A file: its name in messages, and its content."""

    name: str
    content: bytes


class Options(NamedTuple):
    """How files are read.

    - `merge_domains`: several files may have the same domain (MERGE_DOMAIN_CONFIG).
    - `algorithm`: what counts where a limit does not say; that service knows fixed windows alone.
    - `count_denied`: whether hits that are refused count all the same, as they do there.
    """

    merge_domains: bool = False
    algorithm: str = "fixed_window"
    count_denied: bool = False


def read(files: Iterable[File], options: Options = Options()) -> Config:  # noqa: B008
    """Return the configuration of all files together."""
    files = list(files)
    domains: dict[str, tuple[str, Level]] = {}
    faults: list[Fault] = []
    for file in files:
        reader = _Reader(file, options, domains)
        reader.read()
        faults += faults_of(reader.located, file.name)
    if faults:
        raise InvalidRules(faults[:MAX_FLAWS])
    named = b"".join(b"%d:%b%d:%b" % (len(f.name), f.name.encode(), len(f.content), f.content) for f in files)
    return Config({domain: level for domain, (_, level) in domains.items()}, version(named))


class _Reader:
    """Reads one file into `domains`, beside those of other files, and gathers its faults."""

    def __init__(self, file: File, options: Options, domains: dict[str, tuple[str, Level]]) -> None:
        self.file = file
        self.options = options
        self.domains = domains
        self.located: list[Located] = []
        self.data: object = None
        self.descriptors = 0
        self.merged: dict[int, Mapping[str, object]] = {}

    def read(self) -> None:
        self.data, self.located, whole = document.read(self.file.content, lenient=True)
        if not whole:
            return
        fields = self._mapping(self.data, (), ROOT)
        if fields is None:
            return
        domain = self._text(fields, "domain", ())
        if not domain:
            self._flaw(("domain",), HIDDEN, "missing or empty", "the domain that Envoy's filter names")
        level = self._level_of(domain)
        self._descriptors(fields.get("descriptors"), ("descriptors",), level)

    def _level_of(self, domain: str) -> Level:
        where, level = self.domains.setdefault(domain, (self.file.name, Level()))
        if domain and where != self.file.name and not self.options.merge_domains:
            expected = "each domain in one file (or MERGE_DOMAIN_CONFIG=true)"
            self._flaw(("domain",), domain, f"repeated: also in {where}", expected)
        return level

    def _descriptors(self, value: object, path: Path, level: Level) -> None:
        if len(path) > 2 * document.MAX_DEPTH:  # only aliases lead so deep
            self._flaw(path, HIDDEN, "nested too deeply", f"at most {document.MAX_DEPTH} levels")
            return
        for at, one in enumerate(self._list(value, path)):
            self.descriptors += 1
            if self.descriptors > MAX_DESCRIPTORS:
                if self.descriptors == MAX_DESCRIPTORS + 1:
                    self._flaw(path, HIDDEN, f"more than {MAX_DESCRIPTORS} descriptors", "fewer")
                return
            fields = self._mapping(one, (*path, at), DESCRIPTOR)
            if fields is not None:
                self._descriptor(fields, (*path, at), level)

    def _descriptor(self, fields: Mapping[str, object], path: Path, level: Level) -> None:
        key = self._text(fields, "key", path)
        if not key:
            self._flaw((*path, "key"), HIDDEN, "missing or empty", "the key of an entry")
        branch = Branch(key, self._text(fields, "value", path), document.line_of(self.data, path))
        branch.value_in_metric = self._truth(fields, "value_to_metric", path)
        branch.shared = self._truth(fields, "share_threshold", path)
        if branch.shared and "*" not in branch.value:
            self._flaw((*path, "share_threshold"), True, "of a value without *", "a value with *, such as GET_*")
        taken = level.put(branch) if key else None
        if taken is not None:
            where = f" on line {taken.line}" if taken.line else ""
            self._flaw(path, HIDDEN, f"repeated: {taken.title} also stands{where}", "each key and value once")
        branch.limit = self._limit(fields, path)
        if fields.get("descriptors") is not None:
            branch.below = Level()
            self._descriptors(fields["descriptors"], (*path, "descriptors"), branch.below)

    def _limit(self, fields: Mapping[str, object], path: Path) -> Limit | None:
        flags = {name: self._truth(fields, name, path) for name in ("shadow_mode", "quota_mode", "detailed_metric")}
        metadata = self._metadata(fields, path)
        if fields.get("rate_limit") is None:
            return None
        path = (*path, "rate_limit")
        said = self._mapping(fields["rate_limit"], path, RATE_LIMIT)
        if said is None:
            return None
        unlimited = self._truth(said, "unlimited", path)
        unit = self._unit(said, path, unlimited=unlimited)
        requests = self._whole(said, "requests_per_unit", path, 0, MAX_REQUESTS) or 0
        name = self._text(said, "name", path)
        return Limit(
            requests,
            unit,
            None if unlimited or unit is None else self._quota(said, path, requests, unit),
            name,
            self._replaces(said, path, name),
            unlimited,
            flags["shadow_mode"],
            flags["quota_mode"],
            flags["detailed_metric"],
            cast("OnFailure | None", self._word(said, "on_failure", path, BEHAVIOURS)),
            metadata,
        )

    def _unit(self, said: Mapping[str, object], path: Path, *, unlimited: bool) -> Unit | None:
        text = self._text(said, "unit", path)
        unit = UNITS.get(text.lower())
        if unlimited and unit is not None:
            self._flaw((*path, "unit"), text, "of something unlimited", "no unit, or no unlimited")
        elif not unlimited and unit is None:
            problem = "unknown unit" if text else "missing"
            self._flaw((*path, "unit"), text or HIDDEN, problem, f"one of {', '.join(UNITS)}")
        return unit

    def _quota(self, said: Mapping[str, object], path: Path, requests: int, unit: Unit) -> Quota | None:
        algorithm = self._word(said, "algorithm", path, ALGORITHMS)
        burst = self._whole(said, "burst", path, 1, MAX_REQUESTS)
        interval = self._duration(said, "min_interval", path)
        counted = self._truth(said, "count_denied", path) if "count_denied" in said else self.options.count_denied
        if algorithm == CALENDAR and unit.name not in CALENDAR_UNITS:
            self._flaw((*path, "algorithm"), CALENDAR, f"of a {unit.name}", f"one of {', '.join(CALENDAR_UNITS)}")
            return None
        if not requests:
            return None
        try:
            return Quota(
                requests,
                CalendarPeriod(unit.name, "UTC", 1) if algorithm == CALENDAR else unit.seconds,
                None if algorithm == CALENDAR else algorithm or (None if burst else self.options.algorithm),
                burst=burst,
                min_interval=interval,
                count_denied=counted,
            )
        except InvalidQuota as error:
            self._flaw(path, HIDDEN, str(error), "a limit that can be kept")
            return None

    def _replaces(self, said: Mapping[str, object], path: Path, own: str) -> tuple[str, ...]:
        names = []
        for at, one in enumerate(self._list(said.get("replaces"), (*path, "replaces"))):
            where: Path = (*path, "replaces", at)
            fields = self._mapping(one, where, ("name",))
            if fields is None:
                continue
            name = self._text(fields, "name", where)
            if not name:
                self._flaw((*where, "name"), HIDDEN, "missing or empty", "the name of another limit")
            elif name == own:
                self._flaw((*where, "name"), name, "its own name", "the name of another limit")
            names.append(name)
        return tuple(names)

    def _metadata(self, fields: Mapping[str, object], path: Path) -> Mapping[str, object]:
        value = fields.get("metadata")
        if value is None:
            return {}
        if not isinstance(value, document.Mapping):
            self._flaw((*path, "metadata"), value, "", "a mapping")
            return {}
        return dict(value)

    # ------------------------------------------------------------ single values

    def _text(self, fields: Mapping[str, object], name: str, path: Path) -> str:
        value = fields.get(name)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str | int):
            return str(value)
        if value is not None:
            self._flaw((*path, name), value, "", "text")
        return ""

    def _truth(self, fields: Mapping[str, object], name: str, path: Path) -> bool:
        value = fields.get(name)
        if isinstance(value, str) and value.lower() in TRUTHS:
            return TRUTHS[value.lower()]
        if value is not None and not isinstance(value, bool):
            self._flaw((*path, name), value, "", "true or false")
        return value is True

    def _whole(self, fields: Mapping[str, object], name: str, path: Path, least: int, most: int) -> int | None:
        value = fields.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self._flaw((*path, name), value, "", f"a whole number, {least} to {most}")
            return None
        return value

    def _word(self, fields: Mapping[str, object], name: str, path: Path, words: tuple[str, ...]) -> str | None:
        value = fields.get(name)
        if value is not None and value not in words:
            self._flaw((*path, name), value, *unknown(name, value, words))
            return None
        return value

    def _duration(self, fields: Mapping[str, object], name: str, path: Path) -> float | None:
        value = fields.get(name)
        if value is None:
            return None
        try:
            return quota_text.read_duration(cast("str", value)) / SECOND
        except InvalidQuota:
            self._flaw((*path, name), value, "", 'a duration, such as "100ms"')
            return None

    def _list(self, value: object, path: Path) -> list[object]:
        if isinstance(value, list):
            return value
        if value is not None:
            self._flaw(path, value, "", "a list")
        return []

    def _mapping(self, value: object, path: Path, known: tuple[str, ...]) -> Mapping[str, object] | None:
        """The fields of a mapping, if it is one; those that are not known are flaws."""
        if not isinstance(value, document.Mapping):
            self._flaw(path, value, "" if value is not None else "nothing in it", f"a mapping with {known[0]}")
            return None
        fields = self._merged(value)
        for name in fields:
            if name not in known:
                self._flaw((*path, name), HIDDEN, *unknown("key", name, known))
        return fields

    def _merged(self, mapping: document.Mapping, depth: int = 0) -> Mapping[str, object]:
        """The fields with those that a merge key (`<<`) brings, which do not override what stands beside it.

        Aliases may bring the same mapping again and again: it is merged once.
        """
        if "<<" not in mapping or depth > document.MAX_DEPTH:
            return mapping
        if id(mapping) not in self.merged:
            brought, fields = mapping["<<"], dict[str, object]()
            for one in reversed(brought if isinstance(brought, list) else [brought]):
                if isinstance(one, document.Mapping):
                    fields |= self._merged(one, depth + 1)
            own = {name: value for name, value in mapping.items() if name != "<<"}
            self.merged[id(mapping)] = fields | own
        return self.merged[id(mapping)]

    def _flaw(self, path: Path, value: object, problem: str, expected: str) -> None:
        if len(self.located) <= MAX_FLAWS:
            self.located.append(Located(document.line_of(self.data, path), Flaw(path, value, problem, expected)))
