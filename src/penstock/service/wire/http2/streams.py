"""Open streams, and their answers within the flow control windows of the peer. No socket, no clock.

An answer that fits into the windows becomes frames at once. The rest is queued and sent round robin, one frame per
stream, as the peer opens its windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.service.wire.calls import Head, Header, Listener, Peer, StreamingCall
from penstock.service.wire.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE,
    HEADERS,
    LARGEST,
    WINDOW,
    Code,
    SessionError,
    StreamError,
    frame,
    frame_head,
    reset,
)
from penstock.service.wire.http2.head import Http2Request
from penstock.service.wire.http2.hpack import NO_TABLE, encode

DROPPED = 256
"""How many reset streams are remembered."""

PER_ANSWER = 2
PER_POINT = 1_024
"""What gives points back to the flood budget: an answer, and every so many bytes of a long one."""


class Encoded:
    """The encoding of a `Head`, cached there for all answers that share it."""

    __slots__ = ("block", "bodiless", "dated", "sized", "trailers", "trailers_sized", "unusual")

    def __init__(self, head: Head) -> None:
        self.block = encode([(b":status", b"%d" % head.status), *head.headers])
        self.sized = len(self.block) << 8 | HEADERS
        self.dated = not any(value.startswith(b"application/grpc") for _, value in head.headers)
        self.bodiless = head.status in (204, 304)
        self.unusual = self.bodiless or len(self.block) > FRAME_SIZE
        self.trailers = encode(head.trailers)
        self.trailers_sized = len(self.trailers) << 8 | HEADERS


class Stream(StreamingCall):
    """A call, and the stream on which it came."""

    __slots__ = (
        "_streams",
        "answered",
        "begun",
        "credit",
        "end",
        "ended",
        "id",
        "listener",
        "lost",
        "pieces",
        "request",
        "size",
        "unsent",
        "window",
    )

    def __init__(self, streams: Streams, id: int, request: Http2Request, peer: Peer, now: float) -> None:
        self.method, self.path, self.query = request.method, request.path, request.query
        self.headers, self.peer, self.body = request.headers, peer, b""
        self.expires = None if request.timeout is None else now + request.timeout
        self._streams, self.id, self.request, self.begun = streams, id, request, now
        self.window = 0  # bytes that the peer may still send
        self.credit = 0  # of the peer's window, relative to its initial size
        self.ended = self.answered = self.lost = False
        self.pieces: list[bytes] | None = None  # of a body that comes in several frames
        self.size = 0  # of all pieces
        self.unsent: bytes | memoryview = b""
        self.end: bytes | None = None  # the frames to send last; empty: the last DATA frame ends the stream
        self.listener: Listener | None = None

    @property
    def gone(self) -> bool:
        return self.lost

    def answer(self, head: Head, body: bytes = b"", extra: Sequence[Header] = ()) -> None:
        if not self.answered:
            self._streams.answer(self, head, body, extra)

    def start(self, head: Head) -> None:
        if not self.answered:
            self.answered = True
            self._streams.start(self, head)

    def send(self, data: bytes) -> None:
        self._streams.send(self, data)

    def finish(self, trailers: Sequence[Header] = ()) -> None:
        self._streams.finish(self, trailers)

    @property
    def waiting(self) -> int:
        return len(self.unsent)


class Streams:
    """The open streams of one connection, and its pending output.

    - `wrote` is called when output is pending after there was none.
    - `abandoned`: how many calls are being handled although their streams were reset. They count against the limit.
    - `dropped`: streams that the server has reset, for which frames may still arrive.
    - `held`: bytes of bodies that have not come completely.
    - `progress`: bytes of queued output that were sent.
    """

    __slots__ = (
        "_bare",
        "_bytes",
        "_date",
        "_initial",
        "_queued",
        "_useful",
        "_window",
        "_wrote",
        "abandoned",
        "dropped",
        "held",
        "open",
        "out",
        "progress",
        "unsent",
    )

    def __init__(self, wrote: Callable[[], None], date: Callable[[], bytes] | None = None) -> None:
        self._wrote, self._date = wrote, date
        self.open: dict[int, Stream] = {}
        self.out: list[bytes] = []
        self._window = self._initial = WINDOW  # send windows: of the connection, and of a new stream
        self._queued: dict[int, Stream] = {}
        self._bare = True  # the peer keeps its usual table; else the next block says that none is used
        self.dropped: dict[int, None] = {}
        self.unsent = self.abandoned = self.held = 0
        self._useful = self._bytes = 0  # points, and the bytes of long answers that are no whole point yet
        self.progress = 0

    def answer(self, stream: Stream, head: Head, body: bytes, extra: Sequence[Header]) -> None:
        """Write an answer as far as the windows allow, and queue the rest."""
        if stream.lost:
            stream.answered = True
            if stream.listener is None:
                self.abandoned -= 1
            return
        encoded = head.http2
        if not isinstance(encoded, Encoded):
            encoded = head.http2 = Encoded(head)
        size, id, out = len(body), stream.id, self.out
        if extra or not size or not self._bare or encoded.unusual or encoded.dated or stream.method == b"HEAD":
            self._answer_slowly(stream, encoded, body, extra)
            return
        stream.answered = True
        if not out:
            self._wrote()
        out.append(frame_head(encoded.sized, END_HEADERS, id) + encoded.block)
        if size <= self._window and size <= self._initial + stream.credit and size <= FRAME_SIZE and not self._queued:
            self._window -= size
            if encoded.trailers:
                out.append(frame_head(size << 8, 0, id) + body)
                out.append(frame_head(encoded.trailers_sized, 5, id) + encoded.trailers)
            else:
                out.append(frame_head(size << 8, END_STREAM, id) + body)
            self._close(stream)
        else:
            end = _header_frames(id, encoded.trailers, ends=True) if encoded.trailers else b""
            self._queue(stream, body, end)

    def _answer_slowly(self, stream: Stream, encoded: Encoded, body: bytes, extra: Sequence[Header]) -> None:
        block = encoded.block + encode(extra) if extra else encoded.block
        if self._date is not None and encoded.dated:
            block += self._date()
        if stream.method == b"HEAD" or encoded.bodiless:
            body = b""
        alone = not body and not encoded.trailers
        stream.answered = True
        self.write(_header_frames(stream.id, self._prefixed(block), ends=alone))
        if alone:
            self._close(stream)
        else:
            end = _header_frames(stream.id, encoded.trailers, ends=True) if encoded.trailers else b""
            self._queue(stream, body, end)

    def _prefixed(self, block: bytes) -> bytes:
        """Return a header block. After the peer has made its table smaller, it begins by saying that none is used."""
        if self._bare:
            return block
        self._bare = True
        return NO_TABLE + block

    def start(self, stream: Stream, head: Head) -> None:
        if not stream.lost:
            encoded = Encoded(head)
            self.write(_header_frames(stream.id, self._prefixed(encoded.block), ends=False))

    def send(self, stream: Stream, data: bytes) -> None:
        if not stream.lost and stream.end is None and data:
            self._queue(stream, data, None)

    def finish(self, stream: Stream, trailers: Sequence[Header]) -> None:
        if not stream.lost and stream.end is None:
            block = encode(trailers)
            self._queue(stream, b"", _header_frames(stream.id, block, ends=True) if block else b"")

    def _queue(self, stream: Stream, data: bytes, end: bytes | None) -> None:
        stream.unsent = memoryview(bytes(stream.unsent) + data if stream.unsent else data)
        stream.end = end
        self.unsent += len(data)
        self._queued[stream.id] = stream
        self.send_queued()

    def send_queued(self) -> None:
        """Send queued output round robin, until the windows are full.

        Called once per read, not per WINDOW_UPDATE: else a small update would make a small frame, which the peer
        answers with another small update, forever.
        """
        if not self._queued:
            return
        if not self.out:
            self._wrote()
        sent = True
        while sent:
            sent = False
            for stream in list(self._queued.values()):
                sent |= self._send_frame(stream)

    def _send_frame(self, stream: Stream) -> bool:
        unsent, end = stream.unsent, stream.end
        size = min(len(unsent), self._window, self._initial + stream.credit, FRAME_SIZE)
        if unsent and size <= 0:
            return False
        size = max(size, 0)  # an end without data needs no window, even if the window is negative
        last = size == len(unsent) and end is not None
        if size or end == b"":
            flags = END_STREAM if last and not end else 0
            self.out.append(frame_head(size << 8 | DATA, flags, stream.id) + unsent[:size])
        self._window -= size
        stream.credit -= size
        stream.unsent = unsent[size:]
        self.unsent -= size
        self.progress += size
        self._bytes += size
        if not stream.unsent:
            del self._queued[stream.id]
        if last:
            if end:
                self.out.append(end)
            self._close(stream)
        return True

    def opened(self, id: int, more: int) -> None:
        """Open the send window of a stream, or with id 0 that of the connection."""
        if id:
            stream = self.open.get(id)
            if stream is None:
                return
            if self._initial + stream.credit + more > LARGEST:
                raise StreamError(Code.FLOW_CONTROL_ERROR)
            stream.credit += more
        else:
            self._window += more
            if self._window > LARGEST:
                raise SessionError(Code.FLOW_CONTROL_ERROR, f"a window: expected at most {LARGEST}")

    def resize(self, initial: int) -> None:
        """Change the initial send window, and with it those of all open streams."""
        if any(initial + stream.credit > LARGEST for stream in self.open.values()):
            raise SessionError(Code.FLOW_CONTROL_ERROR, f"a window: expected at most {LARGEST}")
        self._initial = initial

    def useful(self) -> int:
        """Return the points earned since the last call."""
        more, self._bytes = divmod(self._bytes, PER_POINT)
        points, self._useful = self._useful + more, 0
        return points

    def shrink_table(self) -> None:
        """Note that the peer has made its header table smaller."""
        self._bare = False

    def _close(self, stream: Stream) -> None:
        """Close a stream that is answered. A peer that is still sending its body is told to stop."""
        self._useful += PER_ANSWER
        del self.open[stream.id]
        stream.lost = True
        if not stream.ended:
            self.drop(stream.id, Code.NO_ERROR)

    def lose(self, stream: Stream) -> None:
        """Close a stream before its answer."""
        self.drop_body(stream)
        del self.open[stream.id]
        stream.lost = True
        if self._queued.pop(stream.id, None):
            self.unsent -= len(stream.unsent)
        elif stream.ended and not stream.answered and stream.listener is None:
            self.abandoned += 1
        if stream.listener is not None:
            stream.listener.lost()

    def reset(self, stream: Stream, code: Code) -> None:
        """Close a stream before its answer, and reset it at the peer."""
        self.lose(stream)
        self.drop(stream.id, code)

    def drop(self, id: int, code: Code) -> None:
        """Reset a stream that is not open, and remember it, because more of its frames may be on their way."""
        self.dropped[id] = None
        if len(self.dropped) > DROPPED:
            del self.dropped[next(iter(self.dropped))]
        self.write(reset(id, code))

    def drop_body(self, stream: Stream) -> None:
        """Forget the pieces of a body."""
        if stream.pieces is not None:
            self.held -= stream.size
            stream.pieces, stream.size = None, 0

    def lose_all(self) -> None:
        for stream in list(self.open.values()):
            self.lose(stream)

    def write(self, data: bytes) -> None:
        if not self.out:
            self._wrote()
        self.out.append(data)


def _header_frames(id: int, block: bytes, *, ends: bool) -> bytes:
    """Return a header block as HEADERS and, if it is long, CONTINUATION frames."""
    pieces = [block[at : at + FRAME_SIZE] for at in range(0, len(block), FRAME_SIZE)] or [b""]
    frames = []
    for number, piece in enumerate(pieces):
        flags = END_HEADERS if number == len(pieces) - 1 else 0
        flags |= END_STREAM if ends and not number else 0
        frames.append(frame(CONTINUATION if number else HEADERS, flags, id, piece))
    return b"".join(frames)
