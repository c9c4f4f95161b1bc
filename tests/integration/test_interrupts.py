"""Ctrl-C and other exceptions out of the blue: whatever they interrupt, no counter stays locked."""

import ctypes
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from threading import Thread

import pytest

from penstock import Limiter, ManualClock, Quota
from penstock.model import Acquire, Ask, Verdict
from penstock.stores import MemoryStore
from tests.integration.support import DEADLINE, hasty_switching

INTERRUPTS = 1_500
KEYS = [f"key {number}" for number in range(64)]
LONE, OTHER = Quota(10**6, 86_400), Quota(10**6, 43_200, "gcra")


class Interruption(BaseException):
    """Raised in a thread from outside."""


class Hammer:
    """A thread that makes one call after the other and survives being interrupted, one interrupt at a time."""

    def __init__(self, call: Callable[[int], object]) -> None:
        self.call = call
        self.calls = 0
        self.rounds = 0
        self.done = False
        self.strange: list[BaseException] = []
        self.thread = Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while not self.done:
            try:
                self.rounds += 1  # from here to the end of the try, an interrupt may come
                while not self.done:
                    self.calls += 1
                    self.call(self.calls)
            except Interruption:
                pass
            except BaseException as error:
                self.strange.append(error)

    def interrupt(self) -> None:
        """Raise `Interruption` in the thread, and wait until it has survived it."""
        rounds = self.rounds
        interrupt(self.thread)
        self.wait(lambda: self.rounds > rounds)

    def wait(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < until
            self.thread.join(0.000_05)


def interrupt(thread: Thread) -> None:
    """Raise `Interruption` in a thread, wherever it is."""
    ident, kind = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interruption)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, kind) == 1


def interrupted_often(call: Callable[[int], object] | Hammer) -> list[BaseException]:
    """The errors of other kinds when `call` is called in a thread that is interrupted again and again."""
    hammer = call if isinstance(call, Hammer) else Hammer(call)
    gc.disable()  # in a finaliser, Python would swallow the interrupt
    with hasty_switching():
        hammer.thread.start()
        hammer.wait(lambda: hammer.calls > 100)
        for _ in range(INTERRUPTS):
            hammer.interrupt()
        hammer.done = True
        hammer.thread.join(DEADLINE)
    gc.enable()
    assert not hammer.thread.is_alive()
    return hammer.strange


def locked(store: MemoryStore) -> int:
    """How many stripes cannot be locked by this thread, though nobody else is at work."""
    free = [stripe.lock.acquire(blocking=False) for stripe in store._stripes.all]
    for stripe, got in zip(store._stripes.all, free, strict=True):
        if got:
            stripe.lock.release()
    return free.count(False)


def calls(store: MemoryStore) -> dict[str, Callable[[int], object]]:
    limiter = Limiter(store)

    def several(number: int) -> object:
        start = number % 60
        return store.run([Acquire(tuple(Ask(key, LONE) for key in KEYS[start : start + 4]))])

    def together(number: int) -> object:
        start = number % 60
        return store.decide(tuple(Ask(key, LONE) for key in KEYS[start : start + 4]), 0, Verdict)

    return {
        "acquire": lambda number: limiter.acquire(KEYS[number % 64], LONE),
        "a new key each": lambda number: limiter.acquire(f"new {number}", LONE),
        "several quotas": lambda number: limiter.acquire(KEYS[number % 64], [LONE, OTHER]),
        "several keys": several,
        "several keys at once": together,
        "peek": lambda number: limiter.peek(KEYS[number % 64], LONE),
        "refund": lambda number: limiter.refund(limiter.acquire(KEYS[number % 64], LONE)),
        "reset": lambda number: limiter.reset(KEYS[number % 64], LONE),
        "a new quota each": lambda number: limiter.acquire("alice", Quota(number, 60)),
    }


@pytest.mark.parametrize("call", calls(MemoryStore()))
def test_no_counter_stays_locked_after_interrupts(call: str) -> None:
    store = MemoryStore(max_keys=4_096, clock=ManualClock())
    strange = interrupted_often(calls(store)[call])
    assert strange == []
    assert locked(store) == 0


WAITING = """
import os, signal, threading
from penstock import Limiter
from penstock.stores import MemoryStore

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs in the background is started without
store = MemoryStore()
limiter = Limiter(store)
limiter.acquire("alice", "10/minute")
holding, calling, interrupted = threading.Event(), threading.Event(), threading.Event()

def hold():
    for stripe in store._stripes.all:
        stripe.lock.acquire()
    holding.set()
    calling.wait()
    while not interrupted.wait(0.01):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    for stripe in store._stripes.all:
        stripe.lock.release()

thread = threading.Thread(target=hold)
thread.start()
holding.wait()
try:
    calling.set()
    CALL
except BaseException as error:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupted.set()
    print(type(error).__name__)
thread.join()
assert limiter.peek("alice", "10/minute", cost=0).remaining == 9
"""


@pytest.mark.parametrize(
    "call",
    [
        'limiter.acquire("alice", "10/minute")',
        'limiter.acquire("alice", ["10/minute", "20/hour"])',
        'limiter.peek("alice", "10/minute")',
        'limiter.reset("alice", "10/minute")',
    ],
)
def test_ctrl_c_while_waiting_for_a_counter_is_a_keyboard_interrupt(call: str) -> None:
    program = WAITING.replace("CALL", call)
    done = subprocess.run(
        (sys.executable, "-c", program), capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert (done.stdout, done.returncode) == ("KeyboardInterrupt\n", 0), done.stderr
