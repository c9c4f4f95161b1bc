"""The servers of other tests: real processes that can be controlled and end with the tests."""

import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.certificates import Certificate, can_make_certificates
from tests.rig.clock_shim import can_step_clocks
from tests.rig.fixtures import Keyspace, check_expiries
from tests.rig.processes import wait_until
from tests.rig.resp import Refusal
from tests.rig.servers import Sentinel, Server, ServerDied, binary, flavours, free_port, speaks_tls

HOUR = 3_600
MICROS = 1_000_000


@pytest.fixture
def own(flavour: str) -> Iterator[Server]:
    """A server of the test's own, to be maltreated."""
    with Server(flavour) as server:
        yield server


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()  # dead, and not reaped yet


def test_at_least_the_server_that_comes_as_a_wheel_can_run() -> None:
    assert "valkey" in flavours()


def test_an_unknown_flavour_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="flavour 'ketchup': expected one of valkey, redis"):
        binary("ketchup")


def test_server_answers_on_its_port_and_its_socket(server: Server) -> None:
    assert server.ask("PING") == b"PONG"
    with socket.create_connection(server.address, timeout=30) as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(100) == b"+PONG\r\n"


def test_replies_of_every_kind_are_read(server: Server, keyspace: Keyspace) -> None:
    key = keyspace.prefix + "k"
    with server.talk() as conversation:
        assert conversation.ask("SET", key, b"\x00\r\n\xff", "PX", 60_000) == b"OK"
        assert conversation.ask("GET", key) == b"\x00\r\n\xff"
        assert conversation.ask("GET", key + "?") is None
        assert conversation.ask("EXISTS", key) == 1
        assert conversation.ask("EVAL", "return {1, {'two'}, {}}", 0) == [1, [b"two"], []]
        with pytest.raises(Refusal, match=r"^WRONGTYPE"):
            conversation.ask("LPUSH", key, "x")
        assert conversation.ask_all([("ECHO", word) for word in "ab"]) == [b"a", b"b"]


