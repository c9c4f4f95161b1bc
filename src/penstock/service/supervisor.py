"""The supervisor of several workers behind one port: it starts, replaces and stops them.

The supervisor holds the listening sockets, and its workers inherit them. When a worker is killed, only the calls that
it was answering are lost: connections that are not accepted yet wait in the kernel for other workers. A worker is a
new process, not a fork, so a restart takes up new code and settings.

    SIGTERM, SIGINT    drain all workers, then end; a second signal kills them
    SIGHUP             passed on: workers reload rules and certificates; if the terminal was closed, as SIGTERM
    SIGUSR2            rolling restart: each worker in turn is replaced, once its successor is ready

A worker that dies is replaced at once; after repeated failures, after a growing pause of at most `MAX_PAUSE`. If no
worker ever becomes ready, the supervisor gives up, because the cause is then the configuration or the host. A worker
whose supervisor was killed drains and ends.
"""

from __future__ import annotations

import json
import logging
import selectors
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

from penstock.clock import monotonic
from penstock.service.worker import READY, worker_environment

log = logging.getLogger("penstock.workers")

MAX_READ = 65_536
FIRST_PAUSE, MAX_PAUSE = 0.1, 5.0
SETTLED = 10.0
"""Seconds after which a worker counts as stable."""

STARTING = 60.0
"""Seconds within which a new worker must be ready."""

GRACE = 2.0
"""Seconds after the drain time until a worker is killed."""

TICK = 1.0
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)


class WorkerObserver(Protocol):
    """Receives the reports of workers, in the supervisor's only thread."""

    def heard(self, worker: int, message: Mapping[str, Any]) -> None: ...

    def tick(self) -> None:
        """Called about once a second."""

    def abandoned(self) -> bool:
        """Return whether the terminal that shows the view was closed."""


class NoObserver:
    """Ignores all reports."""

    def heard(self, worker: int, message: Mapping[str, Any]) -> None: ...

    def tick(self) -> None: ...

    def abandoned(self) -> bool:
        return False


@dataclass(eq=False)
class _Worker:
    """One process, from its start to its end."""

    slot: int
    process: subprocess.Popen[bytes]
    channel: socket.socket
    started: float
    ready: bool = False
    reloads: bool = False
    dismissed: bool = False
    kill_at: float = 0.0
    unread: bytes = b""

    @property
    def called(self) -> str:
        return f"worker {self.slot} (process {self.process.pid})"


@dataclass(eq=False)
class _Slot:
    """The place of one worker, with its starting successor and its draining predecessors."""

    number: int
    worker: _Worker | None = None
    successor: _Worker | None = None
    leaving: list[_Worker] = field(default_factory=list)
    failures: int = 0
    start_at: float = 0.0

    def workers(self) -> list[_Worker]:
        return [each for each in (self.worker, self.successor, *self.leaving) if each is not None]

    def forget(self, worker: _Worker) -> None:
        if worker is self.worker:
            self.worker = None
        elif worker is self.successor:
            self.successor = None
        else:
            self.leaving.remove(worker)


