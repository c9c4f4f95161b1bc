"""Heads of requests: what is taken and what it says, and every shape that is refused."""

from __future__ import annotations

import pytest

from penstock.service.wire.http1.head import Http1Request, Requests, read_request
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.problems import RefusedRequest

LIMITS = ServerLimits(head=2048, headers=20, body=1000)


def read(*lines: bytes) -> Http1Request:
    return read_request(b"\r\n".join(lines) + b"\r\n\r\n", LIMITS)


def refused(*lines: bytes) -> tuple[int, str]:
    with pytest.raises(RefusedRequest) as caught:
        read(*lines)
    assert caught.value.detail
    return int(caught.value.status), caught.value.code


def test_a_request_is_its_method_path_query_headers_and_length() -> None:
    request = read(
        b"POST /a%20b?c=d?e HTTP/1.1", b"HOST: example:80", b"X-Some: \t two words\t ", b"Content-Length: 12"
    )
    assert (*request.asked, request.length) == (
        b"POST",
        b"/a%20b",
        b"c=d?e",
        ((b"host", b"example:80"), (b"x-some", b"two words"), (b"content-length", b"12")),
        12,
    )
    assert request.keep
    assert request.plain
    assert not request.expects
    assert not request.old


@pytest.mark.parametrize(
    ("version", "connection", "keep"),
    [
        (b"1.1", None, True),
        (b"1.1", b"close", False),
        (b"1.1", b"Keep-Alive, CLOSE", False),
        (b"1.1", b"x-mine", True),
        (b"1.0", None, False),
        (b"1.0", b"keep-alive", True),
    ],
)
def test_connection_header_and_version_decide_whether_the_connection_is_kept(
    version: bytes, connection: bytes | None, keep: bool
) -> None:
    lines = [b"GET / HTTP/" + version, b"Host: a", *([b"Connection: " + connection] if connection else [])]
    assert read(*lines).keep is keep
    assert not read(*lines, b"Connection: close", b"Connection: keep-alive").keep


def test_an_answer_to_head_or_to_http_1_0_is_not_plain() -> None:
    assert not read(b"HEAD / HTTP/1.1", b"Host: a").plain
    old = read(b"GET / HTTP/1.0", b"Connection: keep-alive")
    assert old.old
    assert not old.plain


def test_an_absolute_target_names_the_host() -> None:
    request = read(b"GET http://there:81/p?q HTTP/1.1", b"X: y", b"Host: here")
    assert request.asked[1:] == (b"/p", b"q", ((b"host", b"there:81"), (b"x", b"y")))
    assert read(b"GET http://there?q HTTP/1.1", b"Host: here").asked[1:3] == (b"/", b"q")
    assert read(b"GET HTTPS://there HTTP/1.1", b"Host: here").asked[1:3] == (b"/", b"")


def test_options_may_ask_about_the_server_as_a_whole() -> None:
    request = read(b"OPTIONS * HTTP/1.1", b"Host: a")
    assert request.asked[1:] == (b"*", b"", ((b"host", b"a"),))


def test_chunked_bodies_and_expectations_are_recognised() -> None:
    request = read(b"POST / HTTP/1.1", b"Host: a", b"Transfer-Encoding: Chunked", b"Expect: 100-Continue")
    assert request.length == -1
    assert request.expects


def test_an_old_client_expects_nothing() -> None:
    assert not read(b"POST / HTTP/1.0", b"Content-Length: 3", b"Expect: 100-continue").expects


def test_upgrade_is_ignored() -> None:
    upgrade = read(
        b"POST /x HTTP/1.1", b"Host: a", b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings", b"Content-Length: 7"
    )
    assert (upgrade.asked[1], upgrade.length, upgrade.keep) == (b"/x", 7, True)


