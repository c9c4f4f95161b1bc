"""How much trouble a peer may make before it is told to calm down.

Much of what a protocol allows costs us something and brings nobody forward: resets, pings, settings, empty frames,
windows opened by a byte. Each of these costs a point. Answers bring points back, and so does time, so that whoever also
gets something done is never short of them.
"""

from __future__ import annotations

from penstock.service.wire.http2.frames import Code, SessionError

POINTS = 1_000.0
PER_SECOND = 100.0


class FloodBudget:
    """The points of one connection."""

    __slots__ = ("_at", "_points")

    def __init__(self, now: float) -> None:
        self._points, self._at = POINTS, now

    def spend(self, now: float, points: int = 1) -> None:
        """The peer made some trouble: a `SessionError` once it made too much."""
        self._points -= points
        if self._points < 0.0:
            self._points = min(POINTS, self._points + (now - self._at) * PER_SECOND)
            self._at = now
            if self._points < 0.0:
                raise SessionError(Code.ENHANCE_YOUR_CALM, "too much trouble for too few calls")

    def earn(self, points: int) -> None:
        """The peer took part in something useful."""
        self._points = min(POINTS, self._points + points)
