"""An HTTP/1.1 connection: bytes to calls, and answers to bytes.

Each request is handed over as soon as it is complete, so pipelined requests form one batch. Answers are sent in the
order of the requests, in one write per batch. After a refused request the connection closes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from penstock.service.wire.calls import Call, Connection, Head, Header, Peer
from penstock.service.wire.http1.chunked import Unchunker
from penstock.service.wire.http1.head import UNREAD, EmptyLine, Http1Request
from penstock.service.wire.http1.responses import CONTINUE, LENGTHS, SIZES, encode_answer, length
from penstock.service.wire.problems import RefusedRequest, head_too_large, malformed, too_slow
from penstock.service.wire.traffic import Traffic

_LINE_END = b"\r\n"
_EMPTY_LINES = b"\r\n" * 64  # more than a sloppy client sends
_HEAD_END = b"\r\n\r\n"
_NOTHING = (b"", b"\r")  # no byte of a request yet


class Http1Call(Call):
    """A request, and its place in the order of answers."""

    __slots__ = ("answered", "connection", "request")

    expires = None  # HTTP/1.1 has no deadline

    def __init__(self, connection: Http1, request: Http1Request, body: bytes) -> None:
        self.connection = connection
        self.request = request
        self.method, self.path, self.query, self.headers = request.asked
        self.body = body
        self.peer = connection.peer
        self.answered = b""

    @property
    def gone(self) -> bool:
        return self.connection.gone

    def answer(self, head: Head, body: bytes = b"", extra: Sequence[Header] = ()) -> None:
        if self.answered:
            return
        connection = self.connection
        traffic = connection.traffic
        start = head.http1
        if start is None or extra or not self.request.plain:
            self.answered = encode_answer(self.request, head, body, extra, traffic.date)
        else:
            size = len(body)
            self.answered = b"".join((start, traffic.date, LENGTHS[size] if size < SIZES else length(size), body))
        if connection.calls and connection.calls[0] is self:
            traffic.batch.wrote(connection)


class Http1(Connection):
    """A connection that speaks HTTP/1.1."""

    __slots__ = (
        "_blocked",
        "_buffer",
        "_chunks",
        "_continue",
        "_draining",
        "_dropped",
        "_full",
        "_last",
        "_lingers",
        "_needed",
        "_partial",
        "_progress",
        "_request",
        "_seen",
        "_since",
        "_transport",
        "_unsent",
        "calls",
        "gone",
        "peer",
        "traffic",
    )

    def __init__(self, traffic: Traffic, peer: Peer) -> None:
        self.traffic, self.peer = traffic, peer
        self.calls: deque[Http1Call] = deque()  # those whose answers are not written yet, in order
        self.gone = False
        # An incomplete request.
        self._partial = False
        self._buffer = bytearray()  # received and not yet parsed
        self._needed = 0  # bytes that the buffer must hold before parsing goes on
        self._request: Http1Request | None = None  # its head, while its body is incomplete
        self._chunks: Unchunker | None = None  # its chunked body
        self._continue = False  # a 100 Continue is due, after all earlier answers
        # Flow control and closing.
        self._blocked = False  # the write buffer is full
        self._full = False  # reading is paused: the write buffer is full, or too many calls are under way
        self._draining = traffic.retiring  # the incomplete request, if any, is the last
        self._last = False  # no more calls are taken; the connection closes when all are answered
        self._dropped = False  # input was discarded
        self._lingers = False  # all is answered and the write side is shut; the peer is to close
        # For the sweep: a count of steps, its value and the time when it last changed, and the unsent bytes then.
        self._progress = 0
        self._seen = -1
        self._since = 0.0
        self._unsent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=self.traffic.limits.unsent)
        self.traffic.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self._stop_taking()
        self.calls.clear()
        self.traffic.leave(self)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._needed or self._full:
                return
            data = bytes(buffer)
            buffer.clear()
        try:
            at = self._take(data)
        except RefusedRequest as refusal:
            self._refuse(refusal)
            return
        if at < len(data):
            self._keep(data[at:])
        if self._draining:
            self._stop_if_idle()

    def eof_received(self) -> bool:
        """Answer what was taken, then close. Over TLS the peer cannot read any more, so close at once."""
        self._stop_taking()
        self._dropped = False  # nothing more arrives, so closing at once loses no answer
        return bool(self.calls) and not self.peer.secure

    def pause_writing(self) -> None:
        self._blocked = True
        self._pause()

    def resume_writing(self) -> None:
        self._blocked = False
        self.flush()

    @property
    def held(self) -> int:
        return len(self._buffer) + (0 if self._chunks is None else len(self._chunks.body))

    def _take(self, data: bytes) -> int:
        """Take the complete requests; return the offset of the first incomplete one."""
        if self._last:
            return 0
        traffic, calls = self.traffic, self.calls
        requests, batch, most = traffic.requests, traffic.batch, traffic.limits.calls
        at, size, request = 0, len(data), self._request
        while at < size:
            if request is None:
                end = data.find(_HEAD_END, at) + 4
                if end < 4:
                    return self._await_head(data, at)
                try:
                    request = requests[data[at:end]]
                except EmptyLine:
                    if data.startswith(_EMPTY_LINES, at):
                        raise malformed("expected a request, got empty lines") from None
                    at += 2
                    continue
                at = end
            if request.length < 0:
                at, body = self._unchunk(request, data, at)
                if body is None:
                    return at
            else:
                stop = at + request.length
                if stop > size:
                    self._await_body(request, size - at)
                    return at
                body = data[at:stop]
                at = stop
            call = Http1Call(self, request, body)
            calls.append(call)
            batch.add(call)
            if self._partial:
                self._partial, self._request = False, None
                self._needed, self._continue = 0, False  # the body is here: no 100 Continue is needed
            if not request.keep:
                self._stop_taking()
                return at
            if len(calls) >= most:
                self._pause()
                return at
            request = None
        return at

    def _keep(self, rest: bytes) -> None:
        """Buffer the rest for later, unless no more calls are taken."""
        if self._last:
            self._dropped = True
        else:
            self._buffer += rest

    def _await_head(self, data: bytes, at: int) -> int:
        """Wait for the rest of a head. Errors that show early are reported early."""
        if data.startswith(_LINE_END, at):
            at += 2
        limit = self.traffic.limits.head
        if len(data) - at > limit:
            raise head_too_large(data[at:], limit)
        if data[at:] not in _NOTHING:
            if not data[at : at + 1].isalpha():
                raise malformed("expected a request line")
            if data.count(b"\n", at) != data.count(_LINE_END, at):
                raise malformed("expected lines that end with CR and LF")
            self._await(0)
        return at

    def _await_body(self, request: Http1Request, have: int) -> None:
        if request.expects and not have:
            self._send_continue()
        self._request = request
        self._await(request.length)

    def _unchunk(self, request: Http1Request, data: bytes, at: int) -> tuple[int, bytes | None]:
        """Return the offset where decoding stopped, and the body if it is complete."""
        if self._chunks is None:
            self._chunks = Unchunker(self.traffic.limits)
            if request.expects and at == len(data):
                self._send_continue()
        at = self._chunks.feed(data, at)
        if self._chunks.done:
            body = bytes(self._chunks.body)
            self._chunks = None
            return at, body
        self._request = request
        self._await(0)
        if self._chunks.paused:
            self._pause()  # until the next turn, so that the loop serves other connections
            self.traffic.batch.wrote(self)
        return at, None

    def _await(self, needed: int) -> None:
        self._needed = needed
        if not self._partial:
            self._partial = True
            self._progress += 1

    def _pause(self) -> None:
        self._full = True
        if self._transport.is_reading():
            self._transport.pause_reading()

    def _resume(self) -> None:
        self._full = False
        if not self._transport.is_reading() and not self._transport.is_closing():
            self._transport.resume_reading()

    def _resume_parsing(self) -> None:
        """Parse the buffer, then read from the transport again."""
        self._full = False
        data = bytes(self._buffer)
        self._buffer.clear()
        self.data_received(data)
        if not self._full:
            self._resume()

    def flush(self) -> None:
        calls = self.calls
        if not self._blocked and calls:
            answer = calls[0].answered
            if answer:
                calls.popleft()
                if calls and calls[0].answered:
                    answer = self._join(answer)
                self._progress += 1
                self._transport.write(answer)
        if self._full or self._last or self._continue:
            self._flushed()

    def _join(self, first: bytes) -> bytes:
        calls, ready = self.calls, [first]
        while calls and calls[0].answered:
            ready.append(calls.popleft().answered)
        return b"".join(ready)

    def _flushed(self) -> None:
        """Go on with what waited for answers to be written: reading, a 100 Continue, closing."""
        # Half of the calls must be answered first; else every answer would parse the rest of a burst again.
        if self._full and not (self._last or self._blocked) and len(self.calls) <= self.traffic.limits.calls // 2:
            self._resume_parsing()
        if not self.calls:
            if self._continue:
                self._send_continue()
            if self._last:
                self._finish()

    def _send_continue(self) -> None:
        self._continue = bool(self.calls)
        if not self._continue:
            self._transport.write(CONTINUE)

    def _refuse(self, refusal: RefusedRequest) -> None:
        """Answer a refused request, after the answers before it, and close."""
        call = Http1Call(self, UNREAD, b"")
        self.calls.append(call)
        call.answer(refusal.head, refusal.body)
        self._stop_taking()
        self._dropped = True

    def _stop_taking(self) -> None:
        self._last = True
        self._partial = self._continue = False
        self._request = self._chunks = None
        self._buffer.clear()
        if self.calls:
            last = self.calls[-1]
            last.request = last.request._replace(keep=False, plain=False)

    def _finish(self) -> None:
        """Close after the last answer. If input was discarded, shut only the write side: a reset could lose answers."""
        if self._lingers or self._transport.is_closing():
            return
        self._progress += 1
        if self._dropped and self._transport.can_write_eof():
            self._lingers = True
            self._resume()
            try:
                self._transport.write_eof()
            except OSError:  # the peer has gone, which the transport does not know yet
                self.abort()
        else:
            self._transport.close()

    def retire(self) -> None:
        self._draining = True
        if self.calls and not self.calls[-1].answered:  # the last answer is not written yet, so it can announce the end
            self.drain()

    def drain(self) -> None:
        self._draining = True
        self._stop_if_idle()
        if self._last and not self.calls:
            self._finish()

    def _stop_if_idle(self) -> None:
        if not self._partial and not self._full:
            self._stop_taking()

    def abort(self) -> None:
        self._transport.abort()

    def sweep(self, now: float) -> None:
        unsent = self._transport.get_write_buffer_size()
        moved = self._progress != self._seen or unsent < self._unsent
        self._unsent = unsent
        if moved:
            self._seen, self._since = self._progress, now
            return
        waited, limits = now - self._since, self.traffic.limits
        if unsent or self._lingers or self._transport.is_closing():
            if waited >= limits.stalled:
                self.abort()
        elif self._partial:
            if waited >= limits.reading:
                self._refuse(too_slow(limits.reading))
        elif not self.calls and waited >= limits.idle:
            self.drain()
