"""What is known of one request: the descriptor that rules match and keys are made of, looked up only when asked for.

| entry | what it is |
|---|---|
| `method` | `GET`, `POST`, ...; `WEBSOCKET` when one connects, `MESSAGE` for what comes through it |
| `path` | the path as it was asked for |
| `route` | the template that the framework matched, `/users/{id}`; absent where nothing matched |
| `api_key` | what the client sent as such; nobody has checked it, so it makes a key only with a key directory |
| `user` | whom the framework knows as logged in |
| `ip` | the client's address; absent behind a Unix socket |

A framework's adapter is a subclass that knows where these stand. What is not there is None: an entry that is absent.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

Entry: TypeAlias = "Callable[[Request], Any]"
"""How an entry is looked up."""

Entries: TypeAlias = Mapping[str, Entry]


class Request(Mapping[str, Any]):
    """What is known of one request.

    - `native`: the request as the framework hands it out: an ASGI scope, a WSGI environ, a Django or aiohttp request.
    - `header(name)`: a header of the request, its name in lower case.
    """

    __slots__ = ("_entries", "native")

    not_yet: ClassVar[tuple[type[Exception], ...]] = ()
    """What reading an entry may raise that means: ask again in a moment."""

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
        """All lines of a header, its name in lower case, in the order they came."""

    def header(self, name: str) -> str | None:
        """A header, its name in lower case; None if it is missing. Of several lines the first."""
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

    def __repr__(self) -> str:  # a mapping's own would show who asks
        return f"<{type(self).__name__} of {', '.join(self._entries)}>"
