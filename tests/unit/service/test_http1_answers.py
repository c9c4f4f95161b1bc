"""Answers as bytes."""

from __future__ import annotations

import pytest

from penstock.service.wire.calls import Head
from penstock.service.wire.http1.head import Http1Request
from penstock.service.wire.http1.responses import encode_answer

DATE = b"date: now\r\n"


def request(method: bytes = b"GET", *, keep: bool = True, old: bool = False) -> Http1Request:
    return Http1Request((method, b"/", b"", ()), 0, keep=keep, expects=False, plain=False, old=old)


def test_answer_has_a_content_length() -> None:
    head = Head(200, [(b"content-type", b"text/plain")])
    answer = encode_answer(request(), head, b"body", [(b"x-own", b"1")], DATE)
    assert answer == (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nx-own: 1\r\ndate: now\r\ncontent-length: 4\r\n\r\nbody"
    )


def test_start_of_an_answer_is_encoded_once() -> None:
    head = Head(200, [(b"content-type", b"text/plain")])
    encode_answer(request(), head, b"", [(b"x-own", b"1")], DATE)
    assert head.http1 == b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"


def test_answer_to_head_has_a_length_and_no_body() -> None:
    assert encode_answer(request(b"HEAD"), Head(200), b"body", (), DATE).endswith(b"content-length: 4\r\n\r\n")


@pytest.mark.parametrize("status", [204, 304])
def test_some_answers_have_no_body_and_no_length(status: int) -> None:
    head = Head(status)
    for _ in range(2):
        answer = encode_answer(request(), head, b"body", (), DATE)
        assert answer.endswith(b"\r\ndate: now\r\n\r\n")
        assert b"content-length" not in answer
        assert head.http1 is None, "the usual shape would give it a length"


def test_last_answer_announces_that_the_connection_closes() -> None:
    assert b"\r\nconnection: close\r\n" in encode_answer(request(keep=False), Head(200), b"", (), DATE)
    assert b"\r\nconnection: close\r\n" in encode_answer(request(keep=False, old=True), Head(200), b"", (), DATE)
    assert b"\r\nconnection: keep-alive\r\n" in encode_answer(request(old=True), Head(200), b"", (), DATE)
    assert b"connection" not in encode_answer(request(), Head(200), b"", (), DATE)


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb", b"a\0b"])
def test_header_with_a_line_end_is_an_error(value: bytes) -> None:
    with pytest.raises(ValueError, match="without line ends"):
        encode_answer(request(), Head(200), b"", [(b"x", value)], DATE)
    with pytest.raises(ValueError, match="without line ends"):
        encode_answer(request(), Head(200, [(b"x", value)]), b"", (), DATE)
    with pytest.raises(ValueError, match="without line ends"):
        encode_answer(request(), Head(200), b"", [(value, b"x")], DATE)


def test_status_without_a_phrase_is_sent_without_one() -> None:
    assert encode_answer(request(), Head(299), b"", (), DATE).startswith(b"HTTP/1.1 299 \r\n")
