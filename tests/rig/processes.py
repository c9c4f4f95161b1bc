"""Child processes that never outlive the tests that started them.

An exit handler is not enough: a test process may be killed. (A parent-death signal is tied to the *thread* that
started the child, and would end servers whose starter thread is done.) So each scratch folder has a watcher, a shell
that reads process ids from a pipe whose other end only this process holds. When the pipe breaks, the watcher kills the
latest process and removes the folder.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

DEADLINE = 60.0
"""Seconds after which a wait counts as hung. Machines have stood still for 25."""


def wait_until(holds: Callable[[], bool], what: str, pause: float = 0.002, within: float = DEADLINE) -> None:
    """Return when `holds()` is true, checked every `pause` seconds; raise TimeoutError after `within` seconds."""
    give_up = time.monotonic() + within
    while not holds():
        if time.monotonic() > give_up:
            raise TimeoutError(f"waited {within:g} s for {what}")
        time.sleep(pause)


_WATCH = 'while read -r line; do pid=$line; done; [ -z "$pid" ] || kill -9 "$pid"; rm -rf -- "$1"'
_open: set[Workplace] = set()


class Workplace:
    """A scratch folder, and one process at a time that works in it."""

    def __init__(self, prefix: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))
        self.log = self.folder / "log"
        self.frozen = False
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher = subprocess.Popen(
            ("/bin/sh", "-c", _WATCH, "watcher", str(self.folder)),
            bufsize=0,  # no buffer, so no lock that a fork could copy while it is held
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        _open.add(self)

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a process in the folder; its output goes to `log`."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must reach the tests, not the servers
            )
        self._tell_watcher(str(self.pid))

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"nothing was started in {self.folder}")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def freeze(self) -> None:
        """Freeze the process (SIGSTOP); return when it is frozen. Its connections stay open."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)
        self.frozen = True

    def thaw(self) -> None:
        """Thaw it (SIGCONT)."""
        self.process.send_signal(signal.SIGCONT)
        self.frozen = False

    def stop(self) -> None:
        """End it (SIGTERM), frozen or not, and wait for its end."""
        self.thaw()
        self.process.terminate()
        try:
            self.process.wait(DEADLINE)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        self.process.kill()
        self.process.wait(DEADLINE)
        self.frozen = False
        self._tell_watcher("")

    def close(self) -> None:
        """End the process, if one runs, and remove the folder."""
        if self not in _open:
            return
        if self.running:
            self.kill()
        _open.discard(self)
        self._watcher.kill()
        self._watcher.wait(DEADLINE)
        self._let_go()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tell_watcher(self, line: str) -> None:
        assert self._watcher.stdin is not None
        self._watcher.stdin.write(line.encode() + b"\n")

    def _let_go(self) -> None:
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()


def _close_own() -> None:
    for place in list(_open):
        if place._owner == os.getpid():
            place.close()


def _let_go_in_fork() -> None:
    """Close the pipes of the watchers, which would wait for the forked process otherwise."""
    for place in _open:
        place._let_go()


atexit.register(_close_own)
os.register_at_fork(after_in_child=_let_go_in_fork)
