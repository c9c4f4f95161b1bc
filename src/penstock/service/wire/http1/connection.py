"""HTTP/1.1: bytes to calls, answers to bytes, for one connection.

A read is cut into requests, and each is handed over as soon as it is whole. Answers leave in the order of the requests,
however many are under way, in one write per batch. After a request that cannot be taken the connection closes.
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
_EMPTY_LINES = b"\r\n" * 64  # more of them are no slip of a client
_HEAD_END = b"\r\n\r\n"
_NOTHING = (b"", b"\r")  # of a request


class Http1Call(Call):
    """One request, and its place in the order of answers."""

    __slots__ = ("answered", "connection", "request")

    expires = None  # HTTP/1.1 has no way to say so

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
        self.calls: deque[Http1Call] = deque()  # taken and not yet written, in order
        self.gone = False
        # A request that has come in part.
        self._partial = False
        self._buffer = bytearray()  # read and not yet used
        self._needed = 0  # no use in looking at the buffer before it holds so much
        self._request: Http1Request | None = None  # whose head has been read, and whose body is missing
        self._chunks: Unchunker | None = None  # ... if it comes in chunks
        self._continue = False  # a 100 Continue is owed, once all earlier answers are out
        # Whether to read and to write.
        self._blocked = False  # the peer leaves too much unread
        self._full = False  # that, or too many calls are under way: nothing is read
        self._draining = traffic.retiring  # the request that has come in part, if any, is the last
        self._last = False  # no more calls are taken; it closes when all are answered
        self._dropped = False  # something was not read that the peer has sent
        self._lingers = False  # all is answered, and the peer has been told that nothing more will come
        # For the sweep: what has happened so far, how much of it was seen when, and what was unsent then.
        self._progress = 0
        self._seen = -1
        self._since = 0.0
        self._unsent = 0

    # ------------------------------------------------------------ what the transport tells

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
            self._drain_on()

    def eof_received(self) -> bool:
        """The peer sends no more. It may still read, except over TLS, where closing closes both ways."""
        self._stop_taking()
        self._dropped = False  # and nothing is lost by closing at once
        return bool(self.calls) and not self.peer.secure

    def pause_writing(self) -> None:
        self._blocked = True
        self._pause()

    def resume_writing(self) -> None:
        self._blocked = False
        self.flush()

    # ------------------------------------------------------------ reading

    @property
    def held(self) -> int:
        return len(self._buffer) + (0 if self._chunks is None else len(self._chunks.body))

    def _take(self, data: bytes) -> int:
        """Take the calls that are whole; returns where the first one begins that is not."""
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
                        raise malformed("expected a request, not one empty line after the other") from None
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
                self._needed, self._continue = 0, False  # who has sent the body waits for no 100 Continue
            if not request.keep:
                self._stop_taking()
                return at
            if len(calls) >= most:
                self._pause()
                return at
            request = None
        return at

    def _keep(self, rest: bytes) -> None:
        """What was not taken is for later, unless nothing is taken any more."""
        if self._last:
            self._dropped = True
        else:
            self._buffer += rest

    def _await_head(self, data: bytes, at: int) -> int:
        """A head has begun. What can be known to be wrong with it is said before all of it has come."""
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
        """The body, if its end has come, and where what follows begins."""
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
        if self._chunks.tired:
            self._pause()  # until the next turn: a loop may read again and again before it looks at anybody else
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

    def _go_on(self) -> None:
        """Read again: first what is here, then what the peer sends."""
        self._full = False
        data = bytes(self._buffer)
        self._buffer.clear()
        self.data_received(data)
        if not self._full:
            self._resume()

    # ------------------------------------------------------------ writing

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
        """What had to wait for answers to leave."""
        # Half of the calls must be out, or the rest of a burst would be looked at anew for each of them.
        if self._full and not (self._last or self._blocked) and len(self.calls) <= self.traffic.limits.calls // 2:
            self._go_on()
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
        """Say what is wrong, after the answers to what came before it, and close."""
        call = Http1Call(self, UNREAD, b"")
        self.calls.append(call)
        call.answer(refusal.head, refusal.body)
        self._stop_taking()
        self._dropped = True

    # ------------------------------------------------------------ ending

    def _stop_taking(self) -> None:
        self._last = True
        self._partial = self._continue = False
        self._request = self._chunks = None
        self._buffer.clear()
        if self.calls:
            last = self.calls[-1]
            last.request = last.request._replace(keep=False, plain=False)

    def _finish(self) -> None:
        """All is answered. To close with input unread would take the answers away before the peer has read them."""
        if self._lingers or self._transport.is_closing():
            return
        self._progress += 1
        if self._dropped and self._transport.can_write_eof():
            self._lingers = True
            self._resume()
            try:
                self._transport.write_eof()
            except OSError:  # the peer is gone, and the transport has not noticed
                self.abort()
        else:
            self._transport.close()

    def retire(self) -> None:
        self._draining = True
        if self.calls and not self.calls[-1].answered:  # else it is too late to tell the peer with this answer
            self.drain()

    def drain(self) -> None:
        self._draining = True
        self._drain_on()
        if self._last and not self.calls:
            self._finish()

    def _drain_on(self) -> None:
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
