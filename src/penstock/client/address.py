"""The address of a service, TLS and the token: everything about a connection but the connection itself."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from penstock.errors import InvalidOption, shown

DEFAULT_URL = "http://127.0.0.1:8080"
SCHEMES = ("http", "https", "unix")
EXPECTED = "expected http://HOST:PORT, https://HOST:PORT or unix:/PATH"


class Tls(NamedTuple):
    """The files of a connection over TLS, in PEM format.

    - `ca`: the authority that signs the service's certificate; by default those that the system trusts.
    - `certificate`, `key`: those of the client. One file may hold both.
    """

    ca: Path | str | None = None
    certificate: Path | str | None = None
    key: Path | str | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context for sockets."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidOption(f"tls: {error.strerror or error} (expected files that hold PEM)") from None
        if self.key is not None and self.certificate is None:
            raise InvalidOption("tls: a key without a certificate (expected both)")
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


class Address:
    """The address of a service, read from its URL, and the head of every request to it.

    The token is in the head alone, and never printed.
    """

    def __init__(self, url: str = DEFAULT_URL, token: str | None = None, tls: Tls | None = None) -> None:
        self.path = ""  # of a Unix socket
        self.host, self.port, prefix, secure = "localhost", 80, "", False
        if url.startswith("unix:"):
            self.path = _socket(url)
        else:
            self.host, self.port, prefix, secure = _read(url)
        if tls is not None and not secure:
            raise InvalidOption("tls: the service's URL does not begin with https:// (expected one that does)")
        self.context = (tls or Tls()).context() if secure else None
        self.place = f"unix:{self.path}" if self.path else f"{_bracketed(self.host)}:{self.port}"
        self._prefix = prefix.encode()
        standard = self.port == (443 if secure else 80)
        named = _bracketed(self.host) if self.path or standard else self.place
        self._head = f" HTTP/1.1\r\nhost: {named}\r\n{_authorization(token)}".encode()

    def __repr__(self) -> str:
        return f"<Address {self.place}>"

    def post(self, path: bytes, body: bytes) -> bytes:
        """Return the bytes of a request with a body of JSON."""
        length = str(len(body)).encode()
        start = b"POST " + self._prefix + path + self._head
        return start + b"content-type: application/json\r\ncontent-length: " + length + b"\r\n\r\n" + body

    def get(self, path: bytes) -> bytes:
        """Return the bytes of a request without a body."""
        return b"GET " + self._prefix + path + self._head + b"\r\n"


def _read(url: str) -> tuple[str, int, str, bool]:
    """Return host, port, prefix of paths, and whether TLS is used. No error repeats a URL: it may hold a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except (ValueError, AttributeError):
        raise InvalidOption(f"url: unreadable ({EXPECTED})") from None
    if parts.scheme not in SCHEMES[:2]:
        name = parts.scheme if parts.scheme.isalpha() and len(parts.scheme) < 20 else "..."
        raise InvalidOption(f"url {name}:...: {EXPECTED}")
    if parts.username is not None or parts.password is not None:
        raise InvalidOption("url: holds a user or a password (expected neither; pass the token as token=)")
    if not parts.hostname or parts.query or parts.fragment or port == 0:
        raise InvalidOption(f"url {parts.scheme}:...: {EXPECTED}")
    prefix = parts.path.rstrip("/")
    if not prefix.isascii() or any(character <= " " for character in prefix + parts.hostname):
        raise InvalidOption(f"url {parts.scheme}:...: characters that no URL holds ({EXPECTED})")
    secure = parts.scheme == "https"
    return parts.hostname, port or (443 if secure else 80), prefix, secure


def _socket(url: str) -> str:
    path = unquote(url.removeprefix("unix:"))
    path = path[2:] if path.startswith("//") else path
    if not path.startswith("/") or "\0" in path:
        raise InvalidOption(f"url {shown(url)}: expected the path of a socket, such as unix:/run/penstock.sock")
    return path


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _authorization(token: str | None) -> str:
    if token is None:
        return ""
    if not isinstance(token, str) or not token or not token.isascii() or any(c <= " " or c == "\x7f" for c in token):
        raise InvalidOption("token: expected ASCII text without spaces, not empty")
    return f"authorization: Bearer {token}\r\n"
