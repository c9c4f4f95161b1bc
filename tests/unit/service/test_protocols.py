"""Which protocol a connection speaks."""

from __future__ import annotations

import pytest

from penstock.service.wire.http1.connection import Http1
from penstock.service.wire.protocols import ALPN, PROTOCOLS, WireProtocol, choose
from penstock.service.wire.tls import names_of

LONG = WireProtocol("other", b"PRI * OTHER", Http1)
LAST = WireProtocol("http/1.1", b"", Http1)


@pytest.mark.parametrize(
    ("first", "chosen"),
    [
        (b"P", None),
        (b"PRI * OTHE", None),
        (b"PRI * OTHER", LONG),
        (b"PRI * OTHER and more", LONG),
        (b"PO", LAST),
        (b"G", LAST),
        (b"PRI * other", LAST),
    ],
)
def test_protocol_is_chosen_as_soon_as_its_first_bytes_differ(first: bytes, chosen: WireProtocol | None) -> None:
    assert choose(first, [LONG, LAST]) is chosen


def test_a_table_must_end_with_a_protocol_that_always_fits() -> None:
    assert PROTOCOLS[-1].preface == b""
    assert "http/1.1" in ALPN
    with pytest.raises(LookupError):
        choose(b"G", [LONG])


def test_names_of_a_certificate_are_its_alternative_and_common_names() -> None:
    certificate = {
        "subject": ((("organizationName", "Some"),), (("commonName", "first"),), (("commonName", "a.example"),)),
        "subjectAltName": (
            ("DNS", "a.example"),
            ("URI", "spiffe://example/a"),
            ("email", "a@example"),
            ("IP Address", "192.0.2.1"),
            ("DirName", "ignored"),
        ),
    }
    assert names_of(certificate) == ("a.example", "spiffe://example/a", "a@example", "192.0.2.1", "first")
    assert names_of({}) == ()
