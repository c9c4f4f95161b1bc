"""What tests of topologies share."""

from pathlib import Path

import pytest

from tests.rig.certificates import Certificate, can_make_certificates
from tests.rig.servers import speaks_tls


@pytest.fixture
def certificate(flavour: str, tmp_path: Path) -> Certificate | None:
    """A certificate, where the flavour was built with TLS."""
    certificate = Certificate.make("127.0.0.1", tmp_path) if can_make_certificates() else None
    return certificate if certificate and speaks_tls(flavour, certificate) else None
