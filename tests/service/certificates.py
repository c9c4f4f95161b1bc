"""Certificates for tests, made by openssl: an authority of our own, and what it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Pair(NamedTuple):
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates, all in one folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
        self._openssl("req", "-x509", *_NEW_KEY, self._pair.key, "-out", self._pair.certificate, "-subj", f"/CN={name}")

    @property
    def certificate(self) -> Path:
        return self._pair.certificate

    def sign(self, name: str, *others: str) -> Pair:
        """A certificate for `name`, and alternative names such as `DNS:localhost`."""
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        alternatives = ("-addext", f"subjectAltName={','.join(others)}") if others else ()
        signer = ("-CA", self._pair.certificate, "-CAkey", self._pair.key)
        self._openssl(
            "req",
            "-x509",
            *_NEW_KEY,
            pair.key,
            "-out",
            pair.certificate,
            "-subj",
            f"/CN={name}",
            *signer,
            *alternatives,
        )
        return pair

    def _openssl(self, *arguments: str | Path) -> None:
        subprocess.run(("openssl", *arguments), check=True, capture_output=True, timeout=60)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-keyout")
