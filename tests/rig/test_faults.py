"""The fault proxy does what it says to real connections of a real server."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig.certificates import Certificate, can_make_certificates
from tests.rig.faults import Counts, FaultProxy, Flow
from tests.rig.fixtures import Keyspace
from tests.rig.servers import Server, free_port

PING, PONG = b"PING\r\n", b"+PONG\r\n"
PATIENCE = 60


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(server.address) as proxy:
        yield proxy


@contextmanager
def connected(proxy: FaultProxy) -> Iterator[socket.socket]:
    """A connection through the proxy that has been used once."""
    with socket.create_connection(proxy.address, timeout=PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(PING)
        assert connection.recv(100) == PONG
        yield connection


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            break
        data += more
    return data


def silent(connection: socket.socket) -> bool:
    """Whether nothing has arrived."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except BlockingIOError:
        return True
    finally:
        connection.settimeout(PATIENCE)
    return False


def seen(direction: str, before: Counts, size: int) -> Callable[[Counts], bool]:
    return lambda counts: getattr(counts, direction).seen >= getattr(before, direction).seen + size


def test_bytes_pass_unchanged_and_are_counted(proxy: FaultProxy) -> None:
    payload = bytes(range(256)) * 1_000
    with connected(proxy) as connection:
        connection.sendall(b"*2\r\n$4\r\nECHO\r\n$%d\r\n%b\r\n" % (len(payload), payload))
        assert read_exactly(connection, len(payload) + 11) == b"$%d\r\n%b\r\n" % (len(payload), payload)
        counts = proxy.when(lambda counts: counts.open == 1)
        assert counts.connections == 1
        assert counts.requests.forwarded == counts.requests.seen > len(payload)
        assert counts.replies.forwarded == counts.replies.seen > len(payload)
        assert counts.replies.lost == 0
    assert proxy.when(lambda counts: counts.open == 0).connections == 1


@pytest.mark.parametrize("flow", [Flow(latency=0.05), Flow(jitter=0.1), Flow(bandwidth=100)], ids=str)
def test_slow_replies_come_late_and_whole(proxy: FaultProxy, flow: Flow) -> None:
    with connected(proxy) as connection:
        proxy.replies = flow
        start = time.monotonic()
        connection.sendall(PING * 3)
        assert read_exactly(connection, 3 * len(PONG)) == 3 * PONG
        # 21 bytes at 100 a second take 0.21 s; the first jitter that is drawn with seed 0 is 0.084 s.
        assert time.monotonic() - start > 0.04


def test_latency_delays_but_does_not_throttle(proxy: FaultProxy) -> None:
    """Bytes that follow one another closely are all on their way at the same time."""
    with connected(proxy) as connection:
        before = proxy.counts()
        proxy.requests = Flow(latency=3_600)
        for number in range(20):
            connection.sendall(PING)
            proxy.when(seen("requests", before, (number + 1) * len(PING)))
        assert proxy.counts().requests.forwarded == before.requests.forwarded


def test_held_bytes_arrive_later(proxy: FaultProxy) -> None:
    with connected(proxy) as connection:
        before = proxy.counts()
        proxy.replies = Flow(held=True)
        connection.sendall(PING)
        proxy.when(seen("replies", before, len(PONG)))
        assert silent(connection)
        proxy.replies = Flow()
        assert connection.recv(100) == PONG


def test_half_open_connection_passes_nothing_to_the_server(proxy: FaultProxy, server: Server) -> None:
    with connected(proxy) as connection:
        connection.sendall(b"CLIENT ID\r\n")
        client_id = connection.recv(100)[1:-2]
        proxy.requests = Flow(held=True)
    assert b"id=%b " % client_id in server.ask("CLIENT", "LIST")
    proxy.requests = Flow()
    proxy.when(lambda counts: counts.open == 0)


def test_a_swallowed_request_is_never_carried_out(proxy: FaultProxy, keyspace: Keyspace) -> None:
    key = keyspace.prefix.encode()
    with connected(proxy) as connection:
        proxy.requests = Flow(lost=True)
        connection.sendall(b"SET %b lost EX 60\r\n" % key)
        proxy.when(lambda counts: counts.requests.lost > 0)
        proxy.requests = Flow()
        connection.sendall(PING)
        assert connection.recv(100) == PONG
    assert keyspace.server.ask("GET", key) is None


