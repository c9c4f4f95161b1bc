"""A session of HTTP/2, as its server: bytes in, calls up, bytes out. No socket, and time is an argument.

What the peer does wrong ends a stream or the session, with the protocol's own error. What it may do, yet only to be a
nuisance, its `Patience` counts. A header block that was seen before, while the table it refers to stays as it is, is
not read again: clients send the same one all day.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.service.wire.calls import Call, Header, Listener, Openers, Peer
from penstock.service.wire.http2.control import CONNECTION_WINDOW, Control
from penstock.service.wire.http2.frames import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE,
    HEAD,
    HEADERS,
    LARGEST,
    PADDED,
    PREFACE,
    PRIORITISED,
    SETTINGS,
    Code,
    SessionError,
    StreamError,
    frame,
    read_head,
    unpadded,
    window_update,
)
from penstock.service.wire.http2.head import Http2Request, check_trailers, read
from penstock.service.wire.http2.hpack import Decoder, encode
from penstock.service.wire.http2.streams import Stream, Streams
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.problems import refuse_body, refuse_head

KNOWN, KNOWN_SIZE = 64, 1_024
"""How many header blocks are remembered, and how large one may be."""

BODIES = 8
"""How many of the largest bodies may be under way at once."""

SMALL = 64
"""Bytes: a smaller frame of a longer body is more trouble than it is worth."""

LARGE_HEAD = 20
"""Points that a head costs which is too large: a few bytes can name a large field again and again."""

CONTINUE = encode([(b":status", b"100")])

TOO_LARGE = Http2Request(b"GET", b"")
"""Stands for a request whose head is too large to be read."""


class Session(Control):
    """What one peer and we have said to each other.

    - `take` gets each call that has been read whole; `wrote` is called when there is something to write.
    - `date` makes the header of that name, encoded.
    """

    __slots__ = (
        "_block",
        "_block_began",
        "_block_ends",
        "_block_stream",
        "_cut",
        "_decoder",
        "_greeted",
        "_handlers",
        "_have",
        "_known",
        "_known_at",
        "_need",
        "_openers",
        "_peer",
        "_pieces",
        "_take",
        "_window",
        "held",
    )

    def __init__(
        self,
        limits: ServerLimits,
        peer: Peer,
        take: Callable[[Call], None],
        wrote: Callable[[], None],
        now: float,
        openers: Openers | None = None,
        date: Callable[[], bytes] | None = None,
    ) -> None:
        super().__init__(limits, Streams(wrote, date), now)
        self._peer, self._take, self._openers = peer, take, openers or {}
        self._decoder = Decoder()
        self._known: dict[bytes, Http2Request] = {}
        self._known_at = 0  # how often the decoder's table had changed
        self._greeted = False  # the peer has sent its preface and its settings
        self._pieces: list[bytes] = []  # of what is not yet a whole frame
        self._have, self._need, self._cut = 0, len(PREFACE) + HEAD, now  # since when
        self._block: bytearray | None = None  # a header block that CONTINUATIONs go on with
        self._block_stream, self._block_ends, self._block_began = 0, False, now
        self._window = CONNECTION_WINDOW  # what the peer may still send
        self.held = 0  # bytes of bodies that are not yet whole
        self._handlers: tuple[Callable[[int, int, bytes], None], ...] = (
            self._on_data,
            self._on_headers,
            self._on_priority,
            self._on_reset,
            self._on_settings,
            self._on_push,
            self._on_ping,
            self._on_goaway,
            self._on_window_update,
            self._on_continuation,
        )

    # ---------------------------------------------------------------- bytes in

    def receive(self, data: bytes, now: float) -> None:
        """The peer has sent something."""
        if self.closed:
            return
        self._now = self._used = now
        if self._need:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
        try:
            at = self._frames(data, 0 if self._greeted else self._greet(data))
        except SessionError as fault:
            self.end(fault.code, fault.text)
            return
        self._have = len(data) - at
        if self._have:
            self._cut = now
            self._pieces.append(data[at:])
            self._need = HEAD if self._have < HEAD else HEAD + (read_head(self._pieces[0])[0] >> 8)
        else:
            self._need = 0
        self.streams.send_queued()
        self._patience.earn(self.streams.useful())
        self.settle()

    def _greet(self, data: bytes) -> int:
        if not data.startswith(PREFACE) or data[len(PREFACE) + 3] != SETTINGS or data[len(PREFACE) + 4]:
            raise SessionError(Code.PROTOCOL_ERROR, "expected the preface of HTTP/2, and settings")
        self._greeted = True
        return len(PREFACE)

    def _frames(self, data: bytes, at: int) -> int:
        """Go through all frames that are whole; up to where that was."""
        end, handlers = len(data), self._handlers
        while end - at >= HEAD:
            kind, flags, id = read_head(data, at)
            id &= LARGEST
            start = at + HEAD
            at = start + (kind >> 8)
            if kind >> 8 > FRAME_SIZE:
                raise SessionError(Code.FRAME_SIZE_ERROR, f"a frame: expected at most {FRAME_SIZE} bytes")
            if at > end:
                return start - HEAD
            kind &= 0xFF
            if self._block is not None and (kind != CONTINUATION or id != self._block_stream):
                raise SessionError(Code.PROTOCOL_ERROR, "expected CONTINUATION")
            try:
                if kind == HEADERS and flags | END_STREAM == END_STREAM | END_HEADERS:
                    self._on_block(id, data[start:at], flags & END_STREAM)  # as nearly all are
                elif kind < len(handlers):
                    handlers[kind](flags, id, data[start:at])
                else:
                    self._patience.spend(self._now)  # of a kind that we do not know
            except StreamError as fault:
                self._refuse(id, fault.code)
        return at

    def _check_times(self, now: float) -> None:
        latest = now - self._limits.reading
        if (self._need and self._cut < latest) or (self._block is not None and self._block_began < latest):
            raise SessionError(Code.ENHANCE_YOUR_CALM, "a frame or a header block that does not end")
        super()._check_times(now)

    # ---------------------------------------------------------------- heads

    def _on_headers(self, flags: int, id: int, payload: bytes) -> None:
        payload = unpadded(payload, flags)
        if flags & PRIORITISED:
            if len(payload) < 5:
                raise SessionError(Code.FRAME_SIZE_ERROR, "HEADERS: expected a priority")
            payload = payload[5:]
        if flags & END_HEADERS:
            self._on_block(id, payload, flags & END_STREAM)
        else:
            self._block, self._block_stream, self._block_ends = bytearray(payload), id, bool(flags & END_STREAM)
            self._block_began = self._now

    def _on_continuation(self, flags: int, id: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise SessionError(Code.PROTOCOL_ERROR, "CONTINUATION: expected HEADERS before")
        block += payload
        if len(block) > self._limits.head:
            raise SessionError(Code.ENHANCE_YOUR_CALM, f"a header block: expected at most {self._limits.head} bytes")
        if len(payload) < SMALL:
            self._patience.spend(self._now)
        if flags & END_HEADERS:
            self._block = None
            self._on_block(id, bytes(block), self._block_ends)

    def _on_block(self, id: int, block: bytes, ends: int) -> None:
        """A header block is whole."""
        streams = self.streams
        if id <= self._last or not id & 1:
            self._on_later_block(id, block, ends)
            return
        self._last = id
        request = self._known.get(block)
        if request is None:
            request = self._read(id, block)
            if request is None:
                return
        if id > self._final:
            raise StreamError(Code.REFUSED_STREAM)  # we are leaving: elsewhere it may be served
        if len(streams.open) + streams.abandoned >= self._limits.calls:
            raise StreamError(Code.REFUSED_STREAM)
        if streams.unsent > self._limits.unsent:
            raise StreamError(Code.ENHANCE_YOUR_CALM)
        stream = streams.open[id] = Stream(streams, id, request, self._peer, self._now)
        stream.window = self._stream_window
        if request.path in self._openers:
            stream.listener = self._openers[request.path](stream)
            if ends:
                stream.ended = True
                stream.listener.ended()
        elif ends:
            self._complete(stream)
        elif request.expects:
            streams.write(frame(HEADERS, END_HEADERS, id, CONTINUE))

    def _read(self, id: int, block: bytes) -> Http2Request | None:
        """The request of a block; None where it has been refused."""
        fields = self._decode(block)
        if fields is None:
            stream = self.streams.open[id] = Stream(self.streams, id, TOO_LARGE, self._peer, self._now)
            refuse_head(stream, self._limits)
            self._patience.spend(self._now, LARGE_HEAD)
            return None
        request = read(fields)
        if not self._decoder.changed and len(block) <= KNOWN_SIZE:
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[block] = request
        return request

    def _decode(self, block: bytes) -> list[Header] | None:
        """The fields of a block; None where they are too many or too large."""
        limits = self._limits
        fields, size, sound = self._decoder.decode(block, limits.head)
        if self._decoder.changed:
            self._known.clear()
        if not sound:
            raise StreamError(Code.PROTOCOL_ERROR)
        return fields if size <= limits.head and len(fields) <= limits.headers else None

    def _on_later_block(self, id: int, block: bytes, ends: int) -> None:
        """Trailers, or a mistake."""
        fields = self._decode(block)  # in any case, to keep the table
        stream = self.streams.open.get(id)
        if stream is None:
            if id in self.streams.dropped:
                return  # it was on its way when we reset the stream
            if id & 1:
                raise SessionError(Code.STREAM_CLOSED, f"HEADERS on stream {id}: expected one that is open")
            raise SessionError(Code.PROTOCOL_ERROR, f"HEADERS on stream {id}: expected an odd number")
        if stream.ended:
            raise StreamError(Code.STREAM_CLOSED)
        if not ends:
            raise StreamError(Code.PROTOCOL_ERROR)
        check_trailers(fields or ())
        self._ended(stream)

    # ---------------------------------------------------------------- bodies

    def _on_data(self, flags: int, id: int, payload: bytes) -> None:
        size = len(payload)
        self._window -= size
        if self._window < CONNECTION_WINDOW // 2:
            self._reopen()
        stream = self.streams.open.get(id)
        if stream is None or stream.ended:
            self._on_late_data(id, stream)
            return
        stream.window -= size
        if stream.window < 0:
            raise StreamError(Code.FLOW_CONTROL_ERROR)
        if flags & PADDED:
            payload = unpadded(payload, flags)
        if not flags & END_STREAM and len(payload) < SMALL:
            self._patience.spend(self._now)
        if stream.listener is not None:
            self._pass_on(stream, stream.listener, payload, flags)
        elif flags & END_STREAM and stream.pieces is None and len(payload) <= self._limits.body:
            stream.body = payload
            self._complete(stream)  # as nearly all are
        else:
            self._gather(stream, payload, flags)

    def _reopen(self) -> None:
        """Open the window of the connection, unless the peer did not keep to it."""
        if self._window < 0:
            raise SessionError(Code.FLOW_CONTROL_ERROR, "DATA: expected no more than the window")
        self.streams.write(window_update(0, CONNECTION_WINDOW - self._window))
        self._window = CONNECTION_WINDOW

    def _on_late_data(self, id: int, stream: Stream | None) -> None:
        self._check_not_idle(id)
        if stream is not None or id not in self.streams.dropped:
            raise StreamError(Code.STREAM_CLOSED)
        self._patience.spend(self._now)  # it was on its way when we reset the stream

    def _gather(self, stream: Stream, payload: bytes, flags: int) -> None:
        """One more piece of a body."""
        if stream.pieces is None:
            stream.pieces = []
        stream.pieces.append(payload)
        stream.size += len(payload)
        self.held += len(payload)
        if stream.size > self._limits.body:
            self._forget(stream.id)
            stream.ended = bool(flags & END_STREAM)
            refuse_body(stream, self._limits)
        elif flags & END_STREAM:
            self._ended(stream)
        elif self.held > BODIES * self._limits.body:
            raise StreamError(Code.ENHANCE_YOUR_CALM)
        elif stream.window < self._stream_window // 2:
            self._reopen_stream(stream)

    def _ended(self, stream: Stream) -> None:
        if stream.listener is not None:
            stream.ended = True
            stream.listener.ended()
            return
        if stream.pieces is not None:
            stream.body = b"".join(stream.pieces)
            self._forget(stream.id)
        self._complete(stream)

    def _complete(self, stream: Stream) -> None:
        """A request is whole."""
        length = stream.request.length
        if length is not None and length != len(stream.body):
            raise StreamError(Code.PROTOCOL_ERROR)
        stream.ended = True
        self._take(stream)

    def _pass_on(self, stream: Stream, listener: Listener, payload: bytes, flags: int) -> None:
        """To whoever listens."""
        if payload:
            listener.received(payload)
        if flags & END_STREAM:
            self._ended(stream)
        elif stream.window < self._stream_window // 2:
            self._reopen_stream(stream)

    def _reopen_stream(self, stream: Stream) -> None:
        if not stream.lost:
            self.streams.write(window_update(stream.id, self._stream_window - stream.window))
            stream.window = self._stream_window

    def _forget(self, id: int) -> None:
        stream = self.streams.open.get(id)
        if stream is not None and stream.pieces is not None:
            self.held -= stream.size
            stream.pieces, stream.size = None, 0
