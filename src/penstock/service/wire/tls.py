"""TLS: server certificates that are renewed while connections are open, and client certificates."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import InvalidOption

log = logging.getLogger("penstock.service")

_KINDS = frozenset({"DNS", "URI", "email", "IP Address"})


class ServerTls:
    """A certificate, its key, and optionally the authority (`clients`) whose client certificates are required.

    The files are read on creation and by `renew`. New connections get the new certificate; open ones keep theirs.
    """

    def __init__(self, certificate: Path, key: Path, clients: Path | None = None) -> None:
        self._certificate, self._key, self._clients = certificate, key, clients
        self._protocols: Sequence[str] = ()
        self.flaw = ""  # why the present files are not used
        self._stamps = self._look()
        try:
            self._current = self._load()
        except (OSError, ValueError) as error:
            raise InvalidOption(f"TLS: {self._described(error)}") from None

    def context(self, protocols: Sequence[str] = ()) -> ssl.SSLContext:
        """Return a context for a listener. Each handshake switches to the current certificate. `protocols`: ALPN."""
        self._protocols = protocols
        return self._prepared(self._current)

    def renew(self) -> bool:
        """Read changed files; return whether they are in use now. Invalid files leave the old certificate in place."""
        stamps = self._look()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            self._current = self._prepared(self._load())
        except (OSError, ValueError) as error:
            self.flaw = self._described(error)
            log.warning("the certificate is not renewed: %s", self.flaw)
            return False
        self.flaw = ""
        return True

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Switch to the current context. Called in every handshake, even without a host name (SNI)."""
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._certificate, self._key)
        if self._clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self._clients)
            # A resumed session would skip the check of the client certificate, which may no longer be trusted.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context

    def _prepared(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.sni_callback = self._choose
        if self._protocols:
            context.set_alpn_protocols(list(self._protocols))
        return context

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in (self._certificate, self._key, self._clients) if path is not None]

    def _described(self, error: Exception) -> str:
        files = ", ".join(str(path) for path in (self._certificate, self._key, self._clients) if path is not None)
        return f"{files}: {error}"


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the alternative names of a certificate, then its common names, each once."""
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind in _KINDS]
    names += [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    return tuple(dict.fromkeys(names))
