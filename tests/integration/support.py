"""What tests with real threads share. Nothing sleeps: whatever is waited for has a generous deadline."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Barrier, Thread
from typing import TypeVar

T = TypeVar("T")

DEADLINE = 60.0
"""Seconds after which something that ought to have ended counts as hung."""


@contextmanager
def hasty_switching() -> Iterator[None]:
    """Threads take turns as often as the interpreter lets them, so that whatever can interleave does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def in_threads(work: Callable[[int], T], threads: int = 8) -> list[T]:
    """The results of `work(0)`, `work(1)`, ... , started at the same moment. A hang or an error is an error here."""
    start = Barrier(threads)
    results: list[T | None] = [None] * threads
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            start.wait(DEADLINE)
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    running = [Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    with hasty_switching():
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(DEADLINE)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in running), "threads hang"
    return results  # type: ignore[return-value]
