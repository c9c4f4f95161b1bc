"""The history checker on real servers: it catches a limiter that looks before it counts, and trusts an atomic one."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Barrier

import pytest

from penstock import Quota
from penstock.testing.history import CallHistory
from tests.integration.support import DEADLINE, in_threads
from tests.rig.faults import FaultProxy, Flow
from tests.rig.fixtures import Keyspace
from tests.rig.resp import Conversation
from tests.rig.servers import Server, flavours

THREADS = 8
EACH = 20
LIMIT = 50
QUOTA = Quota.parse(f"{LIMIT}/3650 days rolling_window")  # does not end while we look
LIFE = 600

ATOMIC = """
local used = redis.call('INCR', KEYS[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
if used <= tonumber(ARGV[1]) then return 1 end
redis.call('DECR', KEYS[1])
return 0
"""

Limit = Callable[[Conversation, str], bool]


def atomic(conversation: Conversation, key: str) -> bool:
    return bool(conversation.ask("EVAL", ATOMIC, 1, key, LIMIT, LIFE))


class CheckThenIncrement:
    """The usual first attempt. All threads read before any of them writes, so that the race always shows."""

    def __init__(self) -> None:
        self._looked = Barrier(THREADS)
        self._rushing = True

    def __call__(self, conversation: Conversation, key: str) -> bool:
        used = int(conversation.ask("GET", key) or 0)
        if self._rushing:
            self._looked.wait(DEADLINE)
            self._rushing = False
        if used >= LIMIT:
            return False
        conversation.ask("SET", key, used + 1, "EX", LIFE)
        return True


def history_of(limit: Limit, keyspace: Keyspace) -> CallHistory:
    """What many threads saw of a limiter."""
    history = CallHistory()
    key = keyspace.prefix + "counter"

    def work(_: int) -> None:
        with keyspace.server.talk() as conversation:
            for _ in range(EACH):
                invoked = history.now()
                admitted = limit(conversation, key)
                history.note("alice", invoked, "admitted" if admitted else "refused")

    in_threads(work, THREADS)
    keyspace.horizon = LIFE
    assert keyspace.check() == 1
    return history


def test_a_limiter_that_checks_and_then_increments_is_caught(keyspace: Keyspace) -> None:
    history = history_of(CheckThenIncrement(), keyspace)
    with pytest.raises(AssertionError, match=f"at least .* where at most {LIMIT} are promised"):
        history.check(QUOTA)
    with pytest.raises(AssertionError, match=f"expected exactly {LIMIT}"):
        history.check_total(QUOTA)


def test_a_limiter_that_counts_in_one_step_is_trusted(keyspace: Keyspace) -> None:
    history = history_of(atomic, keyspace)
    assert len(history.calls) == THREADS * EACH
    history.check(QUOTA)
    history.check_total(QUOTA)
    history.check_refusals(QUOTA)


def test_a_limiter_that_refuses_without_need_is_caught(keyspace: Keyspace) -> None:
    history = history_of(lambda conversation, key: atomic(conversation, key) and atomic(conversation, key), keyspace)
    with pytest.raises(AssertionError, match=r"was refused .* although at most \d+ of 50 units were used"):
        history.check_refusals(QUOTA)


def test_histories_of_several_processes_are_judged_as_one(keyspace: Keyspace, tmp_path: Path) -> None:
    program = f"""if True:
        import sys
        from pathlib import Path
        from penstock.testing.history import CallHistory
        from tests.rig.resp import Conversation
        node, socket, key, file = sys.argv[1:]
        history = CallHistory(node=node)
        with Conversation(Path(socket), {DEADLINE}) as conversation:
            for _ in range({LIMIT}):
                invoked = history.now()
                admitted = conversation.ask("EVAL", {ATOMIC!r}, 1, key, {LIMIT}, {LIFE})
                history.note("alice", invoked, "admitted" if admitted else "refused")
        history.write(Path(file))"""
    server_socket = str(keyspace.server.socket)
    files = [tmp_path / f"{node}.jsonl" for node in range(2)]
    processes = [
        subprocess.Popen((sys.executable, "-c", program, file.stem, server_socket, keyspace.prefix, str(file)))
        for file in files
    ]
    assert [process.wait(DEADLINE) for process in processes] == [0, 0]
    history = CallHistory.read(*files)
    assert {call.node for call in history.calls} == {"0", "1"}
    history.check(QUOTA)
    history.check_total(QUOTA)


@pytest.mark.parametrize("flavour", flavours())
def test_a_reply_that_was_lost_is_counted_both_ways(flavour: str) -> None:
    """The server charged it, and its caller cannot know: an exact total must allow for that, and nothing else."""
    history = CallHistory()
    with Server(flavour) as server, FaultProxy(server.address) as proxy:
        proxy.replies = Flow(cut_after=0)
        invoked = history.now()
        with pytest.raises(ConnectionError):
            _incr_over_tcp(proxy.address)
        history.note("alice", invoked, "unknown")
        assert server.ask("GET", "k") == b"1"
        for _ in range(LIMIT - 1):
            invoked = history.now()
            server.ask("INCR", "k")
            history.note("alice", invoked, "admitted")
    history.check(QUOTA)
    history.check_total(QUOTA)
    history.calls.pop(0)
    with pytest.raises(AssertionError, match="49 to 49 units admitted"):
        history.check_total(QUOTA)


def _incr_over_tcp(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=DEADLINE) as connection:
        connection.sendall(b"INCR k\r\n")
        if not connection.recv(100):
            raise ConnectionError("no reply")