def test_further_configuration_and_a_password_apply(flavour: str) -> None:
    with Server(flavour, config=["maxmemory 5mb", "maxmemory-policy noeviction"], password="sesame") as server:
        assert server.ask("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"5242880"]
        assert server.url == f"redis://:sesame@127.0.0.1:{server.port}"
        with socket.create_connection(server.address, timeout=30) as connection:
            connection.sendall(b"PING\r\n")
            assert connection.recv(100).startswith(b"-NOAUTH")


def test_a_server_that_cannot_start_says_why(flavour: str) -> None:
    server = Server(flavour, config=["no-such-directive yes"])
    with pytest.raises(ServerDied, match="no-such-directive"), server:
        pass
    assert not server.folder.exists()


def test_port_in_use_is_exchanged(flavour: str) -> None:
    server = Server(flavour)
    with socket.create_server(("127.0.0.1", server.port)) as rival, server:
        assert server.port != rival.getsockname()[1]
        assert server.ask("PING") == b"PONG"


def test_restarted_server_is_empty_and_has_its_port(own: Server) -> None:
    pid, address = own.pid, own.address
    own.ask("SET", "k", "v")
    own.restart()
    assert own.pid != pid
    assert own.address == address
    assert own.ask("DBSIZE") == 0


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_ended_server_can_start_again(own: Server, ending: str) -> None:
    getattr(own, ending)()
    assert gone(own.pid)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(own.address, timeout=30)
    own.start()
    assert own.ask("PING") == b"PONG"


def test_frozen_server_keeps_connections_and_answers_when_thawed(own: Server) -> None:
    with own.talk() as conversation:
        own.freeze()
        with pytest.raises(TimeoutError):
            own.ask("PING", timeout=0.05)
        own.thaw()
        assert conversation.ask("PING") == b"PONG"


def test_a_frozen_server_can_be_stopped(own: Server) -> None:
    own.freeze()
    own.stop()
    assert gone(own.pid)


def test_server_does_not_outlive_a_killed_test_process(flavour: str) -> None:
    program = f"""if True:
        import time
        from tests.rig.servers import Server
        server = Server({flavour!r})
        server.start()
        stopped = Server({flavour!r})
        stopped.start()
        stopped.kill()
        print(server.pid, server.folder, stopped.folder, flush=True)
        time.sleep(600)"""
    with subprocess.Popen((sys.executable, "-c", program), stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        pid, *folders = tests.stdout.readline().split()
        assert not gone(int(pid))
        tests.send_signal(signal.SIGKILL)
    wait_until(lambda: gone(int(pid)) and not any(Path(folder).exists() for folder in folders), "the orphans' end")


def test_server_does_not_outlive_a_test_process_with_living_forks(flavour: str) -> None:
    program = f"""if True:
        import os, time
        from tests.rig.servers import Server
        server = Server({flavour!r})
        server.start()
        fork = os.fork()
        if fork:
            print(server.pid, fork, flush=True)
        time.sleep(600)"""
    with subprocess.Popen((sys.executable, "-c", program), stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        pid, fork = map(int, tests.stdout.readline().split())
        tests.send_signal(signal.SIGKILL)
        wait_until(lambda: gone(pid), "the orphan's end")
        assert not gone(fork)
        os.kill(fork, signal.SIGKILL)


def test_a_fork_that_exits_takes_no_server_with_it(own: Server) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later: forking while threads run
        child = os.fork()
    if child == 0:
        code = 1
        try:
            from tests.rig import processes

            processes._close_own()  # what its exit handlers would do
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert own.ask("PING") == b"PONG"


def test_port_of_a_killed_server_stays_reserved(own: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    own.kill()
    monkeypatch.setattr("tests.rig.servers._PORTS", [own.port] * 200)
    with pytest.raises(OSError, match="no free port"):
        free_port()
    own.start()


def test_server_is_awake_while_it_runs_unfrozen(own: Server) -> None:
    assert own.awake
    own.freeze()
    assert not own.awake
    own.thaw()
    assert own.awake
    own.freeze()
    own.kill()
    assert not own.awake
    own.start()
    assert own.awake


def test_restarted_server_has_what_it_saved(own: Server) -> None:
    own.ask("CONFIG", "SET", "maxmemory", "5mb")
    own.ask("CONFIG", "REWRITE")
    own.restart()
    assert own.ask("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"5242880"]


def test_ports_are_not_those_of_outgoing_connections() -> None:
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 1
    assert max(ports) + 10_000 < 32_768


def test_replicas_follow_and_sentinels_watch(flavour: str) -> None:
    """All that a replicated set-up needs of a server is a few lines of configuration."""
    with (
        Server(flavour) as primary,
        Server(flavour, config=[f"replicaof 127.0.0.1 {primary.port}"]) as replica,
        Sentinel(flavour, config=[f"sentinel monitor main 127.0.0.1 {primary.port} 1"]) as sentinel,
    ):
        wait_until(lambda: b"state=online" in primary.ask("INFO", "replication"), "the replica's link")
        assert replica.ask("ROLE")[0] == b"slave"
        wait_until(lambda: b"slaves=1" in sentinel.ask("INFO", "sentinel"), "the sentinel's look at the replica")
        named = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
        assert named == [b"127.0.0.1", str(primary.port).encode()]


# ---------------------------------------------------------------- the clock


@pytest.mark.skipif(not can_step_clocks(), reason="no C compiler to build the clock shim with")
def test_clock_of_a_server_can_be_stepped_both_ways(flavour: str) -> None:
    with Server(flavour, steppable=True) as server:

        def ahead() -> float:
            return (server.time() - time.time_ns() / 1_000) / MICROS

        # Whole minutes of leeway, because the machine may stand still between two readings.
        assert ahead() == pytest.approx(0, abs=120)
        server.step_clock(+HOUR)
        assert ahead() == pytest.approx(HOUR, abs=120)
        server.restart()
        assert ahead() == pytest.approx(HOUR, abs=120)
        server.step_clock(-2 * HOUR)
        assert ahead() == pytest.approx(-HOUR, abs=120)
        script = server.ask("EVAL", "return redis.call('TIME')", 0)
        assert int(script[0]) == pytest.approx(time.time() - HOUR, abs=120)


@pytest.mark.skipif(not can_step_clocks(), reason="no C compiler to build the clock shim with")
def test_a_step_of_its_clock_stretches_and_ends_expiries(flavour: str) -> None:
    """What a limiter must live with, and the reason that it may not trust expiry."""
    with Server(flavour, steppable=True) as server:
        server.ask("SET", "k", "v", "EX", 60 * HOUR)
        server.step_clock(-HOUR)
        assert server.ask("TTL", "k") > 60 * HOUR
        server.step_clock(62 * HOUR)
        assert server.ask("GET", "k") is None


def test_a_clock_that_cannot_be_stepped_says_so(server: Server) -> None:
    with pytest.raises(RuntimeError, match="steppable=True"):
        server.step_clock(1)


# ---------------------------------------------------------------- TLS


@pytest.mark.skipif(not can_make_certificates(), reason="no openssl command")
def test_server_built_with_tls_speaks_it(flavour: str, tmp_path: Path) -> None:
    certificate = Certificate.make("127.0.0.1", tmp_path)
    if not speaks_tls(flavour, certificate):
        pytest.skip(f"this {flavour}-server was built without TLS")
    with Server(flavour, certificate=certificate) as server:
        assert server.url.startswith("rediss://")
        with (
            socket.create_connection(server.address, timeout=30) as connection,
            certificate.client_context().wrap_socket(connection, server_hostname="127.0.0.1") as secured,
        ):
            secured.sendall(b"PING\r\n")
            assert secured.recv(100) == b"+PONG\r\n"


# ---------------------------------------------------------------- the keys of a test


def test_a_key_that_never_expires_is_found(keyspace: Keyspace) -> None:
    keyspace.server.ask("SET", keyspace.prefix + "immortal", "v")
    with pytest.raises(AssertionError, match=r"immortal' never expires"):
        keyspace.check()
    keyspace.server.ask("DEL", keyspace.prefix + "immortal")


def test_a_key_that_expires_beyond_the_horizon_is_found(keyspace: Keyspace) -> None:
    keyspace.server.ask("SET", keyspace.prefix + "late", "v", "EX", HOUR)
    assert check_expiries(keyspace.server, keyspace.prefix) == 1
    with pytest.raises(AssertionError, match=r"late' expires in \d+ ms, beyond 60 s"):
        check_expiries(keyspace.server, keyspace.prefix, horizon=60)


def test_only_keys_with_the_prefix_are_looked_at_whatever_it_contains(keyspace: Keyspace) -> None:
    odd = keyspace.prefix + "[a*?\\]"
    keyspace.server.ask("SET", odd + "1", "v", "EX", HOUR)
    keyspace.server.ask("SET", keyspace.prefix + "a", "v", "EX", HOUR)
    assert check_expiries(keyspace.server, odd) == 1
    assert keyspace.check() == 2


def test_a_server_can_be_started_by_another_command() -> None:
    with Server(flavours()[0], prefix=("nice", "-n", "7")) as server:
        nicer = os.getpriority(os.PRIO_PROCESS, server.pid) - os.getpriority(os.PRIO_PROCESS, 0)
        assert nicer == 7, "it has become the server, and brought what it did"