class Supervisor:
    """Keeps `workers` processes of `command` running, all of which listen on the same sockets.

    - `sockets`: the file descriptors that they inherit.
    - `drain`: seconds that a worker may take to end after SIGTERM.
    - `environment`: of the workers.
    - `onlooker`: receives their reports.
    """

    def __init__(
        self,
        command: Sequence[str],
        sockets: Sequence[int],
        workers: int,
        *,
        drain: float,
        environment: Mapping[str, str],
        onlooker: WorkerObserver | None = None,
    ) -> None:
        self._command, self._sockets, self._drain = tuple(command), tuple(sockets), drain
        self._environment = dict(environment)
        self._onlooker: WorkerObserver = onlooker or NoObserver()
        self._slots = [_Slot(number) for number in range(1, workers + 1)]
        self._rolling: list[_Slot] = []
        self._selector = selectors.DefaultSelector()
        self._signalled: list[int] = []
        self._stopping = self._failed = self._proven = False  # proven: a worker has been ready
        self._next_tick = 0.0

    def run(self) -> int:
        """Run until stopped; return the exit code: 0, or 1 if no worker ever became ready."""
        with self._signals():
            try:
                while not self._stopping or self._workers():
                    self._turn(monotonic())
                    self._wait(monotonic())
            finally:
                for worker in self._workers():
                    worker.process.kill()
                    worker.process.wait()
                    worker.channel.close()
                self._selector.close()
        return 1 if self._failed else 0

    def _turn(self, now: float) -> None:
        while self._signalled:
            self._handle_signal(self._signalled.pop(0), now)
        for slot in self._slots:
            for worker in slot.workers():
                self._check(slot, worker, now)
            if slot.worker is None and not self._stopping and now >= slot.start_at:
                slot.worker = self._try_to_start(slot, now)
        if self._rolling:
            self._roll(self._rolling[0], now)
        if now >= self._next_tick:
            self._next_tick = now + TICK
            self._onlooker.tick()

    def _wait(self, now: float) -> None:
        """Wait for a report, a signal (the end of a worker is one), or the next due time."""
        due = [self._next_tick, *[worker.kill_at for worker in self._workers() if worker.dismissed]]
        if not self._stopping:
            due += [slot.start_at for slot in self._slots if slot.worker is None]
        for key, _ in self._selector.select(max(min(due) - now, 0)):
            if key.data is not None:
                self._hear(key.data)
            else:
                key.fileobj.recv(MAX_READ)  # type: ignore[union-attr]  # a signal, which is already noted

    def _handle_signal(self, number: int, now: float) -> None:
        if number in (signal.SIGTERM, signal.SIGINT) or (number == signal.SIGHUP and self._onlooker.abandoned()):
            if self._stopping:
                for worker in self._workers():
                    worker.process.kill()
            self._stop(now)
        elif number == signal.SIGHUP:
            for worker in self._workers():
                self._reload(worker)
        elif number == signal.SIGUSR2 and not self._stopping and not self._rolling:
            log.info("rolling restart of %s workers", len(self._slots))
            self._rolling = list(self._slots)

    def _stop(self, now: float) -> None:
        self._stopping = True
        self._rolling = []
        for worker in self._workers():
            self._dismiss(worker, now)

    def _roll(self, slot: _Slot, now: float) -> None:
        """Continue a rolling restart: start a successor; when it is ready, drain the old worker; then the next slot."""
        if slot.successor is None:
            if not any(each.leaving for each in self._slots):
                slot.successor = self._try_to_start(slot, now)
                if slot.successor is None:
                    self._rolling = []
        elif slot.successor.ready:
            if slot.worker is not None:
                slot.leaving.append(slot.worker)
                self._dismiss(slot.worker, now)
            slot.worker, slot.successor, slot.failures = slot.successor, None, 0
            self._rolling.pop(0)

    def _try_to_start(self, slot: _Slot, now: float) -> _Worker | None:
        """Start a worker. Return None if that fails: out of resources, or the program is being replaced."""
        try:
            return self._start(slot.number, now)
        except OSError as error:
            slot.failures += 1
            slot.start_at = now + max(pause_after(slot.failures), FIRST_PAUSE)
            log.error("worker %s cannot be started: %s", slot.number, error.strerror)
            if not self._proven:
                self._failed = True
                self._stop(now)
            return None

    def _start(self, number: int, now: float) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            channel = theirs.fileno()
            try:
                process = subprocess.Popen(  # noqa: S603  our own command
                    self._command,
                    env=self._environment | worker_environment(number, channel, self._sockets),
                    pass_fds=(channel, *self._sockets),
                    stdin=subprocess.DEVNULL,
                    process_group=0,  # the supervisor handles Ctrl-C
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        worker = _Worker(number, process, ours, now)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _check(self, slot: _Slot, worker: _Worker, now: float) -> None:
        if worker.process.poll() is not None:
            self._hear(worker)  # its last reports
            self._ended(slot, worker, now)
        elif worker.dismissed and now >= worker.kill_at:
            log.warning("%s did not end in time: killed", worker.called)
            worker.kill_at = now + STARTING
            worker.process.kill()
        elif not worker.ready and not worker.dismissed and now - worker.started > STARTING:
            log.error("%s was not ready after %g s: killed", worker.called, STARTING)
            worker.process.kill()

    def _reload(self, worker: _Worker) -> None:
        """Reload a worker; one that is starting is reloaded when ready, because the signal would still kill it."""
        if worker.ready:
            worker.process.send_signal(signal.SIGHUP)
        worker.reloads = not worker.ready

    def _dismiss(self, worker: _Worker, now: float) -> None:
        """Have a worker drain and end."""
        if not worker.dismissed:
            worker.dismissed, worker.kill_at = True, now + self._drain + GRACE
            worker.process.terminate()

    def _hear(self, worker: _Worker) -> None:
        try:
            read = worker.channel.recv(MAX_READ)
        except BlockingIOError:
            return
        except OSError:
            read = b""
        if not read:
            if worker.channel in self._selector.get_map():
                self._selector.unregister(worker.channel)
            return
        *lines, worker.unread = (worker.unread + read).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message == READY:
                worker.ready = self._proven = True
                log.info("%s is ready", worker.called)
                if worker.reloads:
                    self._reload(worker)
            else:
                self._onlooker.heard(worker.slot, message)

    def _ended(self, slot: _Slot, worker: _Worker, now: float) -> None:
        """Handle the end of a worker, expected or not."""
        if worker.channel in self._selector.get_map():
            self._selector.unregister(worker.channel)
        worker.channel.close()
        was_successor = worker is slot.successor
        slot.forget(worker)
        if worker.dismissed or self._stopping:
            return
        how = _how(worker.process.returncode)
        if not self._proven:
            log.error("%s %s before it was ready: giving up", worker.called, how)
            self._failed = True
            self._stop(now)
        elif was_successor:
            log.error("%s %s before it was ready: the rolling restart is cancelled", worker.called, how)
            self._rolling = []
        else:
            slot.failures = 1 if worker.ready and now - worker.started > SETTLED else slot.failures + 1
            pause = pause_after(slot.failures)
            slot.start_at = now + pause
            log.error("%s %s: it is replaced%s", worker.called, how, f" in {pause:g} s" if pause else "")

    def _workers(self) -> list[_Worker]:
        return [worker for slot in self._slots for worker in slot.workers()]

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Note signals and wake `_wait`; restore the previous handlers afterwards."""

        def note(number: int, frame: FrameType | None) -> None:
            self._signalled.append(number)

        wakes, woken = socket.socketpair()
        wakes.setblocking(False)
        woken.setblocking(False)
        before = {number: signal.signal(number, note) for number in HANDLED}
        old = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)  # they may be blocked by the parent
        self._selector.register(woken, selectors.EVENT_READ, None)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old)
            for number, handler in before.items():
                signal.signal(number, handler)
            wakes.close()
            woken.close()


def pause_after(failures: int) -> float:
    """Return the seconds to wait before a worker is started again after so many failures in a row."""
    return 0.0 if failures <= 1 else min(FIRST_PAUSE * 2 ** min(failures - 2, 16), MAX_PAUSE)


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