def test_a_reply_can_be_dropped_after_the_commit(proxy: FaultProxy, keyspace: Keyspace) -> None:
    key = keyspace.prefix.encode()
    with connected(proxy) as connection:
        proxy.replies = Flow(lost=True)
        connection.sendall(b"SET %b kept EX 60\r\n" % key)
        proxy.when(lambda counts: counts.replies.lost > 0)
        assert silent(connection)
        assert keyspace.server.ask("GET", key) == b"kept"


@pytest.mark.parametrize("size", [0, 3])
def test_a_reply_can_be_cut_short_after_the_commit(proxy: FaultProxy, keyspace: Keyspace, size: int) -> None:
    key = keyspace.prefix.encode()
    with connected(proxy) as connection:
        proxy.replies = Flow(cut_after=size)
        connection.sendall(b"SET %b kept EX 60\r\n" % key)
        assert read_exactly(connection, 100) == b"+OK\r\n"[:size]
        assert keyspace.server.ask("GET", key) == b"kept"
    proxy.replies = Flow()
    with connected(proxy):
        pass


def test_a_reset_breaks_connections_and_new_ones_work(proxy: FaultProxy) -> None:
    with connected(proxy) as connection:
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(100)
    proxy.when(lambda counts: counts.open == 0)
    with connected(proxy):
        pass


def test_new_connections_can_be_refused_while_old_ones_work(proxy: FaultProxy) -> None:
    with connected(proxy) as connection:
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(proxy.address, timeout=PATIENCE)
        connection.sendall(PING)
        assert connection.recv(100) == PONG
    proxy.accept()
    with connected(proxy):
        pass


def test_a_client_is_hung_up_on_when_there_is_no_server() -> None:
    with FaultProxy(("127.0.0.1", free_port())) as proxy:
        with socket.create_connection(proxy.address, timeout=PATIENCE) as connection:
            assert connection.recv(100) == b""
        assert proxy.counts().connections == 0


def test_port_in_use_is_exchanged(server: Server) -> None:
    proxy = FaultProxy(server.address)
    with socket.create_server(proxy.address) as rival, proxy, connected(proxy):
        assert proxy.port != rival.getsockname()[1]


def test_timeout_names_what_was_seen(proxy: FaultProxy) -> None:
    with pytest.raises(TimeoutError, match=r"in vain; seen so far: Counts\(connections=0"):
        proxy.when(lambda counts: counts.connections > 0, timeout=0.01)


async def test_proxy_works_in_an_event_loop(proxy: FaultProxy) -> None:
    reader, writer = await asyncio.open_connection(*proxy.address)
    proxy.replies = Flow(latency=0.01)
    for _ in range(3):
        writer.write(PING)
        assert await reader.readexactly(len(PONG)) == PONG
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    writer.close()


# ---------------------------------------------------------------- TLS

needs_openssl = pytest.mark.skipif(not can_make_certificates(), reason="no openssl command")


@needs_openssl
def test_proxy_adds_tls_to_a_server(server: Server, tmp_path: Path) -> None:
    certificate = Certificate.make("localhost", tmp_path)
    trusting = certificate.client_context()
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT  # the default of Python 3.13 and later
    with (
        FaultProxy(server.address, certificate=certificate) as proxy,
        socket.create_connection(proxy.address, timeout=PATIENCE) as connection,
        trusting.wrap_socket(connection, server_hostname="localhost") as secured,
    ):
        secured.sendall(PING)
        assert secured.recv(100) == PONG


@needs_openssl
def test_certificate_with_another_name_is_noticed_by_a_checking_client(server: Server, tmp_path: Path) -> None:
    certificate = Certificate.make("elsewhere.example", tmp_path)
    with (
        FaultProxy(server.address, certificate=certificate) as proxy,
        socket.create_connection(proxy.address, timeout=PATIENCE) as connection,
        pytest.raises(ssl.SSLCertVerificationError, match="not valid for 'localhost'"),
    ):
        certificate.client_context().wrap_socket(connection, server_hostname="localhost")
