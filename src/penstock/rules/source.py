"""Rules that follow their file: a changed file is checked first, and put in force by one assignment.

    source = RuleSource("penstock.yaml", RuleSet, hook=alert)
    source.start()                                          # checks the file every second
    signal.signal(signal.SIGHUP, lambda *_: source.ask())   # and on request
    source.current                                          # the set in force

A file that is invalid, empty, half written, deleted or unreadable changes nothing: the last good set stays, and
`faults` and a `RulesRefused` event have the reason. The first time there is no set to keep, so faults are raised.

**When a change counts.** A file may be read half written, and half of a file can be valid. So a change counts when two
checks in a row find the same content, or at once on request.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, Self, TypeVar

from penstock.clock import SECOND, Clock, Micros, SystemClock
from penstock.engine.options import up_to_a_day
from penstock.errors import Fault, InvalidRules
from penstock.events import Hook, RulesLoaded, RulesRefused, nobody, tell
from penstock.rules.document import MAX_BYTES
from penstock.rules.model import RuleFile
from penstock.rules.parser import parse, unreadable, version

S = TypeVar("S")

log = logging.getLogger("penstock.rules")

RELOAD, STOP = "reload", "stop"
RACY: Micros = 2 * SECOND
"""Two writes so close may leave the same time on a file, so the content of a younger file is always read."""


class _Stamp(NamedTuple):
    """Metadata that shows without reading a file whether it has changed."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int  # which cannot be set back

    @classmethod
    def of(cls, stat: os.stat_result) -> Self:
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    def settled(self, now: Micros) -> bool:
        """Whether any later write would leave a different stamp."""
        return all(abs(now - ns // 1_000) >= RACY for ns in (self.modified_ns, self.changed_ns))


class FileState(NamedTuple):
    """The file as last read; `stamp` is None if a change might not show in it."""

    version: str
    stamp: _Stamp | None


class InForce(NamedTuple, Generic[S]):
    """A set of rules, its version, since when it is in force, and the digest of its file.

    The version is that of the set, if it has one; then comments in the file do not change it.
    """

    rules: S
    version: str
    since_us: Micros
    content: str


def _in_force(rules: S, content: str, now: Micros) -> InForce[S]:
    return InForce(rules, getattr(rules, "version", content), now, content)


class RuleSource(Generic[S]):
    """The rules of one file. `compile` turns a `RuleFile` into the set that is put in force; it may raise.

    - `every`: seconds between two checks by the background thread.
    - `hook`: receives `RulesLoaded` and `RulesRefused`.
    """

    def __init__(
        self,
        path: str | Path,
        compile: Callable[[RuleFile], S],
        *,
        every: float = 1.0,
        hook: Hook = nobody,
        clock: Clock | None = None,
    ) -> None:
        self._every = up_to_a_day("every", every)
        self.path = Path(path)
        self.faults: tuple[Fault, ...] = ()
        self._compile = compile
        self._hook = hook
        self._clock = clock or SystemClock()
        self._looking = threading.Lock()  # two concurrent checks could put the older content in force last
        self._asked: SimpleQueue[str] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        now = self._now()
        try:
            seen, content = self._read(now)
        except (OSError, ValueError) as error:
            raise InvalidRules([unreadable(self.path, error)]) from None
        self._seen: FileState | None = seen
        self._judged = seen.version  # the content that was last put in force or refused
        self._confirmed_us = now
        self.in_force = _in_force(self._made(content), seen.version, now)
        tell(hook, RulesLoaded(self.path.name, self.version))

    @property
    def current(self) -> S:
        """The set in force. Read it once per request, and use it to the end."""
        return self.in_force.rules

    @property
    def version(self) -> str:
        """The version of the rules in force."""
        return self.in_force.version

    def age(self, now: Micros | None = None) -> float:
        """Return the seconds since the set was put in force."""
        return ((self._now() if now is None else now) - self.in_force.since_us) / SECOND

    def stale(self, now: Micros | None = None) -> float:
        """Return the seconds since the file was last confirmed; they grow while it is invalid."""
        return ((self._now() if now is None else now) - self._confirmed_us) / SECOND

    def look(self, now: Micros) -> bool:
        """Check whether the file has changed, and follow it. Return True if another set is in force now."""
        with self._looking:
            return self._follow(now, asked=False)

    def reload(self, now: Micros | None = None) -> bool:
        """Read the file again, whatever its metadata. Not for signal handlers: see `ask`."""
        with self._looking:
            return self._follow(self._now() if now is None else now, asked=True)

    def ask(self) -> None:
        """Request a `reload` by the background thread, without waiting, so that signal handlers may call it."""
        self._asked.put(RELOAD)

    def start(self) -> Self:
        """Check the file in a background thread. Threads do not survive a fork: start one in each process."""
        if self._process != os.getpid():  # a fork copies locks as they are, and no thread here would release them
            self._process, self._looking, self._asked = os.getpid(), threading.Lock(), SimpleQueue()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._watch, name="penstock-rules", daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop the background thread. The set in force stays."""
        thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            self._asked.put(STOP)
            if thread is not threading.current_thread():  # a hook may close the source
                thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _watch(self) -> None:
        while (asked := self._next()) is not STOP:
            try:
                if asked is RELOAD:
                    self.reload()
                else:
                    self.look(self._now())
            except Exception:  # unexpected, but without this thread the file would not be followed
                log.exception("checking %s failed", self.path.name)

    def _next(self) -> str | None:
        """Return the next request, or None when a check is due."""
        try:
            return self._asked.get(timeout=self._every)
        except Empty:
            return None

    def _now(self) -> Micros:
        return self._clock.time_ns() // 1_000

    def _read(self, now: Micros) -> tuple[FileState, bytes]:
        with self.path.open("rb") as file:
            stamp = _Stamp.of(os.fstat(file.fileno()))
            content = file.read(MAX_BYTES + 1)
        return FileState(version(content), stamp if stamp.settled(now) else None), content

    def _made(self, content: bytes) -> S:
        return self._compile(parse(content, self.path.name))

    def _follow(self, now: Micros, *, asked: bool) -> bool:
        before = self._seen
        try:
            if before and not asked and before.version == self._judged and self._untouched(before):
                return self._same(before.version, now)
            self._seen, content = self._read(now)
        except (OSError, ValueError) as error:
            self._seen, self._judged = None, ""
            return self._refuse("", (unreadable(self.path, error),))
        found = self._seen.version
        if not asked and (found == self._judged or found == self.in_force.content):
            return self._same(found, now)
        if not asked and (before is None or before.version != found):
            return False  # it may still be half written
        return self._judge(found, content, now)

    def _untouched(self, before: FileState) -> bool:
        return before.stamp is not None and before.stamp == _Stamp.of(self.path.stat())

    def _same(self, found: str, now: Micros) -> bool:
        """Record that the content is that of the set in force, or was refused before."""
        self._judged = found
        if found == self.in_force.content:
            self._confirmed_us = now
            if self.faults:  # the file was bad in between
                self.faults = ()
                tell(self._hook, RulesLoaded(self.path.name, self.version))
        return False

    def _judge(self, found: str, content: bytes, now: Micros) -> bool:
        self._judged = found
        try:
            rules = self._made(content)
        except InvalidRules as error:
            return self._refuse(found, error.faults)
        except Exception as error:  # an internal error of the compiler: keep the set in force
            problem = f"cannot be compiled: {type(error).__name__}: {error}"
            return self._refuse(found, (Fault(self.path.name, 0, "", "", problem, "rules that can be put in force"),))
        self.in_force = _in_force(rules, found, now)
        self.faults = ()
        self._confirmed_us = now
        tell(self._hook, RulesLoaded(self.path.name, self.version))
        return True

    def _refuse(self, found: str, faults: tuple[Fault, ...]) -> bool:
        """Report why the set in force stays, once for each reason."""
        if faults != self.faults:
            self.faults = faults
            tell(self._hook, RulesRefused(self.path.name, found, len(faults), str(faults[0])))
        return False
