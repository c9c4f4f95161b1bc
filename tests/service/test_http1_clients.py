"""Clients that others wrote: curl and httpx, over IPv4, IPv6, Unix sockets and TLS."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.tls import ServerTls
from tests.service.certificates import Authority
from tests.service.harness import LOOPS, Echo, Running, serving

LARGE = b"x" * 700_000


@pytest.fixture(params=LOOPS, scope="module")
def echo(request: pytest.FixtureRequest) -> Iterator[Running]:
    with serving(Echo(), loop=request.param) as running:
        yield running


def curl(*arguments: str, given: bytes = b"") -> bytes:
    command = ("curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", "60", *arguments)
    return subprocess.run(command, input=given, capture_output=True, check=True).stdout


def test_curl_reuses_the_connection(echo: Running) -> None:
    urls = [f"{echo.url}/{number}?q" for number in range(3)]
    assert curl(*urls, "-w", "%{num_connects}") == b"GET\n/0\nq\n1GET\n/1\nq\n0GET\n/2\nq\n0"


def test_curl_posts_chunked_and_large_bodies(echo: Running) -> None:
    """A large body is announced with Expect: 100-continue; one of unknown length comes in chunks."""
    for more in ((), ("-H", "Transfer-Encoding: chunked"), ("-H", "Expect:")):
        got = curl("--data-binary", "@-", *more, f"{echo.url}/p", given=LARGE)
        assert got == b"POST\n/p\n\n" + LARGE


def test_curl_uses_head_and_http_1_0(echo: Running) -> None:
    assert b"\r\ncontent-length: 9\r\n" in curl("-I", f"{echo.url}/a")
    assert curl("-0", f"{echo.url}/a") == b"GET\n/a\n\n"


def test_curl_that_would_rather_speak_http2_is_answered_in_http_1(echo: Running) -> None:
    """It offers an upgrade, with a body behind it: the offer is overlooked, the body is not taken for a request."""
    got = curl("--http2", "-d", "GET /smuggled HTTP/1.1", f"{echo.url}/p", f"{echo.url}/q", "-w", "%{http_version}")
    assert got.count(b"GET /smuggled HTTP/1.1") == 2
    assert got.count(b"1.1") == 4


def test_httpx_posts_in_chunks(echo: Running) -> None:
    with httpx.Client(base_url=echo.url, trust_env=False) as client:
        for number in range(5):
            answer = client.post(f"/{number}", content=iter([b"a", b"b" * 1000]))
            assert answer.content == b"POST\n/%d\n\na" % number + b"b" * 1000
            assert answer.headers["date"].endswith(" GMT")


def test_httpx_reads_a_refusal_while_it_sends() -> None:
    with serving(Echo(), limits=ServerLimits(body=1000)) as running, httpx.Client(trust_env=False) as client:
        answer = client.post(running.url, content=LARGE)
        assert answer.status_code == 413
        assert answer.json()["code"] == "body_too_large"


@pytest.mark.parametrize("loop", LOOPS)
def test_unix_and_ipv6_sockets_are_served(loop: str, tmp_path: Path) -> None:
    handler = Echo()
    with serving(handler, loop=loop, family="unix", folder=str(tmp_path)) as running:
        assert curl("--unix-socket", running.address, "http://any/a") == b"GET\n/a\n\n"
    with serving(handler, loop=loop, family="ipv6") as running:
        assert curl(f"http://[::1]:{running.port}/a") == b"GET\n/a\n\n"
    assert [call.peer.address for call in handler.calls] == ["", "::1"]
    assert not any(call.peer.secure for call in handler.calls)


@pytest.mark.parametrize("loop", LOOPS)
def test_curl_over_tls(loop: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    own = authority.sign("server", "DNS:localhost")
    caller = authority.sign("caller")
    handler = Echo()
    with serving(handler, loop=loop, tls=ServerTls(*own, authority.certificate)) as running:
        shown = ("--cert", str(caller.certificate), "--key", str(caller.key))
        url = f"https://localhost:{running.port}/a"
        resolved = ("--resolve", f"localhost:{running.port}:127.0.0.1")
        got = curl("--http1.1", "--cacert", str(authority.certificate), *shown, *resolved, url, "-d", "abc")
        assert got == b"POST\n/a\n\nabc"
    assert handler.calls[0].peer.names == ("caller",)
