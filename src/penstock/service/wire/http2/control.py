"""The connection level of HTTP/2: settings, pings, windows, resets, time limits, and closing in good order."""

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
"""Bytes of bodies that a peer may send over all streams before it needs a window update."""

SUDDEN = 0.005
"""Seconds. A reset within this time of its request counts as part of a flood (rapid reset)."""

FEW_SETTINGS = 60
"""Bytes of settings that one point of the flood budget covers."""

FINAL_PING = b"penstock"
"""The payload of the ping sent with a GOAWAY. Its acknowledgement shows that the peer has read the GOAWAY."""

FINAL_PING_WAIT = 1.0
"""Seconds to wait for that acknowledgement."""


class Control:
    """The connection-level state of a session, and the handlers of the frames that change it.

    - `closed`: no more frames are read. Pending output is written, then the connection closes.
    - `last_stream`: the highest stream that the peer has opened; `final_stream`: the highest that is served.
    - `stream_window`: the receive window of a new stream.
    - `now`: the time of the current read or sweep; `used`: when the connection was last used.
    """

    __slots__ = (
        "_acknowledged",
        "_began",
        "_draining_since",
        "_limits",
        "_progress",
        "budget",
        "closed",
        "final_stream",
        "last_stream",
        "now",
        "stream_window",
        "streams",
        "used",
    )

    def __init__(self, limits: ServerLimits, streams: Streams, now: float) -> None:
        self._limits, self.streams = limits, streams
        self.closed = False
        self.budget = FloodBudget(now)
        self.now = self._began = self.used = now
        self._acknowledged = False  # the peer has acknowledged our settings
        self.last_stream = 0
        self._draining_since: float | None = None
        self.final_stream = LARGEST
        self._progress = 0, now  # bytes of delayed output sent so far, and when that number last changed
        self.stream_window = min(max(limits.body + FRAME_SIZE, WINDOW), LARGEST)
        ours = [
            (SettingId.MAX_CONCURRENT_STREAMS, limits.calls),
            (SettingId.INITIAL_WINDOW_SIZE, self.stream_window),
            (SettingId.MAX_HEADER_LIST_SIZE, limits.head),
        ]
        self.streams.write(settings(ours) + window_update(0, CONNECTION_WINDOW - WINDOW))

    def priority(self, flags: int, id: int, payload: bytes) -> None:
        """Check a PRIORITY frame. Priorities are ignored, as RFC 9113 allows."""
        self.budget.spend(self.now)
        if not id:
            raise SessionError(Code.PROTOCOL_ERROR, "PRIORITY: expected a stream")
        if len(payload) != 5:
            raise StreamError(Code.FRAME_SIZE_ERROR)

    def reset(self, flags: int, id: int, payload: bytes) -> None:
        """Close the stream that the peer has reset."""
        if len(payload) != 4:
            raise SessionError(Code.FRAME_SIZE_ERROR, "RST_STREAM: expected 4 bytes")
        self.check_not_idle(id)
        stream = self.streams.open.get(id)
        if stream is None:
            self.budget.spend(self.now)
            return
        if self.now - stream.begun < SUDDEN:
            self.budget.spend(self.now)
        self.streams.lose(stream)

    def settings(self, flags: int, id: int, payload: bytes) -> None:
        """Apply the peer's settings and acknowledge them."""
        if id:
            raise SessionError(Code.PROTOCOL_ERROR, "SETTINGS: expected no stream")
        if flags & ACK:
            if payload:
                raise SessionError(Code.FRAME_SIZE_ERROR, "SETTINGS: expected an empty acknowledgement")
            self._acknowledged = True
            return
        self.budget.spend(self.now, 1 + len(payload) // FEW_SETTINGS)
        smallest_table, window = TABLE_SIZE, None
        for name, value in read_settings(payload):
            if name == SettingId.INITIAL_WINDOW_SIZE:
                window = value  # of several in one frame, the last one counts
            elif name == SettingId.HEADER_TABLE_SIZE:
                smallest_table = min(smallest_table, value)
        if window is not None:
            self.streams.resize(window)
        if smallest_table < TABLE_SIZE:
            self.streams.shrink_table()
        self.streams.write(frame(SETTINGS, ACK, 0))

    def push_promise(self, flags: int, id: int, payload: bytes) -> None:
        raise SessionError(Code.PROTOCOL_ERROR, "PUSH_PROMISE: a client must not send it")

    def ping(self, flags: int, id: int, payload: bytes) -> None:
        """Acknowledge a ping. The acknowledgement of our final ping sends the second GOAWAY."""
        if id:
            raise SessionError(Code.PROTOCOL_ERROR, "PING: expected no stream")
        if len(payload) != 8:
            raise SessionError(Code.FRAME_SIZE_ERROR, "PING: expected 8 bytes")
        self.budget.spend(self.now)
        if not flags & ACK:
            self.streams.write(frame(PING, ACK, 0, payload))
        elif payload == FINAL_PING and self._draining_since is not None:
            self._refuse_new_streams()

    def goaway(self, flags: int, id: int, payload: bytes) -> None:
        """Take no more streams, because the peer is closing the connection."""
        if id:
            raise SessionError(Code.PROTOCOL_ERROR, "GOAWAY: expected no stream")
        if len(payload) < 8:
            raise SessionError(Code.FRAME_SIZE_ERROR, "GOAWAY: expected 8 bytes or more")
        self.budget.spend(self.now)
        if self._draining_since is None:
            self._draining_since = self.now
        self._refuse_new_streams()

    def window_update(self, flags: int, id: int, payload: bytes) -> None:
        """Open the send window of a stream, or of the connection."""
        if len(payload) != 4:
            raise SessionError(Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE: expected 4 bytes")
        self.budget.spend(self.now)
        if id:
            self.check_not_idle(id)
        more = read_number(payload)[0] & LARGEST
        if more:
            self.streams.opened(id, more)
        elif id:
            raise StreamError(Code.PROTOCOL_ERROR)
        else:
            raise SessionError(Code.PROTOCOL_ERROR, "WINDOW_UPDATE 0: expected at least 1")

    def check_not_idle(self, id: int) -> None:
        """Raise `SessionError` if the peer has never opened this stream."""
        if id > self.last_stream or not id & 1:
            raise SessionError(Code.PROTOCOL_ERROR, f"stream {id}: expected one that was opened")

    def fail_stream(self, id: int, code: Code) -> None:
        """Reset a stream on which the peer broke the protocol."""
        self.budget.spend(self.now)
        stream = self.streams.open.get(id)
        if stream is None:
            self.streams.drop(id, code)
        else:
            self.streams.reset(stream, code)

    def check_times(self, now: float) -> None:
        """End what takes too long: raise `SessionError`, reset a request, or drain an idle connection."""
        limits, streams = self._limits, self.streams
        self.now = now
        if not self._acknowledged and now - self._began > limits.reading:
            raise SessionError(Code.SETTINGS_TIMEOUT, "the settings of the server are not acknowledged")
        if streams.progress != self._progress[0] or not streams.unsent:
            self._progress = streams.progress, now
        elif now - self._progress[1] > limits.stalled:
            raise SessionError(Code.ENHANCE_YOUR_CALM, "answers are not read")
        if self._draining_since is not None and now - self._draining_since > FINAL_PING_WAIT:
            self._refuse_new_streams()
        if streams.open:
            self.used = now
        elif now - self.used > limits.idle:
            self.drain(now)  # in two steps, because a call may be on its way
        for stream in [one for one in streams.open.values() if not one.ended and one.listener is None]:
            if now - stream.begun > limits.reading:
                self.budget.spend(now)
                streams.reset(stream, Code.CANCEL)

    def drain(self, now: float) -> None:
        """Announce the end with a GOAWAY and a ping. Calls that were already on their way are still served."""
        if self._draining_since is None and not self.closed:
            self._draining_since = now
            self.streams.write(goaway(LARGEST, Code.NO_ERROR) + frame(PING, 0, 0, FINAL_PING))

    def _refuse_new_streams(self) -> None:
        """Send the GOAWAY that names the last stream served."""
        if self.final_stream == LARGEST:
            self.final_stream = self.last_stream
            self.streams.write(goaway(self.last_stream, Code.NO_ERROR))
        self.settle()

    def settle(self) -> None:
        """Close the session if it is draining and every call is answered."""
        if self.final_stream != LARGEST and not self.streams.open:
            self.closed = True

    def end(self, code: Code, text: str) -> None:
        """Close the session with an error."""
        if not self.closed:
            self.streams.write(goaway(self.last_stream, code, text))
            self.closed = True
            self.streams.lose_all()
