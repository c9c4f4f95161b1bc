"""TLS: certificates that can be renewed while connections are open, and peers that show theirs."""

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
    """A certificate and its key, and who may connect: anybody, or who shows a certificate signed by `clients`.

    Files are read when it is made, and again by `renew`: new connections get the new certificate, others keep theirs.
    """

    def __init__(self, certificate: Path, key: Path, clients: Path | None = None) -> None:
        self._certificate, self._key, self._clients = certificate, key, clients
        self._protocols: Sequence[str] = ()
        self.flaw = ""  # why the files, as they are now, are not used
        self._state = self._look()
        try:
            self._current = self._load()
        except (OSError, ValueError) as error:
            raise InvalidOption(f"TLS: {self._told(error)}") from None

    def context(self, protocols: Sequence[str] = ()) -> ssl.SSLContext:
        """For a listener, which keeps it; each handshake takes what is current. `protocols`: to agree on, by ALPN."""
        self._protocols = protocols
        return self._prepared(self._current)

    def renew(self) -> bool:
        """Look at the files: whether new ones are served from now on. If new ones are bad, the old ones stay."""
        state = self._look()
        if state == self._state:
            return False
        self._state = state
        try:
            self._current = self._prepared(self._load())
        except (OSError, ValueError) as error:
            self.flaw = self._told(error)
            log.warning("the certificate stays as it was: %s", self.flaw)
            return False
        self.flaw = ""
        return True

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called in every handshake, whether the client names a host or not: the only time to change the context."""
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._certificate, self._key)
        if self._clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self._clients)
            # Whoever resumed a session would be let in by a certificate that may be trusted no more.
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

    def _told(self, error: Exception) -> str:
        files = ", ".join(str(path) for path in (self._certificate, self._key, self._clients) if path is not None)
        return f"{files}: {error}"


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Who a certificate is made out to: its alternative names, then its common names; each once."""
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind in _KINDS]
    names += [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    return tuple(dict.fromkeys(names))
