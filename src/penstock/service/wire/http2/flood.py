"""A limit on frames that cost the server work and achieve nothing.

Resets, pings, settings, empty frames and one-byte windows are allowed, and each costs the peer a point. Answers and
time give points back, so a peer that also gets work done never runs out.
"""

from __future__ import annotations

from penstock.service.wire.http2.frames import Code, SessionError

POINTS = 1_000.0
PER_SECOND = 100.0


class FloodBudget:
    """The points that one connection has left."""

    __slots__ = ("_at", "_points")

    def __init__(self, now: float) -> None:
        self._points, self._at = POINTS, now

    def spend(self, now: float, points: int = 1) -> None:
        """Take points. Raises `SessionError` when none are left."""
        self._points -= points
        if self._points < 0.0:
            self._points = min(POINTS, self._points + (now - self._at) * PER_SECOND)
            self._at = now
            if self._points < 0.0:
                raise SessionError(Code.ENHANCE_YOUR_CALM, "too many frames for the calls served")

    def earn(self, points: int) -> None:
        """Give points back for calls served."""
        self._points = min(POINTS, self._points + points)
