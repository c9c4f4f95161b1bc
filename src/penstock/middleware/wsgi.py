"""WSGI: a middleware around any application, and what adapters for frameworks on WSGI are made of.

    application = RateLimitMiddleware(application, limiter=Limiter(), quota="100/minute")

A request is charged before the application is called. What it holds is held until the server closes the response, which
it does whether the response was sent, failed half way, or nobody was there to take it. Plain WSGI knows no routes, so
the entry `route` is absent; the adapter of a framework knows better.

A server must not pass on headers whose names hold an underscore, because WSGI cannot tell `X_Forwarded_For` from
`X-Forwarded-For`. Those in use drop them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Unpack

from penstock.headers import Header
from penstock.middleware.gate import CLIENT_CLOSED, Options, Refusal
from penstock.middleware.passing import BlockingGate, Passage
from penstock.middleware.request import Request
from penstock.middleware.visits import Visit

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

VISIT = "penstock"
"""Where in an environ the visit is, for frameworks to add passages to it."""


class WSGIRequest(Request):
    """What a WSGI environ tells of a request. A framework's own request has such an environ, too."""

    __slots__ = ()

    @property
    def environ(self) -> WSGIEnvironment:
        return self.native  # type: ignore[no-any-return]

    def method(self) -> str | None:
        return self.environ.get("REQUEST_METHOD")

    def path(self) -> str | None:
        path: str = self.environ.get("SCRIPT_NAME", "") + self.environ.get("PATH_INFO", "")
        return path if path.isascii() else path.encode("latin-1", "replace").decode("utf-8", "replace")

    def route(self) -> str | None:
        return None

    def user(self) -> Any:
        return self.environ.get("REMOTE_USER")

    def peer(self) -> str | None:
        return self.environ.get("REMOTE_ADDR")

    def lines(self, name: str) -> Sequence[str]:
        """What the server made of them: one line, joined by commas."""
        value = self.environ.get("HTTP_" + name.upper().replace("-", "_"))
        return () if value is None else (value,)


class RateLimitMiddleware:
    """Guards every request to an application. The options are those of `penstock.middleware.gate.Options`.

    Inside the application, `environ["penstock"]` is the `Visit`.
    """

    def __init__(self, app: WSGIApplication, **options: Unpack[Options]) -> None:
        self.app = app
        self.gate = BlockingGate(options)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        passage = self.gate.enter(WSGIRequest(environ, self.gate.entries))
        if passage is None:
            return self.app(environ, start_response)
        if not passage:
            return refused(passage.refusal(), environ, start_response)
        return guarded(self.app, environ, start_response, passage)


def refused(refusal: Refusal, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer a request that may not pass."""
    start_response(f"{refusal.status} {HTTPStatus(refusal.status).phrase}", refusal.headers)
    return [] if environ.get("REQUEST_METHOD") == "HEAD" else [refusal.body]


def guarded(
    app: WSGIApplication, environ: WSGIEnvironment, start_response: StartResponse, passage: Passage | None = None
) -> Iterable[bytes]:
    """The response of `app`, with the headers of a visit's passages, which are left when it is closed.

    Passages may be added while it runs, as routes become known. Within another middleware of this kind there is only
    one more passage to add.
    """
    known: Visit[Passage] | None = environ.get(VISIT)
    visit = environ[VISIT] = Visit() if known is None else known
    if passage is not None:
        visit.passages.append(passage)
    if known is not None:
        return app(environ, start_response)
    response = _Response(visit.passages, start_response)
    try:
        response.body = app(environ, response.start)
    except BaseException:
        response.status = 500
        response.leave()
        raise
    # Servers do more for a response that they know: tell its length, send it as a file.
    return response if any(passage.gate.follows_up for passage in visit.passages) else response.body


class _Response:
    """A response on its way; what its passages hold is given back when it is closed."""

    def __init__(self, passages: list[Passage], start_response: StartResponse) -> None:
        self.passages = passages
        self.status = CLIENT_CLOSED  # until it is started
        self.body: Iterable[bytes] = ()
        self._start_response = start_response
        self._chunks: Iterator[bytes] | None = None

    def start(self, status: str, headers: list[Header], exc_info: Any = None) -> Callable[[bytes], object]:
        self.status = int(status[:3]) if status[:3].isdecimal() else 500
        told = [header for passage in self.passages for header in passage.headers()]
        if exc_info is None:
            return self._start_response(status, headers + told)
        return self._start_response(status, headers + told, exc_info)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._chunks is None:
            self._chunks = iter(self.body)
        try:
            return next(self._chunks)
        except StopIteration:
            raise
        except BaseException:
            self.status = 500
            raise

    def close(self) -> None:
        """The server is done with it, or never began."""
        try:
            if close := getattr(self.body, "close", None):
                close()
        finally:
            self.leave()

    def leave(self) -> None:
        for passage in self.passages:
            passage.leave(self.status)

    __del__ = leave  # for a server that forgets to close; doing it twice changes nothing