HOST = b"Host: a"
MALFORMED = [
    # request lines
    (b"GET  / HTTP/1.1", HOST),
    (b"GET / HTTP/1.1 ", HOST),
    (b" GET / HTTP/1.1", HOST),
    (b"GET\t/ HTTP/1.1", HOST),
    (b"GET / HTTP/1.1\r", HOST),
    (b"get / HTTP/1.1", HOST),
    (b"NOSUCHMETHOD / HTTP/1.1", HOST),
    (b"GET /", HOST),
    (b"GET / http/1.1", HOST),
    (b"GET / HTTP/11", HOST),
    (b"GET / HTTP/1.10", HOST),
    (b"SETUP / RTSP/1.0", HOST),
    (b"SOURCE / ICE/1.0", HOST),
    (b"GET / a HTTP/1.1", HOST),
    (b"GET /\0 HTTP/1.1", HOST),
    (b"GET /\x7f HTTP/1.1", HOST),
    (b"GET /\xc3\xa4 HTTP/1.1", HOST),
    (b"GET /a#b HTTP/1.1", HOST),
    (b"GET a HTTP/1.1", HOST),
    (b"GET * HTTP/1.1", HOST),
    (b"GET ftp://a/ HTTP/1.1", HOST),
    (b"GET http:///p HTTP/1.1", HOST),
    (b"GET http://user@a/ HTTP/1.1", HOST),
    (b"GET HTTP/1.1", HOST),
    # hosts
    (b"GET / HTTP/1.1", b"X: y"),
    (b"GET / HTTP/1.1", HOST, HOST),
    (b"GET / HTTP/1.1", HOST, b"host: b"),
    (b"GET / HTTP/1.0", HOST, HOST),
    (b"GET / HTTP/1.1", b"Host: a/b"),
    (b"GET / HTTP/1.1", b"Host: a, b"),
    (b"GET / HTTP/1.1", b"Host: a b"),
    (b"GET / HTTP/1.1", b"Host: a@b"),
    (b"GET http://there/ HTTP/1.1", b"X: y"),
    # fields
    (b"GET / HTTP/1.1", b"Host : a"),
    (b"GET / HTTP/1.1", b" Host: a"),
    (b"GET / HTTP/1.1", HOST, b" folded"),
    (b"GET / HTTP/1.1", HOST, b"\tfolded"),
    (b"GET / HTTP/1.1", HOST, b"X: y\n z"),
    (b"GET / HTTP/1.1", HOST, b"X: y\nZ: z"),
    (b"GET / HTTP/1.1", HOST, b"X: y\rZ: z"),
    (b"GET / HTTP/1.1", HOST, b"X: y\0z"),
    (b"GET / HTTP/1.1", HOST, b"X: \x01"),
    (b"GET / HTTP/1.1", HOST, b"X\0: y"),
    (b"GET / HTTP/1.1", HOST, b": y"),
    (b"GET / HTTP/1.1", HOST, b"X"),
    (b"GET / HTTP/1.1", HOST, b"X y: z"),
    (b"GET / HTTP/1.1", HOST, b"X\xe4: z"),
    (b"GET / HTTP/1.1", HOST, b"(X): z"),
    # lengths
    (b"POST / HTTP/1.1", HOST, b"Content-Length: 5", b"Content-Length: 6"),
    (b"POST / HTTP/1.1", HOST, b"Content-Length: 5", b"Content-Length: 5"),
    (b"POST / HTTP/1.1", HOST, b"Content-Length: 5, 5"),
    (b"POST / HTTP/1.1", HOST, b"Content-Length: +5"),
    (b"POST / HTTP/1.1", HOST, b"Content-Length: -5"),
    (b"POST / HTTP/1.1", HOST, b"Content-Length: 0x5"),
    (b"POST / HTTP/1.1", HOST, b"Content-Length: 5_0"),
    (b"POST / HTTP/1.1", HOST, b"Content-Length: 5 0"),
    (b"POST / HTTP/1.1", HOST, b"Content-Length: five"),
    (b"POST / HTTP/1.1", HOST, b"Content-Length:"),
    (b"POST / HTTP/1.1", HOST, b"Content-Length: 99999999999999999999999999"),
    (b"POST / HTTP/1.1", HOST, b"Content-Length : 5"),
    # transfer codings
    (b"POST / HTTP/1.1", HOST, b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    (b"POST / HTTP/1.1", HOST, b"Transfer-Encoding: chunked", b"Content-Length: 5"),
    (b"POST / HTTP/1.1", HOST, b"Transfer-Encoding: chunked", b"Content-Length: 0"),
    (b"POST / HTTP/1.1", HOST, b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    (b"POST / HTTP/1.1", HOST, b"Transfer-Encoding: chunked, chunked"),
    (b"POST / HTTP/1.1", HOST, b"Transfer-Encoding: chunked, gzip"),
    (b"POST / HTTP/1.1", HOST, b"Transfer-Encoding: \x0bchunked"),
    (b"POST / HTTP/1.1", HOST, b"Transfer-Encoding : chunked"),
    (b"POST / HTTP/1.0", HOST, b"Transfer-Encoding: chunked"),
]


@pytest.mark.parametrize("lines", MALFORMED, ids=[repr(b"|".join(lines)) for lines in MALFORMED])
def test_malformed_heads_are_refused(lines: tuple[bytes, ...]) -> None:
    assert refused(*lines) == (400, "malformed")


def test_malformed_heads_pass_without_their_one_flaw() -> None:
    """A negative control: what they were made from is taken."""
    for line in (b"GET / HTTP/1.1", b"POST / HTTP/1.1", b"GET / HTTP/1.0", b"GET http://there/ HTTP/1.1"):
        assert read(line, HOST, b"X: y", b"Content-Length: 5").length == 5
    assert read(b"POST / HTTP/1.1", HOST, b"Transfer-Encoding: chunked").length == -1


@pytest.mark.parametrize(
    "coding", [b"gzip", b"identity", b"gzip, chunked", b"xchunked", b"chunked;q=1", b"", b'"chunked"']
)
def test_transfer_codings_other_than_chunked_are_refused(coding: bytes) -> None:
    assert refused(b"POST / HTTP/1.1", HOST, b"Transfer-Encoding: " + coding)[0] in (400, 501)
    if coding in (b"gzip", b"identity", b"gzip, chunked", b"xchunked"):
        assert refused(b"POST / HTTP/1.1", HOST, b"Transfer-Encoding: " + coding) == (501, "transfer_coding")


@pytest.mark.parametrize("version", [b"0.9", b"1.2", b"2.0", b"3.0", b"9.9"])
def test_other_http_versions_are_refused(version: bytes) -> None:
    assert refused(b"GET / HTTP/" + version, HOST) == (505, "version")


def test_connect_is_refused() -> None:
    assert refused(b"CONNECT a:80 HTTP/1.1", HOST) == (405, "method_not_allowed")


def test_other_expectations_are_refused() -> None:
    assert refused(b"POST / HTTP/1.1", HOST, b"Expect: 200-ok", b"Content-Length: 1") == (417, "expectation")


def test_sizes_are_limited_to_the_byte() -> None:
    assert refused(b"POST / HTTP/1.1", HOST, b"Content-Length: 1001") == (413, "body_too_large")
    assert read(b"POST / HTTP/1.1", HOST, b"Content-Length: 1000").length == 1000
    fill = LIMITS.head - len(b"GET / HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n")
    assert read(b"GET / HTTP/1.1", HOST, b"X: " + b"x" * fill)
    assert refused(b"GET / HTTP/1.1", HOST, b"X: " + b"x" * (fill + 1)) == (431, "head_too_large")
    assert refused(b"GET /" + b"x" * 3000 + b" HTTP/1.1", HOST) == (414, "target_too_long")
    assert len(read(b"GET / HTTP/1.1", HOST, *[b"X: y"] * 19).asked[3]) == 20
    assert refused(b"GET / HTTP/1.1", HOST, *[b"X: y"] * 20) == (431, "too_many_headers")


def test_refusals_never_quote_what_was_sent() -> None:
    for lines in MALFORMED:
        marked = (*lines, b"Authorization: secret-of-mine")
        with pytest.raises(RefusedRequest) as caught:
            read(*marked)
        assert b"secret-of-mine" not in caught.value.body


def test_repeated_head_is_cached() -> None:
    requests = Requests(LIMITS)
    head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    first, second, third = (requests[bytes(bytearray(head))] for _ in range(3))
    assert first == second
    assert third is second


def test_cache_of_heads_is_bounded() -> None:
    requests = Requests(LIMITS)
    for number in range(3 * Requests._MOST):
        head = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number
        assert requests[head].asked[1] == requests[head].asked[1] == b"/%d" % number
        assert len(requests) <= Requests._MOST
        assert len(requests._once) <= Requests._MOST
    assert requests
    requests.clear()
    long = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * Requests._LONGEST + b"\r\n\r\n"
    assert requests[long] == requests[long]
    assert not requests


def test_unique_heads_displace_nothing() -> None:
    requests = Requests(LIMITS)
    often = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    kept = [requests[often] for _ in range(2)][-1]
    for number in range(3 * Requests._MOST):
        assert requests[b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number]
    assert requests[often] is kept
    assert len(requests) == 1


def test_refused_head_is_not_cached() -> None:
    requests = Requests(LIMITS)
    for _ in range(2):
        with pytest.raises(RefusedRequest):
            requests[b"GET / HTTP/1.1\r\n\r\n"]
    assert not requests
