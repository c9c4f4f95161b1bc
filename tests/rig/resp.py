"""A minimal client of Redis's protocol (RESP2), independent of the client under test."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

Word: TypeAlias = str | bytes | int | float


class Refusal(Exception):
    """The server answered with an error; the text begins with its code, e.g. `WRONGPASS`."""


class Conversation:
    """A connection over a Unix socket, with one command at a time.

    A reply is `bytes` (status and bulk strings), `int`, `None` or a list of these; an error is raised as `Refusal`.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._replies = self._socket.makefile("rb")

    def ask(self, *words: Word) -> Any:
        """Return the reply to one command."""
        return self.ask_all([words])[0]

    def ask_all(self, commands: Iterable[tuple[Word, ...]]) -> list[Any]:
        """Return the replies to pipelined commands."""
        commands = list(commands)
        self._socket.sendall(b"".join(_packed(words) for words in commands))
        replies = [self._read() for _ in commands]
        for reply in replies:
            if isinstance(reply, Refusal):
                raise reply
        return replies

    def _read(self) -> Any:
        line = self._replies.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection before it answered")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            return Refusal(rest.decode())
        number = int(rest)
        if kind == b":":
            return number
        if number < 0:
            return None
        return self._replies.read(number + 2)[:-2] if kind == b"$" else [self._read() for _ in range(number)]

    def close(self) -> None:
        self._replies.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _packed(words: tuple[Word, ...]) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
