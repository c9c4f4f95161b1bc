"""A process may fork while its threads are busy: the child can go on at once, with counters of its own."""

import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from penstock import Limiter, ManualClock, Quota
from penstock.stores import MemoryStore
from tests.integration.support import DEADLINE, hasty_switching

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

FORKS = 12
CHILDS_SECONDS = 10


def in_child(work: Callable[[], object]) -> int:
    """How `work` ended in a forked child: 0 if it returned something true, 14 if it hung."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later: forking while threads run
        child = os.fork()
    if child == 0:  # whatever happens here, pytest must not go on in the child
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(CHILDS_SECONDS)
            code = 0 if work() else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def in_children(work: Callable[[], object], forks: int = FORKS) -> set[int]:
    """How `work` ended in children forked one after the other, up to the first that did not end well."""
    codes: set[int] = set()
    for _ in range(forks):
        codes.add(in_child(work))
        if codes != {0}:
            break
    return codes


@contextmanager
def hammering(work: Callable[[int], object], threads: int = 4) -> Iterator[None]:
    """Threads call `work(0)`, `work(1)`, ... all the while."""
    done = Event()

    def run(number: int) -> None:
        while not done.is_set():
            work(number)
            number += threads

    running = [Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    with hasty_switching():
        for thread in running:
            thread.start()
        try:
            yield
        finally:
            done.set()
            for thread in running:
                thread.join(DEADLINE)
    assert not any(thread.is_alive() for thread in running)


def test_a_child_can_use_the_store_at_once() -> None:
    limiter = Limiter(MemoryStore(max_keys=4_096, clock=ManualClock()))
    quotas = Quota(10, 3600), Quota(20, 86_400, "gcra")

    def hammer(number: int) -> None:
        limiter.acquire(f"key {number % 500}", quotas[0])
        limiter.acquire(f"key {number % 500}", quotas)
        limiter.acquire(f"fresh {number}", f"5/{number % 100 + 1} seconds")

    def child() -> bool:
        for number in range(700):
            limiter.acquire(f"key {number}", quotas)
        limiter.acquire("childs own", "1/hour")
        return not limiter.acquire("childs own", "1/hour")

    with hammering(hammer):
        assert in_children(child) == {0}
    assert limiter.acquire("childs own", "1/hour")


def test_a_child_can_make_quotas_at_once() -> None:
    def child() -> bool:
        return all(Quota(limit, 4_321).limit == limit for limit in range(1, 50))

    with hammering(lambda number: Quota(number + 1, 1_234)):
        assert in_children(child, 10 * FORKS) == {0}


def test_a_child_can_use_stores_made_while_it_was_forked() -> None:
    quotas = Quota(10, 3600), Quota(20, 86_400)
    stores = [Limiter(clock=ManualClock())]

    def hammer(number: int) -> None:
        stores.append(Limiter(clock=ManualClock()))
        stores[-1].acquire("alice", quotas)
        del stores[:-4]

    def child() -> bool:
        for limiter in stores[:]:
            for number in range(300):
                limiter.acquire(f"key {number}", quotas)
        return True

    with hammering(hammer):
        assert in_children(child) == {0}


def test_a_forked_child_counts_on_its_own() -> None:
    limiter = Limiter(clock=ManualClock())
    limiter.acquire("alice", "3/hour")
    assert in_child(lambda: limiter.acquire("alice", "3/hour", cost=2) and not limiter.acquire("alice", "3/hour")) == 0
    assert limiter.peek("alice", "3/hour").remaining == 2


def test_a_child_can_fork_again() -> None:
    limiter = Limiter(clock=ManualClock())

    def grandchild() -> object:
        return limiter.acquire("alice", ["3/hour", "3/day"])

    assert in_child(lambda: in_child(grandchild) == 0 and limiter.acquire("alice", "3/hour")) == 0


def test_a_child_stands_in_no_line_of_its_parent() -> None:
    limiter = Limiter()
    limiter.acquire("alice", "1/minute gcra")
    parent = Thread(target=limiter.wait, args=("alice", "1/minute gcra"), kwargs={"timeout": 300}, daemon=True)
    parent.start()
    until = time.monotonic() + 30
    while not limiter.operations.queues._lines:
        assert time.monotonic() < until
        time.sleep(0)

    def wait_in_child() -> object:
        limiter.reset("alice", "1/minute gcra")
        return limiter.wait("alice", "1/minute gcra", timeout=300)

    assert in_children(wait_in_child, forks=3) == {0}
    limiter.reset("alice", "1/minute gcra")
