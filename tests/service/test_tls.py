"""TLS: who may connect, under which name, and certificates that are renewed while the server runs."""

from __future__ import annotations

import os
import shutil
import ssl
from pathlib import Path

import pytest

from penstock.errors import InvalidOption
from penstock.service.wire.calls import Call, Head, Peer
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.tls import ServerTls
from tests.rig.processes import wait_until
from tests.service.certificates import Authority, Pair
from tests.service.harness import LOOPS, Running, serving
from tests.service.test_http1_limits import Lavish

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Asking:
    """Keeps who asked."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []

    def handle(self, calls: list[Call]) -> None:
        for call in calls:
            self.peers.append(call.peer)
            call.answer(Head(200), b"hello")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder, "authority")


@pytest.fixture(scope="module")
def servers(authority: Authority) -> tuple[Pair, Pair]:
    return authority.sign("first", "DNS:localhost"), authority.sign("second", "DNS:localhost")


@pytest.fixture(scope="module")
def client_pair(authority: Authority) -> Pair:
    return authority.sign("caller", "DNS:caller.example", "URI:spiffe://example/caller", "email:caller@example")


@pytest.fixture
def own(servers: tuple[Pair, Pair], tmp_path: Path) -> Pair:
    """The first server's certificate, where it can be replaced."""
    own = Pair(tmp_path / "server.pem", tmp_path / "server.key")
    replace(own, servers[0])
    return own


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def replace(own: Pair, other: Pair) -> None:
    """As a certificate manager does it: each file at once, by renaming."""
    for path, source in zip(own, other, strict=True):
        new = path.with_suffix(".new")
        shutil.copy(source, new)
        os.replace(new, path)  # noqa: PTH105


def client_context(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


def name_shown(running: Running, context: ssl.SSLContext, name: str = "localhost") -> str:
    """The common name of the certificate that a new connection is shown."""
    with running.client(context, name) as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        certificate = client.socket.getpeercert()
        assert certificate
        assert client.ask(GET).status == 200
        return dict(part[0] for part in certificate["subject"])["commonName"]  # type: ignore[misc]


def test_encrypted_connection_is_marked_as_secure(loop: str, authority: Authority, own: Pair) -> None:
    handler = Asking()
    with serving(handler, tls=ServerTls(*own), loop=loop) as running:
        context = client_context(authority)
        context.set_alpn_protocols(["http/1.1"])
        with running.client(context, "localhost") as client:
            assert isinstance(client.socket, ssl.SSLSocket)
            assert client.socket.selected_alpn_protocol() == "http/1.1"
            for _ in range(3):
                assert client.ask(GET).body == b"hello"
            client.send(GET * 50)
            assert [client.answer().status for _ in range(50)] == [200] * 50
        assert handler.peers[0] == Peer("127.0.0.1", secure=True)


def test_a_client_that_offers_no_protocol_speaks_http_1(loop: str, authority: Authority, own: Pair) -> None:
    with serving(Asking(), tls=ServerTls(*own), loop=loop) as running:
        assert name_shown(running, client_context(authority)) == "first"


def test_refusals_reach_an_encrypted_peer_too(loop: str, authority: Authority, own: Pair) -> None:
    with serving(Asking(), tls=ServerTls(*own), loop=loop, limits=ServerLimits(body=1000)) as running:
        with running.client(client_context(authority), "localhost") as client:
            assert client.ask(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n").status == 413
            assert client.closed
        running.wait_empty()


def test_a_slow_reader_of_encrypted_answers_gets_all(loop: str, authority: Authority, own: Pair) -> None:
    limits = ServerLimits(unsent=10_000, calls=4)
    with (
        serving(Lavish(), limits=limits, tls=ServerTls(*own), loop=loop) as running,
        running.client(client_context(authority), "localhost") as client,
    ):
        client.send(GET * 50)
        for _ in range(50):
            assert len(client.answer().body) == 100_000


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_old_versions_are_refused(loop: str, authority: Authority, own: Pair) -> None:
    with serving(Asking(), tls=ServerTls(*own), loop=loop) as running:
        context = client_context(authority)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert name_shown(running, context) == "first"
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, ConnectionError)), running.client(context, "localhost"):
            pass
        running.wait_empty()


