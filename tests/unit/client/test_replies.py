"""The client's half of HTTP/1.1: where a reply begins and ends, and which bytes are none."""

from __future__ import annotations

import pytest

from penstock.client.http import MAX_BODY, MAX_HEAD, ApiReply, BadReply, Replies

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Name:  value \r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"


def test_a_reply_is_read_once_it_is_whole() -> None:
    replies = Replies()
    assert replies.feed(PLAIN[:-1]) == []
    assert replies.feed(PLAIN[-1:]) == [ApiReply(200, {"content-length": "2", "x-name": "value"}, b"hi")]


def test_replies_that_come_together_are_told_apart() -> None:
    found = Replies().feed(PLAIN + CHUNKED + b"HTTP/1.1 204 No Content\r\n\r\n" + PLAIN[:20])
    assert [(reply.status, reply.body) for reply in found] == [(200, b"hi"), (200, b"abc0123456789"), (204, b"")]


def test_bytes_may_come_one_by_one() -> None:
    replies = Replies()
    found = [reply for byte in PLAIN + CHUNKED for reply in replies.feed(bytes([byte]))]
    assert [reply.body for reply in found] == [b"hi", b"abc0123456789"]


def test_an_informational_reply_is_skipped() -> None:
    assert [reply.status for reply in Replies().feed(b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN)] == [200]


def test_nothing_is_read_after_the_last_reply() -> None:
    replies = Replies()
    last = PLAIN.replace(b"X-Name:  value", b"Connection: close")
    assert len(replies.feed(last + PLAIN)) == 1
    assert replies.last


@pytest.mark.parametrize(
    "bytes_",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1, 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY + 1),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffff\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1" * 2_000,
        b"x" * (MAX_HEAD + 1),
    ],
)
def test_bytes_that_are_no_reply_are_refused(bytes_: bytes) -> None:
    with pytest.raises(BadReply):
        Replies().feed(bytes_)
