"""An HTTP/2 connection as its server sees it: bytes in, calls and bytes out. No socket; time is an argument.

A protocol violation ends the stream or the session with the error that RFC 9113 names. Frames that are legal but
useless are limited by `FloodBudget`. Clients repeat the same header block on most requests, so decoded blocks are
cached for as long as the table that they refer to does not change.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.service.wire.calls import Call, Head, Header, Listener, Openers, Peer
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
from penstock.service.wire.problems import RefusedRequest, fields_too_large, too_large

KNOWN, KNOWN_SIZE = 64, 1_024
"""How many header blocks are cached, and the size of the largest."""

BODIES = 8
"""How many bodies of the largest size one connection may send at once."""

SMALL = 64
"""Bytes. A smaller frame of a longer body costs a point of the flood budget."""

LARGE_HEAD = 20
"""Points that an oversized head costs. A few bytes can name a large field of the table many times."""

CONTINUE = encode([(b":status", b"100")])

OVERSIZED = Http2Request(b"GET", b"")
"""Stands for a request whose head is too large to be read."""

GRPC_EXHAUSTED = Head(200, [(b"content-type", b"application/grpc"), (b"grpc-status", b"8")])  # RESOURCE_EXHAUSTED


class Session:
    """One HTTP/2 connection.

    - `take` is called with each request that has been read completely.
    - `wrote` is called when output is pending after there was none.
    - `date` returns the encoded `date` header.
    - `control` is the state of the connection, `streams` the open streams and the pending output.
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
        "_limits",
        "_need",
        "_openers",
        "_peer",
        "_pieces",
        "_take",
        "_window",
        "control",
        "streams",
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
        self._limits, self._peer, self._take, self._openers = limits, peer, take, openers or {}
        self.streams = Streams(wrote, date)
        self.control = control = Control(limits, self.streams, now)
        self._decoder = Decoder()
        self._known: dict[bytes, Http2Request] = {}
        self._greeted = False  # the peer has sent its preface and its settings
        self._pieces: list[bytes] = []  # of a frame that has not come completely
        self._have, self._need, self._cut = 0, len(PREFACE) + HEAD, now  # their bytes, those needed, since when
        self._block: bytearray | None = None  # a header block to be continued by CONTINUATION
        self._block_stream, self._block_ends, self._block_began = 0, False, now
        self._window = CONNECTION_WINDOW  # what the peer may still send
        self._handlers: tuple[Callable[[int, int, bytes], None], ...] = (
            self._on_data,
            self._on_headers,
            control.priority,
            control.reset,
            control.settings,
            control.push_promise,
            control.ping,
            control.goaway,
            control.window_update,
            self._on_continuation,
        )

    def receive(self, data: bytes, now: float) -> None:
        """Read what the peer has sent."""
        control = self.control
        if control.closed:
            return
        control.now = control.used = now
        if self._need:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
        try:
            at = self._frames(data, 0 if self._greeted else self._greet(data))
        except SessionError as error:
            control.end(error.code, error.text)
            return
        self._have = len(data) - at
        if self._have:
            self._cut = now
            self._pieces.append(data[at:])
            self._need = HEAD if self._have < HEAD else HEAD + (read_head(self._pieces[0])[0] >> 8)
        else:
            self._need = 0
        self.streams.send_queued()
        control.budget.earn(self.streams.useful())
        if control.final_stream != LARGEST:  # it is draining
            control.settle()

    def sweep(self, now: float) -> None:
        """End what takes too long."""
        latest = now - self._limits.reading
        try:
            if (self._need and self._cut < latest) or (self._block is not None and self._block_began < latest):
                raise SessionError(Code.ENHANCE_YOUR_CALM, "a frame or a header block does not end")
            self.control.check_times(now)
        except SessionError as error:
            self.control.end(error.code, error.text)

    def _greet(self, data: bytes) -> int:
        """Check the preface and that settings follow; return the offset of the settings."""
        if not data.startswith(PREFACE) or data[len(PREFACE) + 3] != SETTINGS or data[len(PREFACE) + 4]:
            raise SessionError(Code.PROTOCOL_ERROR, "expected the preface of HTTP/2, and settings")
        self._greeted = True
        return len(PREFACE)

    def _frames(self, data: bytes, at: int) -> int:
        """Handle all complete frames; return the offset of the first incomplete one."""
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
                    self._on_block(id, data[start:at], flags & END_STREAM)  # the usual case
                elif kind < len(handlers):
                    handlers[kind](flags, id, data[start:at])
                else:
                    self.control.budget.spend(self.control.now)  # unknown types are ignored, as RFC 9113 demands
            except StreamError as error:
                self.control.fail_stream(id, error.code)
        return at

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
            self._block_began = self.control.now

    def _on_continuation(self, flags: int, id: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise SessionError(Code.PROTOCOL_ERROR, "CONTINUATION: expected HEADERS before")
        block += payload
        if len(block) > self._limits.head:
            raise SessionError(Code.ENHANCE_YOUR_CALM, f"a header block: expected at most {self._limits.head} bytes")
        if len(payload) < SMALL:
            self.control.budget.spend(self.control.now)
        if flags & END_HEADERS:
            self._block = None
            self._on_block(id, bytes(block), self._block_ends)

    def _on_block(self, id: int, block: bytes, ends: int) -> None:
        """Begin the request of a complete header block."""
        streams, control = self.streams, self.control
        if id <= control.last_stream or not id & 1:
            self._on_later_block(id, block, ends)
            return
        control.last_stream = id
        request = self._known.get(block)
        if request is None:
            request = self._read(id, block)
            if request is None:
                return
        if id > control.final_stream:
            raise StreamError(Code.REFUSED_STREAM)  # draining: the client may retry on another connection
        if len(streams.open) + streams.abandoned >= self._limits.calls:
            raise StreamError(Code.REFUSED_STREAM)
        if streams.unsent > self._limits.unsent:
            raise StreamError(Code.ENHANCE_YOUR_CALM)
        stream = streams.open[id] = Stream(streams, id, request, self._peer, control.now)
        stream.window = control.stream_window
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
        """Return the request of a header block, or None if it was refused."""
        fields = self._decode(block)
        if fields is None:
            stream = self.streams.open[id] = Stream(self.streams, id, OVERSIZED, self._peer, self.control.now)
            self._refuse(stream, fields_too_large(self._limits))
            self.control.budget.spend(self.control.now, LARGE_HEAD)
            return None
        request = read(fields)
        if not self._decoder.changed and len(block) <= KNOWN_SIZE:
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[block] = request
        return request

    def _decode(self, block: bytes) -> list[Header] | None:
        """Return the fields of a header block, or None if they are too many or too large."""
        limits = self._limits
        fields, size, sound = self._decoder.decode(block, limits.head)
        if self._decoder.changed:
            self._known.clear()
        if not sound:
            raise StreamError(Code.PROTOCOL_ERROR)
        return fields if size <= limits.head and len(fields) <= limits.headers else None

    def _on_later_block(self, id: int, block: bytes, ends: int) -> None:
        """Handle a header block of an old stream: trailers, or a protocol violation."""
        fields = self._decode(block)  # in any case, because it may change the table
        stream = self.streams.open.get(id)
        if stream is None:
            if id in self.streams.dropped:
                return  # sent before the peer saw our reset
            if id & 1:
                raise SessionError(Code.STREAM_CLOSED, f"HEADERS on stream {id}: expected one that is open")
            raise SessionError(Code.PROTOCOL_ERROR, f"HEADERS on stream {id}: expected an odd number")
        if stream.ended:
            raise StreamError(Code.STREAM_CLOSED)
        if not ends:
            raise StreamError(Code.PROTOCOL_ERROR)
        check_trailers(fields or ())
        self._ended(stream)

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
            self.control.budget.spend(self.control.now)
        if stream.listener is not None:
            self._pass_on(stream, stream.listener, payload, flags)
        elif flags & END_STREAM and stream.pieces is None and len(payload) <= self._limits.body:
            stream.body = payload
            self._complete(stream)  # the usual case
        else:
            self._gather(stream, payload, flags)

    def _reopen(self) -> None:
        """Open the window of the connection again, unless the peer has overrun it."""
        if self._window < 0:
            raise SessionError(Code.FLOW_CONTROL_ERROR, "DATA: expected no more than the window")
        self.streams.write(window_update(0, CONNECTION_WINDOW - self._window))
        self._window = CONNECTION_WINDOW

    def _on_late_data(self, id: int, stream: Stream | None) -> None:
        self.control.check_not_idle(id)
        if stream is not None or id not in self.streams.dropped:
            raise StreamError(Code.STREAM_CLOSED)
        self.control.budget.spend(self.control.now)  # sent before the peer saw our reset

    def _gather(self, stream: Stream, payload: bytes, flags: int) -> None:
        """Add a piece to a body."""
        if stream.pieces is None:
            stream.pieces = []
        stream.pieces.append(payload)
        stream.size += len(payload)
        self.streams.held += len(payload)
        if stream.size > self._limits.body:
            self.streams.drop_body(stream)
            stream.ended = bool(flags & END_STREAM)
            self._refuse(stream, too_large(self._limits.body))
        elif flags & END_STREAM:
            self._ended(stream)
        elif self.streams.held > BODIES * self._limits.body:
            raise StreamError(Code.ENHANCE_YOUR_CALM)
        elif stream.window < self.control.stream_window // 2:
            self._reopen_stream(stream)

    def _ended(self, stream: Stream) -> None:
        if stream.listener is not None:
            stream.ended = True
            stream.listener.ended()
            return
        if stream.pieces is not None:
            stream.body = b"".join(stream.pieces)
            self.streams.drop_body(stream)
        self._complete(stream)

    def _complete(self, stream: Stream) -> None:
        """Hand over a complete request."""
        length = stream.request.length
        if length is not None and length != len(stream.body):
            raise StreamError(Code.PROTOCOL_ERROR)
        stream.ended = True
        self._take(stream)

    def _pass_on(self, stream: Stream, listener: Listener, payload: bytes, flags: int) -> None:
        """Hand a piece of a streaming call to its listener."""
        if payload:
            listener.received(payload)
        if flags & END_STREAM:
            self._ended(stream)
        elif stream.window < self.control.stream_window // 2:
            self._reopen_stream(stream)

    def _reopen_stream(self, stream: Stream) -> None:
        if not stream.lost:
            self.streams.write(window_update(stream.id, self.control.stream_window - stream.window))
            stream.window = self.control.stream_window

    def _refuse(self, stream: Stream, refusal: RefusedRequest) -> None:
        """Answer a request that is too large; a gRPC call gets a gRPC status."""
        if stream.request.grpc:
            stream.answer(GRPC_EXHAUSTED, b"", [(b"grpc-message", refusal.detail.encode())])
        else:
            stream.answer(refusal.head, refusal.body)
