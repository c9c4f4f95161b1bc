"""What a worker gets from the supervisor that started it, and how it talks to it.

The two share a socket. The worker writes lines of JSON to it; and its end tells either that the other is gone.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

VARIABLE = "PENSTOCK_INHERITED"
"""Which worker it is, and the file descriptors of the shared socket and of those to listen on."""

READY = {"ready": True}


def passed_on(number: int, channel: int, listening: Sequence[int]) -> dict[str, str]:
    """What the environment of a worker says."""
    return {VARIABLE: ",".join(str(each) for each in (number, channel, *listening))}


class Inherited:
    """The worker's side: which one it is, what to listen on, and a way to report."""

    def __init__(self, number: int, channel: socket.socket, listening: Sequence[int]) -> None:
        self.number, self.listening = number, tuple(listening)
        self.channel = channel
        channel.setblocking(False)

    @classmethod
    def find(cls, environment: Mapping[str, str]) -> Inherited | None:
        """None in a process that no supervisor started."""
        said = environment.get(VARIABLE)
        if not said:
            return None
        number, channel, *listening = (int(part) for part in said.split(","))
        return cls(number, socket.socket(fileno=channel), listening)

    def report(self, message: Mapping[str, Any]) -> None:
        """Tell the supervisor. If it does not keep up, or is gone, the message is lost; nobody waits."""
        try:
            self.channel.send(json.dumps(message).encode() + b"\n")
        except OSError:
            pass

    def abandoned(self) -> bool:
        """Whether the supervisor is gone; to be asked when the channel can be read."""
        try:
            return self.channel.recv(64) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