def test_plaintext_on_a_tls_port_is_closed(loop: str, own: Pair) -> None:
    with serving(Asking(), tls=ServerTls(*own), loop=loop, limits=ServerLimits(reading=0.3)) as running:
        with running.client() as client:
            assert b"HTTP" not in client.send(GET).rest()
        with running.client() as silent:
            assert silent.closed
        running.faults.clear()  # a failed handshake is something that event loops may mention


def test_client_has_the_names_of_its_certificate(loop: str, authority: Authority, own: Pair, client_pair: Pair) -> None:
    handler = Asking()
    with serving(handler, tls=ServerTls(*own, authority.certificate), loop=loop) as running:
        name_shown(running, client_context(authority, client_pair))
    (peer,) = handler.peers
    assert peer.names == ("caller.example", "spiffe://example/caller", "caller@example", "caller")


def test_missing_or_untrusted_client_certificate_is_refused(
    loop: str, authority: Authority, own: Pair, client_pair: Pair, tmp_path: Path
) -> None:
    handler = Asking()
    strange = Authority(tmp_path, "strange").sign("caller", "DNS:caller.example")
    with serving(handler, tls=ServerTls(*own, authority.certificate), loop=loop) as running:
        for pair in (None, strange):
            with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
                name_shown(running, client_context(authority, pair))
        assert handler.peers == []
        assert name_shown(running, client_context(authority, client_pair)) == "first"
        running.wait_empty()
        running.faults.clear()


# ---------------------------------------------------------------- renewal


def test_new_connections_are_shown_the_new_certificate(
    loop: str, authority: Authority, own: Pair, servers: tuple[Pair, Pair]
) -> None:
    tls = ServerTls(*own)
    context = client_context(authority)
    with serving(Asking(), tls=tls, loop=loop) as running, running.client(context, "localhost") as early:
        assert name_shown(running, context) == "first"
        replace(own, servers[1])
        wait_until(lambda: name_shown(running, context) == "second", "the server to notice the new certificate")
        assert early.ask(GET).status == 200, "a connection that is open stays open"
        by_address = client_context(authority)
        by_address.check_hostname = False
        with running.client(by_address, None) as nameless:  # who names no host is shown the new one too
            assert isinstance(nameless.socket, ssl.SSLSocket)
            assert "second" in str(nameless.socket.getpeercert())


def test_a_bad_certificate_leaves_the_old_one_and_says_why(
    authority: Authority, own: Pair, servers: tuple[Pair, Pair], caplog: pytest.LogCaptureFixture
) -> None:
    tls = ServerTls(*own)
    assert not tls.renew(), "nothing has changed"
    with serving(Asking(), tls=tls) as running:
        context = client_context(authority)
        for spoil in (
            lambda: own.certificate.write_text("no certificate"),
            lambda: replace(
                Pair(own.certificate, own.certificate), Pair(servers[1].certificate, servers[1].certificate)
            ),
            lambda: own.key.unlink(),
        ):
            spoil()
            assert not running.run(tls.renew)  # in the server's thread, which looks now and then as well
            assert str(own.certificate) in tls.flaw
            assert name_shown(running, context) == "first"
        assert "the certificate is not renewed" in caplog.text
        replace(own, servers[1])
        running.run(tls.renew)
        assert tls.flaw == ""
        assert name_shown(running, context) == "second"


def test_renewed_authority_decides_which_clients_are_trusted(
    loop: str, authority: Authority, own: Pair, tmp_path: Path
) -> None:
    handler = Asking()
    trusted = tmp_path / "trusted.pem"
    shutil.copy(authority.certificate, trusted)
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    shutil.copy(old.certificate, trusted)
    before = client_context(authority, old.sign("before"))
    after = client_context(authority, new.sign("after"))
    with serving(handler, tls=ServerTls(*own, trusted), loop=loop) as running:
        assert name_shown(running, before) == "first"
        shutil.copy(new.certificate, trusted)

        def let_in() -> bool:
            try:
                return name_shown(running, after) == "first"
            except (ssl.SSLError, ConnectionError, EOFError):
                return False

        wait_until(let_in, "the new authority to be trusted")
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
            name_shown(running, before)
        running.wait_empty()
        running.faults.clear()


def test_files_that_cannot_be_used_are_refused_by_name(own: Pair, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(InvalidOption, match=r"missing\.pem"):
        ServerTls(missing, own.key)
    with pytest.raises(InvalidOption, match=r"server\.pem"):
        ServerTls(own.key, own.certificate)
    with pytest.raises(InvalidOption, match=r"missing\.pem"):
        ServerTls(*own, missing)
