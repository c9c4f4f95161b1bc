"""A worker's side of the supervisor: the sockets it inherits, and the channel on which it reports.

The channel is a socket pair. The worker writes lines of JSON to it. Its end shows each side that the other has gone.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

VARIABLE = "PENSTOCK_INHERITED"
"""The number of the worker, and the file descriptors of the channel and of the listening sockets."""

READY = {"ready": True}


def worker_environment(number: int, channel: int, listening: Sequence[int]) -> dict[str, str]:
    """Return the environment variable that passes the descriptors to a worker."""
    return {VARIABLE: ",".join(str(each) for each in (number, channel, *listening))}


class Inherited:
    """What a worker inherits: its number, listening sockets, and the channel to the supervisor."""

    def __init__(self, number: int, channel: socket.socket, listening: Sequence[int]) -> None:
        self.number, self.listening = number, tuple(listening)
        self.channel = channel
        channel.setblocking(False)

    @classmethod
    def find(cls, environment: Mapping[str, str]) -> Inherited | None:
        """Return what was inherited, or None in a process that no supervisor started."""
        value = environment.get(VARIABLE)
        if not value:
            return None
        number, channel, *listening = (int(part) for part in value.split(","))
        return cls(number, socket.socket(fileno=channel), listening)

    def report(self, message: Mapping[str, Any]) -> None:
        """Send a message to the supervisor. Never blocks: if it does not keep up or has gone, the message is lost."""
        try:
            self.channel.send(json.dumps(message).encode() + b"\n")
        except OSError:
            pass

    def abandoned(self) -> bool:
        """Return whether the supervisor has gone. Called when the channel is readable."""
        try:
            return self.channel.recv(64) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
