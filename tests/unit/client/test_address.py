"""The address of a service: URLs, tokens, TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client.address import Address, Tls
from penstock.errors import InvalidOption

TOKEN = "a-token-nobody-may-see"


@pytest.mark.parametrize(
    ("url", "place", "host"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080", b"127.0.0.1:8080"),
        ("http://limits.example", "limits.example:80", b"limits.example"),
        ("https://limits.example", "limits.example:443", b"limits.example"),
        ("http://[::1]:8080/", "[::1]:8080", b"[::1]:8080"),
        ("unix:/run/penstock.sock", "unix:/run/penstock.sock", b"localhost"),
        ("unix:///run/penstock.sock", "unix:/run/penstock.sock", b"localhost"),
    ],
)
def test_a_url_names_the_place_of_a_service(url: str, place: str, host: bytes) -> None:
    address = Address(url)
    assert address.place == place
    assert address.get(b"/readyz") == b"GET /readyz HTTP/1.1\r\nhost: " + host + b"\r\n\r\n"


def test_a_request_has_its_length_and_the_token() -> None:
    address = Address("http://limits.example:81/behind/a/proxy/", TOKEN)
    assert address.post(b"/v1/check", b"{}") == (
        b"POST /behind/a/proxy/v1/check HTTP/1.1\r\nhost: limits.example:81\r\n"
        b"authorization: Bearer a-token-nobody-may-see\r\n"
        b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    )
    assert TOKEN not in repr(address)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host", "url ftp:...: expected http://HOST:PORT"),
        ("host:8080", "expected http://HOST:PORT"),
        ("http://", "expected http://HOST:PORT"),
        ("http://host:99999", "url: unreadable"),
        ("http://host:0", "expected http://HOST:PORT"),
        ("http://host?x=1", "expected http://HOST:PORT"),
        ("http://user:hidden@host", "holds a user or a password"),
        ("http://ho st", "characters that no URL holds"),
        ("unix:relative", "expected the path of a socket"),
    ],
)
def test_an_invalid_url_is_refused_and_not_repeated(url: str, says: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        Address(url)
    assert says in str(raised.value)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("token", ["", "two words", "line\r\nbreak", "tökén", "tab\t"])
def test_a_token_cannot_break_out_of_its_header(token: str) -> None:
    with pytest.raises(InvalidOption, match="token: expected ASCII text") as raised:
        Address("http://host", token)
    assert not token.strip() or token not in str(raised.value)


def test_tls_goes_with_https_alone(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="does not begin with https"):
        Address("http://host", tls=Tls())
    with pytest.raises(InvalidOption, match=r"tls: No such file or directory"):
        Address("https://host", tls=Tls(ca=tmp_path / "none.pem"))
    with pytest.raises(InvalidOption, match="a key without a certificate"):
        Address("https://host", tls=Tls(key=tmp_path / "none.pem"))
