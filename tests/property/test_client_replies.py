"""Replies are the same however the network cuts them, and nothing that a peer sends gets further than `BadReply`."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.http import ApiReply, BadReply, Replies

bodies = st.binary(max_size=40)


def _plain(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def _chunked(body: bytes) -> bytes:
    cut = len(body) // 2
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def _fed(data: bytes, cuts: list[int]) -> list[ApiReply]:
    replies = Replies()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [reply for start, end in pairwise(edges) for reply in replies.feed(data[start:end])]


@given(st.lists(st.tuples(bodies, st.booleans()), max_size=4), st.lists(st.integers(0, 10_000), max_size=8))
def test_cuts_change_nothing(sent: list[tuple[bytes, bool]], cuts: list[int]) -> None:
    data = b"".join(_chunked(body) if chunked else _plain(body) for body, chunked in sent)
    assert [reply.body for reply in _fed(data, cuts)] == [body for body, _ in sent]


@given(bodies, st.booleans(), st.integers(0, 10_000), st.binary(max_size=6))
def test_any_bytes_are_a_reply_or_refused(body: bytes, chunked: bool, at: int, noise: bytes) -> None:
    data = _chunked(body) if chunked else _plain(body)
    at %= len(data)
    try:
        found = Replies().feed(data[:at] + noise + data[at + len(noise) :])
    except BadReply:
        return
    assert all(100 < reply.status <= 999 for reply in found)
