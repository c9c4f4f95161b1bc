"""Authorization requests of proxies over HTTP: Envoy, nginx, Traefik, Caddy and their like.

Proxies describe the client's request in different ways. Each way has a path of its own, because a client may send any
headers, and a proxy overwrites only those of its own way:

| path | the request's method and path |
|---|---|
| `/v1/authz/*` | this call's method, and the rest of its path: Envoy's `ext_authz` with `path_prefix: /v1/authz` |
| `/v1/authz-original` | `X-Original-Method`, `X-Original-URI`: nginx's `auth_request` |
| `/v1/authz-forwarded` | `X-Forwarded-Method`, `X-Forwarded-Uri`: Traefik's `forwardAuth`, Caddy's `forward_auth` |

A refusal is 429, 403 or 503. nginx accepts no other than 403: there the true status is in `X-Penstock-Status`.

The path is matched as applications see it: percent-decoded, without `//` and dot segments, so that there is one way to
write it. The client's address is taken from the forwarding header as far as proxies are trusted; the calling proxy is
one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

from penstock.engine.batch import Batch
from penstock.errors import InvalidOption, PenstockError, shown
from penstock.headers import HeaderWriter
from penstock.rules.api_keys import API_KEY_HEADER
from penstock.rules.client_ip import TrustedProxies
from penstock.rules.refusal import refusal_of
from penstock.service.api.problems import Unacceptable, answer_of, note
from penstock.service.decisions import Decider, Result
from penstock.service.wire.calls import Call, Head, Header

UNDER = b"/v1/authz/"
ORIGINAL, FORWARDED = b"/v1/authz-original", b"/v1/authz-forwarded"
ROUTE = "/v1/authz"
STATUS = b"x-penstock-status"
FORBIDDEN = 403

Descriptor: TypeAlias = dict[str, object]

_ALLOWED = Head(200)
_REFUSALS = {status: Head(status) for status in (403, 429, 503)}
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_AUTHORITY = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")
_SLASHES = re.compile(r"/{2,}")


class AuthzOptions(NamedTuple):
    """How the client's request is read from a proxy's.

    - `api_key_header`: where clients send their key; the entry `api_key`.
    - `trusted_proxies`, `forwarded_header`: how far the header with the client's address is trusted, see
      `penstock.rules.client_ip`. By default one proxy, the calling one.
    - `entries`: more entries of the descriptor, and the headers they are read from.
    """

    api_key_header: str = API_KEY_HEADER
    trusted_proxies: int | Collection[str] = 1
    forwarded_header: str = "x-forwarded-for"
    entries: Mapping[str, str] = {}


class Authz:
    """Decides on the requests that proxies forward."""

    def __init__(self, decider: Decider, writer: HeaderWriter, options: AuthzOptions) -> None:
        self._decider, self._writer = decider, writer
        self._proxies = TrustedProxies(options.trusted_proxies, header=options.forwarded_header)
        self._address_header = self._proxies.header.encode()
        self._entries: dict[bytes, list[str]] = {b"host": ["host"]}
        for entry, header in {"api_key": options.api_key_header, **options.entries}.items():
            self._entries.setdefault(_header("authz", header), []).append(entry)
        self._reads: dict[bytes, Callable[[Call], Descriptor]] = {
            ORIGINAL: partial(self._named, b"x-original-method", b"x-original-uri"),
            FORWARDED: partial(self._named, b"x-forwarded-method", b"x-forwarded-uri"),
        }

    def knows(self, path: bytes) -> bool:
        """Return whether calls of this path are answered here."""
        return path.startswith(UNDER) or path in self._reads

    def take(self, call: Call, batch: Batch) -> None:
        """Decide on the client's request, and answer the call."""
        then = partial(self._tell, call, batch)
        try:
            read = self._reads.get(call.path)
            descriptor = self._suffixed(call) if read is None else read(call)
            known = self._decider.check(batch, descriptor, expires=call.expires, then=then)
        except Exception as error:
            note(ROUTE, error)
            _fail(call, batch, error)
        else:
            if known is not None:
                then(known)

    # ------------------------------------------------------------ the request

    def _suffixed(self, call: Call) -> Descriptor:
        return self._described(call, call.method, call.path[len(UNDER) - 1 :])

    def _named(self, method: bytes, uri: bytes, call: Call) -> Descriptor:
        target = call.header(uri)
        if not target:
            name = uri.decode()
            raise Unacceptable(400, "missing_header", f"{name}: missing (expected the path that the client asked for)")
        return self._described(call, call.header(method) or call.method, _path_in(target))

    def _described(self, call: Call, method: bytes, path: bytes) -> Descriptor:
        descriptor: Descriptor = {"method": method.decode("latin-1"), "path": plain(path)}
        entries, address_header, hops = self._entries, self._address_header, []
        for name, value in call.headers:
            for entry in entries.get(name, ()):
                descriptor.setdefault(entry, value.decode("latin-1"))
            if name == address_header:
                hops.append(value.decode("latin-1"))
        address = self._proxies.client(call.peer.address, hops)
        if address is not None:
            descriptor["ip"] = address
        return descriptor

    # ------------------------------------------------------------ the answer

    def _tell(self, call: Call, batch: Batch, result: Result) -> None:
        if isinstance(result, PenstockError):
            _fail(call, batch, result)
            return
        if result:
            call.answer(_ALLOWED, b"", _raw(self._writer.headers(result.shown())))
            batch.statuses[ROUTE].append(200)
            return
        status, headers, body = refusal_of(result, self._writer)
        extra = _raw([header for header in headers if header[0] != "Content-Length"])
        if call.path == ORIGINAL:
            extra.append((STATUS, str(status).encode()))
            status = FORBIDDEN
        call.answer(_REFUSALS[status], body, extra)
        batch.statuses[ROUTE].append(status)


def _fail(call: Call, batch: Batch, error: Exception) -> None:
    head, body = answer_of(error)
    call.answer(head, body)
    batch.statuses[ROUTE].append(head.status)


def plain(path: bytes) -> str:
    """Return a path in the one form that is matched; it begins with a slash."""
    if b"%" in path:
        path = unquote_to_bytes(path)
    text = path.decode("utf-8", "replace")  # proxies pass on what clients did not encode
    if "//" in text or "/." in text:
        kept: list[str] = []
        parts = _SLASHES.sub("/", text).split("/")[1:]
        for part in parts:
            if part == "..":
                del kept[-1:]
            elif part != ".":
                kept.append(part)
        text = "/" + "/".join(kept)
        if parts[-1] in (".", "..") and not text.endswith("/"):
            text += "/"
    return text if text.startswith("/") else f"/{text}"


def _path_in(target: bytes) -> bytes:
    """Return the path of a request target: without query, scheme and host."""
    if not target.startswith(b"/"):
        target = _AUTHORITY.sub(b"", target, count=1)
    return target.partition(b"?")[0].partition(b"#")[0]


def _raw(headers: list[tuple[str, str]]) -> list[Header]:
    return [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers]


def _header(what: str, name: object) -> bytes:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidOption(f"{what} header {shown(name)}: expected the name of a header")
    return name.lower().encode()
