"""Child processes that never outlive the tests that started them, however those end.

An exit handler is not enough: a test process may be killed. (A parent-death signal is tied to the *thread* that
started the child, and would end servers whose starter thread is done.) So each child has a watcher, a shell that waits
at a pipe whose other end only this process holds: when it breaks, the watcher kills the child and removes its folder.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

DEADLINE = 60.0
"""Seconds after which something that ought to have happened counts as hung. Machines have stood still for 25."""


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Return as soon as `holds()` is true; raise TimeoutError if that does not come to pass."""
    give_up = time.monotonic() + DEADLINE
    while not holds():
        if time.monotonic() > give_up:
            raise TimeoutError(f"waited {DEADLINE:g} s in vain for {what}")
        time.sleep(0.002)


_WATCH = 'read -r _; kill -9 "$1"; rm -rf -- "$2"'
_children: set[Child] = set()


class Child:
    """A running process with a scratch folder, in which `log` is what it printed. It is addressed by its id alone."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=os.environ | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt at the keyboard is for us to handle, not for our children
            )
        self.pid = self._process.pid
        self._owner = os.getpid()
        self._watcher = subprocess.Popen(
            ("/bin/sh", "-c", _WATCH, "watcher", str(self.pid), str(folder)),
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        _children.add(self)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def freeze(self) -> None:
        """Stop it without its knowing (SIGSTOP); returns when it stands still. Its connections stay open."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to end (SIGTERM), frozen or not, and wait until it has."""
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(DEADLINE)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it at once (SIGKILL), and its watcher."""
        for process in (self._process, self._watcher):  # in this order, so that it is watched until it is gone
            process.kill()
            process.wait(DEADLINE)
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        _children.discard(self)


def _kill_own() -> None:
    for child in list(_children):
        if child._owner == os.getpid():
            child.kill()


def _let_go() -> None:
    """In a forked process: hold no end of the watchers' pipes, or they would wait for us as well."""
    for child in _children:
        assert child._watcher.stdin is not None
        child._watcher.stdin.close()


atexit.register(_kill_own)
os.register_at_fork(after_in_child=_let_go)
