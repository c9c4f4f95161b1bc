"""Requests as gates see them: the descriptor that rules match and keys are made of. Entries are read when needed.

| entry | value |
|---|---|
| `method` | `GET`, `POST`, ...; `WEBSOCKET` for a connection, `MESSAGE` for each message that comes in |
| `path` | the path of the request |
| `route` | the template that the framework matched, `/users/{id}`; absent where nothing matched |
| `api_key` | the API key as it was sent; it is not checked, so it makes a key only with a key directory |
| `user` | the user who is logged in, as the framework knows it |
| `ip` | the client's address; absent behind a Unix socket |

The adapter of a framework is a subclass that reads them. An entry that is absent is None.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

Entry: TypeAlias = "Callable[[Request], Any]"
"""A function that reads an entry."""

Entries: TypeAlias = Mapping[str, Entry]


class Request(Mapping[str, Any]):
    """A request: its descriptor, read when needed.

    - `native`: the request of the framework: an ASGI scope, a WSGI environ, a Django or aiohttp request.
    - `header(name)`: a header of the request, its name in lower case.
    """

    __slots__ = ("_entries", "native")

    not_yet: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions by which reading an entry asks for another attempt in a moment."""

    def __init__(self, native: Any, entries: Entries) -> None:
        self.native = native
        self._entries = entries

    @abstractmethod
    def method(self) -> str | None: ...

    @abstractmethod
    def path(self) -> str | None: ...

    @abstractmethod
    def route(self) -> str | None: ...

    @abstractmethod
    def user(self) -> Any: ...

    @abstractmethod
    def peer(self) -> str | None:
        """The address at the other end of the socket."""

    @abstractmethod
    def lines(self, name: str) -> Sequence[str]:
        """Return all lines of a header, its name in lower case, in their order."""

    def header(self, name: str) -> str | None:
        """Return a header, its name in lower case: the first line of several, None if it is missing."""
        lines = self.lines(name)
        return lines[0] if lines else None

    def get(self, entry: str, default: Any = None) -> Any:
        read = self._entries.get(entry)
        value = None if read is None else read(self)
        return default if value is None else value

    def __getitem__(self, entry: str) -> Any:
        return self._entries[entry](self)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:  # that of a mapping would show values
        return f"<{type(self).__name__} of {', '.join(self._entries)}>"
