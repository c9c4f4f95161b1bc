"""Authentication, as a handler around a handler.

A caller presents a bearer token, or a client certificate with one of the allowed names. The token comes in
`Authorization` or in `X-Penstock-Token`, because a proxy may have to forward its client's own `Authorization`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from hashlib import blake2b

from penstock.errors import InvalidOption
from penstock.service.api.bodies import encode
from penstock.service.api.problems import TYPE, Unacceptable, problem_of
from penstock.service.wire.calls import Call, Handler, Head

LEAST_TOKEN = 16
ANY_NAME = "*"
"""In place of a certificate's name: any certificate that the server trusts."""

_UNAUTHORIZED = Head(401, [TYPE, (b"www-authenticate", b"Bearer")])
_DETAIL = "expected a bearer token that this server knows, or a certificate with a name it knows"
_BODY = encode(problem_of(Unacceptable(401, "unauthorized", _DETAIL)))


class Guarded:
    """Passes authenticated calls to `handler`, and all calls of `open_paths`.

    - `tokens`: the bearer tokens, 16 characters or more each. Several may be valid, so that they can be rotated.
    - `names`: names of client certificates, as in a peer's `names`. `"*"` is any trusted certificate.
    """

    def __init__(
        self,
        handler: Handler,
        tokens: Sequence[str],
        open_paths: Collection[bytes] = (),
        *,
        names: Collection[str] = (),
    ) -> None:
        for position, token in enumerate(tokens):
            if not isinstance(token, str) or len(token) < LEAST_TOKEN or not (token.isascii() and token.isprintable()):
                raise InvalidOption(f"token {position}: expected at least {LEAST_TOKEN} printable ASCII characters")
        if not tokens and not names:
            raise InvalidOption("auth: expected tokens, or names of certificates")
        # Tokens are looked up by a keyed hash, so that the time of a look-up reveals nothing about them.
        self._hash = blake2b(key=os.urandom(32), digest_size=16)
        self._tokens = frozenset(self._hashed(token.encode()) for token in tokens)
        self._names = frozenset(names)
        self._handler = handler
        self._open = frozenset(open_paths)

    def handle(self, calls: list[Call]) -> None:
        passed = [call for call in calls if call.path in self._open or self._knows(call)]
        if len(passed) < len(calls):
            passed_ids = set(map(id, passed))
            for call in calls:
                if id(call) not in passed_ids:
                    call.answer(_UNAUTHORIZED, _BODY)
        if passed:
            self._handler.handle(passed)

    def _knows(self, call: Call) -> bool:
        names = call.peer.names
        if names and (ANY_NAME in self._names or not self._names.isdisjoint(names)):
            return True
        for name, value in call.headers:
            if name == b"authorization":
                if value[:7].lower() == b"bearer " and self._hashed(value[7:].strip()) in self._tokens:
                    return True
            elif name == b"x-penstock-token" and self._hashed(value) in self._tokens:
                return True
        return False

    def _hashed(self, token: bytes) -> bytes:
        keyed = self._hash.copy()
        keyed.update(token)
        return keyed.digest()
