"""What both sides of a session say about the session itself: settings, pings, windows, resets, and farewells."""

from __future__ import annotations

from penstock.service.wire.http2.flood import FloodBudget
from penstock.service.wire.http2.frames import (
    ACK,
    FRAME_SIZE,
    LARGEST,
    PING,
    SETTINGS,
    WINDOW,
    Code,
    SessionError,
    SettingId,
    StreamError,
    frame,
    goaway,
    read_number,
    read_settings,
    settings,
    window_update,
)
from penstock.service.wire.http2.hpack import TABLE_SIZE
from penstock.service.wire.http2.streams import Streams
from penstock.service.wire.limits import ServerLimits

CONNECTION_WINDOW = 1_048_576
"""Bytes of bodies that a peer may send, over all streams, before we say that there may be more."""

SUDDEN = 0.005
"""Seconds: who gives up a call later than that did wait for it."""

FEW_SETTINGS = 60
"""Bytes of settings that are no more trouble than any frame."""

PARTING = b"penstock"
"""What our last ping says: when it comes back, the peer has seen that we are leaving."""

PATIENCE_TO_PART = 1.0
"""Seconds that we wait for it."""


class Control:
    """The part of a session that is not about calls.

    - `closed`: no more is to be read; what there is to write is written, and the connection closed.
    """

    __slots__ = (
        "_acked",
        "_began",
        "_final",
        "_last",
        "_limits",
        "_now",
        "_parting",
        "_patience",
        "_progress",
        "_stream_window",
        "_used",
        "closed",
        "streams",
    )

    def __init__(self, limits: ServerLimits, streams: Streams, now: float) -> None:
        self._limits, self.streams = limits, streams
        self.closed = False
        self._patience = FloodBudget(now)
        self._now = self._began = self._used = now
        self._acked = False  # the peer has seen our settings
        self._last = 0  # the peer's latest stream
        self._parting: float | None = None  # since when we have been leaving
        self._final = LARGEST  # the last stream that is served
        self._progress = 0, now  # how much of what had to wait had left, and when that last changed
        self._stream_window = min(max(limits.body + FRAME_SIZE, WINDOW), LARGEST)
        ours = [
            (SettingId.MAX_CONCURRENT_STREAMS, limits.calls),
            (SettingId.INITIAL_WINDOW_SIZE, self._stream_window),
            (SettingId.MAX_HEADER_LIST_SIZE, limits.head),
        ]
        self.streams.write(settings(ours) + window_update(0, CONNECTION_WINDOW - WINDOW))

    # ---------------------------------------------------------------- frames

    def _on_priority(self, flags: int, id: int, payload: bytes) -> None:
        """Which stream matters more than which, we do not ask."""
        self._patience.spend(self._now)
        if not id:
            raise SessionError(Code.PROTOCOL_ERROR, "PRIORITY: expected a stream")
        if len(payload) != 5:
            raise StreamError(Code.FRAME_SIZE_ERROR)

    def _on_reset(self, flags: int, id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise SessionError(Code.FRAME_SIZE_ERROR, "RST_STREAM: expected 4 bytes")
        self._check_not_idle(id)
        stream = self.streams.open.get(id)
        if stream is None:
            self._patience.spend(self._now)
            return
        if self._now - stream.begun < SUDDEN:
            self._patience.spend(self._now)
        self._forget(id)
        self.streams.lose(stream)

    def _on_settings(self, flags: int, id: int, payload: bytes) -> None:
        if id:
            raise SessionError(Code.PROTOCOL_ERROR, "SETTINGS: expected no stream")
        if flags & ACK:
            if payload:
                raise SessionError(Code.FRAME_SIZE_ERROR, "SETTINGS: expected an empty acknowledgement")
            self._acked = True
            return
        self._patience.spend(self._now, 1 + len(payload) // FEW_SETTINGS)
        smallest_table, window = TABLE_SIZE, None
        for name, value in read_settings(payload):
            if name == SettingId.INITIAL_WINDOW_SIZE:
                window = value  # of many in a frame, the last one counts
            elif name == SettingId.HEADER_TABLE_SIZE:
                smallest_table = min(smallest_table, value)
        if window is not None:
            self.streams.resize(window)
        if smallest_table < TABLE_SIZE:
            self.streams.shrink_table()
        self.streams.write(frame(SETTINGS, ACK, 0))

    def _on_push(self, flags: int, id: int, payload: bytes) -> None:
        raise SessionError(Code.PROTOCOL_ERROR, "PUSH_PROMISE: expected from servers alone")

    def _on_ping(self, flags: int, id: int, payload: bytes) -> None:
        if id:
            raise SessionError(Code.PROTOCOL_ERROR, "PING: expected no stream")
        if len(payload) != 8:
            raise SessionError(Code.FRAME_SIZE_ERROR, "PING: expected 8 bytes")
        self._patience.spend(self._now)
        if not flags & ACK:
            self.streams.write(frame(PING, ACK, 0, payload))
        elif payload == PARTING and self._parting is not None:
            self._part()

    def _on_goaway(self, flags: int, id: int, payload: bytes) -> None:
        if id:
            raise SessionError(Code.PROTOCOL_ERROR, "GOAWAY: expected no stream")
        if len(payload) < 8:
            raise SessionError(Code.FRAME_SIZE_ERROR, "GOAWAY: expected 8 bytes or more")
        self._patience.spend(self._now)
        if self._parting is None:
            self._parting = self._now
        self._part()

    def _on_window_update(self, flags: int, id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise SessionError(Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE: expected 4 bytes")
        self._patience.spend(self._now)
        if id:
            self._check_not_idle(id)
        more = read_number(payload)[0] & LARGEST
        if more:
            self.streams.opened(id, more)
        elif id:
            raise StreamError(Code.PROTOCOL_ERROR)
        else:
            raise SessionError(Code.PROTOCOL_ERROR, "WINDOW_UPDATE 0: expected at least 1")

    def _check_not_idle(self, id: int) -> None:
        if id > self._last or not id & 1:
            raise SessionError(Code.PROTOCOL_ERROR, f"stream {id}: expected one that was opened")

    def _forget(self, id: int) -> None:
        """A stream is over before it was whole."""

    # ---------------------------------------------------------------- time

    def sweep(self, now: float) -> None:
        """End what takes too long."""
        self._now = now
        try:
            self._check_times(now)
        except SessionError as fault:
            self.end(fault.code, fault.text)

    def _check_times(self, now: float) -> None:
        limits, streams = self._limits, self.streams
        if not self._acked and now - self._began > limits.reading:
            raise SessionError(Code.SETTINGS_TIMEOUT, "our settings are not acknowledged")
        if streams.progress != self._progress[0] or not streams.unsent:
            self._progress = streams.progress, now
        elif now - self._progress[1] > limits.stalled:
            raise SessionError(Code.ENHANCE_YOUR_CALM, "answers are not taken")
        if self._parting is not None and now - self._parting > PATIENCE_TO_PART:
            self._part()
        if streams.open:
            self._used = now
        elif now - self._used > limits.idle:
            self.drain(now)  # not at once: a call may be on its way
        for stream in [one for one in streams.open.values() if not one.ended and one.listener is None]:
            if now - stream.begun > limits.reading:
                self._patience.spend(now)
                self._forget(stream.id)
                streams.reset(stream, Code.CANCEL)

    # ---------------------------------------------------------------- the end

    def drain(self, now: float) -> None:
        """Say that no more calls are taken, and take those that were on their way: a peer learns it a while later."""
        if self._parting is None and not self.closed:
            self._parting = now
            self.streams.write(goaway(LARGEST, Code.NO_ERROR) + frame(PING, 0, 0, PARTING))

    def _part(self) -> None:
        """Say which stream is the last."""
        if self._final == LARGEST:
            self._final = self._last
            self.streams.write(goaway(self._last, Code.NO_ERROR))
        self.settle()

    def settle(self) -> None:
        """Close, if we are leaving and all is answered."""
        if self._final != LARGEST and not self.streams.open:
            self.closed = True

    def end(self, code: Code, text: str) -> None:
        """End the session, and say why."""
        if not self.closed:
            self.streams.write(goaway(self._last, code, text))
            self.closed = True
            self.streams.lose_all()

    def _refuse(self, id: int, code: Code) -> None:
        """A stream ends by a fault of the peer."""
        self._patience.spend(self._now)
        self._forget(id)
        stream = self.streams.open.get(id)
        if stream is None:
            self.streams.drop(id, code)
        else:
            self.streams.reset(stream, code)
