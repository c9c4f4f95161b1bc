"""Throwaway TLS certificates, made by the `openssl` command. They are self-signed, so clients trust them directly."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path


def can_make_certificates() -> bool:
    """Return whether the `openssl` command is installed."""
    return shutil.which("openssl") is not None


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate for one host, valid for two days, and its private key."""

    host: str
    path: Path
    key: Path

    @classmethod
    def make(cls, host: str, folder: Path) -> Certificate:
        """Create one for a host name or address. Another host than the server's tests host name checks."""
        path, key = folder / f"{host}.pem", folder / f"{host}.key"
        command = (
            *("openssl", "req", "-x509", "-days", "2", "-nodes", "-newkey", "ec"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", str(key), "-out", str(path)),
            *("-subj", f"/CN={host}", "-addext", f"subjectAltName={_kind(host)}:{host}"),
            *("-addext", "keyUsage=critical,digitalSignature,keyCertSign"),  # strict clients want it of a CA
        )
        subprocess.run(command, check=True, capture_output=True)
        return cls(host, path, key)

    def server_context(self) -> ssl.SSLContext:
        """Return a server context with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path, self.key)
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return a client context that trusts only this certificate, and checks the host name."""
        return ssl.create_default_context(cafile=str(self.path))


def _kind(host: str) -> str:
    try:
        ip_address(host)
    except ValueError:
        return "DNS"
    return "IP"
