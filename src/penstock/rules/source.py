"""Rules that follow their file: what it says is checked first, and put in force by one assignment.

    source = RuleSource("penstock.yaml", RuleSet, hook=alert)
    source.start()                                          # looks at the file every second
    signal.signal(signal.SIGHUP, lambda *_: source.ask())   # and whenever it is told to
    source.current                                          # the set in force

A file that is bad, empty, half written, deleted or no longer ours to read changes nothing: the last good set stays, and
`faults` and a `RulesRefused` event say why. Only the first time there is nothing to keep, so then faults are raised.

**When a change counts.** A file may be seen half written, and half of a file can be sound by itself. So a change counts
when two looks in a row found the same content, or at once when somebody asks for it.
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
from penstock.errors import Fault, InvalidOption, InvalidRules, shown
from penstock.events import Hook, RulesLoaded, RulesRefused, nobody, tell
from penstock.rules.document import MAX_BYTES
from penstock.rules.model import RuleFile
from penstock.rules.parser import parse, unreadable, version

S = TypeVar("S")

log = logging.getLogger("penstock.rules")

RELOAD, STOP = "reload", "stop"
RACY: Micros = 2 * SECOND
"""Two writes so close may leave the same time on a file: until it is older, its content is looked at."""


class _Stamp(NamedTuple):
    """What tells without reading it that a file has changed."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int  # which nobody can set back

    @classmethod
    def of(cls, stat: os.stat_result) -> Self:
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    def settled(self, now: Micros) -> bool:
        """Whether any later write would leave another stamp."""
        return all(abs(now - ns // 1_000) >= RACY for ns in (self.modified_ns, self.changed_ns))


class FileState(NamedTuple):
    """What was last seen of the file; `stamp` is None if it may change without anybody noticing."""

    version: str
    stamp: _Stamp | None


class InForce(NamedTuple, Generic[S]):
    """A set of rules, its version, since when it applies, and the content of the file it came from, as a digest.

    The version is the set's own, if it has one: then comments do not change it.
    """

    rules: S
    version: str
    since_us: Micros
    content: str


def _in_force(rules: S, content: str, now: Micros) -> InForce[S]:
    return InForce(rules, getattr(rules, "version", content), now, content)


class RuleSource(Generic[S]):
    """The rules of one file. `compile` makes of a `RuleFile` what is put in force, and may raise if it cannot.

    - `every`: seconds between two looks of the background thread.
    - `hook`: told of every `RulesLoaded` and `RulesRefused`.
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
        if isinstance(every, bool) or not isinstance(every, int | float) or not 0 < every <= 86_400:
            raise InvalidOption(f"every {shown(every)}: expected seconds, more than 0 and at most a day")
        self.path = Path(path)
        self.faults: tuple[Fault, ...] = ()
        self._compile = compile
        self._every = every
        self._hook = hook
        self._clock = clock or SystemClock()
        self._looking = threading.Lock()  # two looks at once could put the older content in force last
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
        """The set in force. Take it once per request and use it to the end."""
        return self.in_force.rules

    @property
    def version(self) -> str:
        """Which rules are in force."""
        return self.in_force.version

    def age(self, now: Micros | None = None) -> float:
        """Seconds since the set was put in force."""
        return ((self._now() if now is None else now) - self.in_force.since_us) / SECOND

    def stale(self, now: Micros | None = None) -> float:
        """Seconds since the file was last seen to say what is in force; it grows while the file cannot be used."""
        return ((self._now() if now is None else now) - self._confirmed_us) / SECOND

    def look(self, now: Micros) -> bool:
        """See whether the file has changed, and follow it. True if another set is in force now."""
        with self._looking:
            return self._follow(now, asked=False)

    def reload(self, now: Micros | None = None) -> bool:
        """Read the file again, whatever it looks like from outside. Not for signal handlers: see `ask`."""
        with self._looking:
            return self._follow(self._now() if now is None else now, asked=True)

    def ask(self) -> None:
        """Have the background thread `reload` now. It waits for nothing, so a signal handler may call it."""
        self._asked.put(RELOAD)

    def start(self) -> Self:
        """Look at the file in the background. A thread does not survive a fork: start one in each process."""
        if self._process != os.getpid():  # a fork copies locks as they are: nobody here would open ours
            self._process, self._looking, self._asked = os.getpid(), threading.Lock(), SimpleQueue()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._watch, name="penstock-rules", daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop looking. The set in force stays."""
        thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            self._asked.put(STOP)
            if thread is not threading.current_thread():  # which it is if a hook closes
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
            except Exception:  # nothing known does this, but a thread that ended would follow nothing any more
                log.exception("looking at %s failed", self.path.name)

    def _next(self) -> str | None:
        """What somebody asks for, or None when it is time to look."""
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
            return False  # perhaps it is still being written
        return self._judge(found, content, now)

    def _untouched(self, before: FileState) -> bool:
        return before.stamp is not None and before.stamp == _Stamp.of(self.path.stat())

    def _same(self, found: str, now: Micros) -> bool:
        """Nothing to put in force: the content is that of the set in force, or was refused before."""
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
        except Exception as error:  # whatever the compiler's trouble is, the set in force is better than none
            problem = f"cannot be compiled: {type(error).__name__}: {error}"
            return self._refuse(found, (Fault(self.path.name, 0, "", "", problem, "rules that can be put in force"),))
        self.in_force = _in_force(rules, found, now)
        self.faults = ()
        self._confirmed_us = now
        tell(self._hook, RulesLoaded(self.path.name, self.version))
        return True

    def _refuse(self, found: str, faults: tuple[Fault, ...]) -> bool:
        """Say why the set in force stays, once for each reason."""
        if faults != self.faults:
            self.faults = faults
            tell(self._hook, RulesRefused(self.path.name, found, len(faults), str(faults[0])))
        return False
