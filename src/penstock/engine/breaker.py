"""The circuit breaker: stops calls to a server that fails, and tries again later. Pure: time and chance are arguments.

    closed      all calls are made; failures and slow replies are counted
    open        no call is made for a while, so that none waits for a timeout
    half-open   a few calls are made, as probes: enough good ones close the breaker, a bad one opens it again

The breaker opens after several failures in a row, or when half of many calls of the last seconds failed or were slow.
Calls begun before it opened do not count afterwards. A probe without a reply in time counts as failed. A breaker that
opens again soon after closing stays open longer, up to a limit, so that it notices within a second that the server is
back.

Instants are seconds that never go back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import Literal, NamedTuple, TypeAlias

from penstock.errors import InvalidOption, shown

State: TypeAlias = Literal["closed", "open", "half-open"]

CLOSED: State = "closed"
OPEN: State = "open"
HALF_OPEN: State = "half-open"

NEVER = float("inf")
TINY = 1e-6
BACKOFF = 1.25
LONGEST_DWELL = 1.6
"""Factors: how much longer the breaker stays open at each opening in close succession, and at most."""


class Limits(NamedTuple):
    """The thresholds of a breaker.

    - `failures`: so many in a row open it.
    - `share`, `calls`, `window`: it also opens if this share of at least `calls` calls within `window` seconds
      failed or was slow.
    - `slow`: a reply that takes so many seconds is slow.
    - `dwell`: seconds that it stays open at first.
    - `probes`: the most probes under way at once; `passes`: so many good ones close it.
    - `probing`: seconds within which a probe needs its reply.
    """

    failures: int = 5
    share: float = 0.5
    calls: int = 20
    window: float = 10.0
    slow: float = 0.04
    dwell: float = 0.5
    probes: int = 3
    passes: int = 2
    probing: float = 1.0


def check_limits(limits: Limits) -> Limits:
    """Return `limits` if all of them are valid."""
    for name in ("failures", "calls", "probes", "passes"):
        _check(name, getattr(limits, name), int, 1, 1_000_000, "a whole number, at least 1")
    _check("share", limits.share, (int, float), TINY, 1, "more than 0 and at most 1")
    for name in ("window", "slow", "dwell", "probing"):
        _check(name, getattr(limits, name), (int, float), TINY, 3_600, "seconds, more than 0 and at most 3600")
    return limits


def _check(name: str, value: object, kind: type | tuple[type, ...], least: float, most: float, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:  # type: ignore[operator]
        raise InvalidOption(f"breaker_{name} {shown(value)}: expected {expected}")


class Breaker:
    """The state machine. Calls `changed(was, state, why)` at transitions; `chance()` returns a number from 0 to 1."""

    def __init__(
        self, limits: Limits, changed: Callable[[State, State, str], None], chance: Callable[[], float]
    ) -> None:
        self._limits, self._changed, self._chance = limits, changed, chance
        self._slow = limits.slow
        self.unlock()
        self.state: State = CLOSED
        self.forced: State | None = None
        self.why = ""
        self._streak = 0
        self._second, self._calls, self._bad = 0, 0, 0  # the current second, and its counts
        self._seconds: deque[tuple[int, int, int]] = deque()  # earlier seconds within the window
        self._tries_at = 0.0  # when an open breaker becomes half-open
        self._probes: list[float] = []  # when the probes under way began
        self._passed = 0
        self._openings = 0  # in close succession
        self._closed_at = self._opened_at = -NEVER

    def unlock(self) -> None:
        """Replace the lock, in a forked child: the thread that held it does not exist there.

        The lock is held for transitions, so `changed` must be quick, and for the sliding window. Counting within a
        second does not take it, and may miss one call in a million.
        """
        self._lock = RLock()

    def admits(self, now: float) -> bool:
        """Return whether a call may be made although the breaker is not closed; if so, as a probe begun `now`."""
        if self.forced is not None:
            return self.forced == CLOSED
        with self._lock:
            if self.state == CLOSED:
                return True
            if self.state == OPEN:
                if now < self._tries_at:
                    return False
                self._go(HALF_OPEN, "time to try again")
                self._probes.clear()
                self._passed = 0
            if self._probes and now - self._probes[0] > self._limits.probing:
                self._open(now, "a probe has not come back")
                return False
            if len(self._probes) >= self._limits.probes:
                return False
            self._probes.append(now)
            return True

    def succeeded(self, began: float, now: float) -> None:
        """Record the reply, at `now`, to a call begun at `began`."""
        if self.state != CLOSED:
            self._probe_passed(began, now)
            return
        if began < self._opened_at:
            return
        self._streak = 0
        if int(now) != self._second:
            self._turn(int(now))
        self._calls += 1
        if now - began >= self._slow:
            self._bad += 1
            self._judge(now, "slow")

    def failed(self, began: float, now: float, why: str) -> None:
        """Record the failure, at `now`, of a call begun at `began`."""
        if self.state != CLOSED:
            self._probe_failed(began, now, why)
            return
        if began < self._opened_at:
            return
        self._streak += 1
        if int(now) != self._second:
            self._turn(int(now))
        self._calls += 1
        self._bad += 1
        if self._streak >= self._limits.failures:
            with self._lock:
                if self.state == CLOSED:
                    self._open(now, f"{self._streak} failures in a row, the last one: {why}")
        else:
            self._judge(now, why)

    def force(self, state: State | None) -> None:
        """Keep the breaker open or closed, whatever happens; None ends that."""
        if state not in (OPEN, CLOSED, None):
            raise InvalidOption(f"breaker {shown(state)}: expected open, closed or None")
        with self._lock:
            was, self.forced = self.state, state
            self._streak, self._calls, self._bad = 0, 0, 0
            self._seconds.clear()
            self.state = CLOSED if state is None else state
            self.why = "" if self.state == CLOSED else "forced open"
            if was != self.state:
                self._changed(was, self.state, "forced" if state else "no longer forced")

    # The sliding window

    def _turn(self, second: int) -> None:
        """Begin another second, and drop those that have left the window."""
        with self._lock:
            if second <= self._second:  # another thread has done it
                return
            self._seconds.append((self._second, self._calls, self._bad))
            self._second, self._calls, self._bad = second, 0, 0
            while self._seconds and self._seconds[0][0] <= second - self._limits.window:
                self._seconds.popleft()

    def _judge(self, now: float, why: str) -> None:
        """Open if too many of the calls in the window failed or were slow."""
        with self._lock:
            calls = self._calls + sum([calls for _, calls, _ in self._seconds])
            bad = self._bad + sum([bad for _, _, bad in self._seconds])
            if self.state == CLOSED and calls >= self._limits.calls and bad >= self._limits.share * calls:
                self._open(now, f"{bad} of {calls} calls failed or were slow, the last one: {why}")

    # Transitions; the lock is held

    def _open(self, now: float, why: str) -> None:
        if self.forced is not None:
            return
        settled = now - self._closed_at > self._limits.window and self.state == CLOSED
        self._openings = 0 if settled else self._openings + 1
        stretch = min(BACKOFF**self._openings, LONGEST_DWELL)
        self._tries_at = now + self._limits.dwell * stretch * (0.75 + 0.25 * self._chance())
        self._opened_at = now
        self._streak = 0
        self._seconds.clear()
        self._calls = self._bad = 0
        self._go(OPEN, why)

    def _go(self, state: State, why: str) -> None:
        was, self.state = self.state, state
        self.why = why if state == OPEN else self.why
        self._changed(was, state, why)

    def _probe_passed(self, began: float, now: float) -> None:
        with self._lock:
            if self.state != HALF_OPEN or began not in self._probes:
                return
            self._probes.remove(began)
            if now - began >= self._slow:
                self._open(now, "a probe was slow")
                return
            self._passed += 1
            if self._passed >= self._limits.passes:
                self._closed_at = now
                self._go(CLOSED, "probes were answered")

    def _probe_failed(self, began: float, now: float, why: str) -> None:
        with self._lock:
            if self.state == HALF_OPEN and began in self._probes:
                self._open(now, f"a probe failed: {why}")
