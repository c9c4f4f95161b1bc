"""WSGI: a middleware around any application, and the base of the adapters for frameworks on WSGI.

    application = RateLimitMiddleware(application, limiter=Limiter(), quota="100/minute")

A request is charged before the application is called. Its places are held until the server closes the response, which
it does whether the response was sent, failed half way, or the client was gone. Plain WSGI knows no routes, so the entry
`route` is absent; adapters of frameworks have it.

A server must not pass on headers whose names contain an underscore, because WSGI cannot tell `X_Forwarded_For` from
`X-Forwarded-For`. The common servers drop them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Unpack

from penstock.errors import RateLimited
from penstock.headers import Header
from penstock.middleware.gate import CLIENT_CLOSED, GateOptions
from penstock.middleware.passage import LISTS, BlockingGate, Passage, Visit, headers_of, raised_refusal
from penstock.middleware.request import Request
from penstock.rules.refusal import RefusalResponse

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

VISIT = "penstock"
"""The key of the visit in an environ; frameworks add passages to it."""


class WSGIRequest(Request):
    """A request as its WSGI environ, which requests of frameworks on WSGI have too."""

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
        """Return one line: servers join several by commas."""
        value = self.environ.get("HTTP_" + name.upper().replace("-", "_"))
        return () if value is None else (value,)


class RateLimitMiddleware:
    """Limits every request to an application. The options are those of `penstock.middleware.gate.GateOptions`.

    Inside the application, `environ["penstock"]` is the `Visit`.
    """

    def __init__(self, app: WSGIApplication, **options: Unpack[GateOptions]) -> None:
        self.app = app
        self.gate = BlockingGate(options)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        passage = self.gate.enter(WSGIRequest(environ, self.gate.entries))
        if passage is None or passage:
            return guarded(self.app, environ, start_response, passage)
        return refused(passage.refusal(), environ, start_response)


def refused(refusal: RefusalResponse, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Send the refusal of a request."""
    start_response(f"{refusal.status} {HTTPStatus(refusal.status).phrase}", refusal.headers)
    return [] if environ.get("REQUEST_METHOD") == "HEAD" else [refusal.body]


def guarded(
    app: WSGIApplication, environ: WSGIEnvironment, start_response: StartResponse, passage: Passage | None = None
) -> Iterable[bytes]:
    """Return the response of `app` with the headers of the visit's passages, which end when it is closed.

    Passages may be added while `app` runs, as routes become known. Within another middleware of this kind this adds a
    passage only. If `app` raises `RateLimited` before it responds, the response is the refusal.
    """
    known: Visit[Passage] | None = environ.get(VISIT)
    visit = environ[VISIT] = Visit() if known is None else known
    if passage is not None:
        visit.passages.append(passage)
    if known is not None:
        return app(environ, start_response)
    outcome = _Outcome(visit.passages, environ, start_response)
    try:
        body = app(environ, outcome.start)
    except RateLimited as raised:
        body = outcome.refused(raised)
    except BaseException:
        outcome.fail()
        raise
    # Servers treat lists and files specially (length, sendfile). Any other body may not have started yet.
    is_known = body.__class__ in (list, tuple, environ.get("wsgi.file_wrapper"))
    if is_known and not any([passage.gate.follows_up for passage in visit.passages]):  # noqa: C419
        return body
    return _Response(outcome, body)


class _Outcome:
    """The state of a request. It has no reference to the body, so that a dropped response is freed at once."""

    __slots__ = ("_environ", "_passages", "_start_response", "_started", "status")

    def __init__(self, passages: list[Passage], environ: WSGIEnvironment, start_response: StartResponse) -> None:
        self._passages = passages
        self._environ = environ
        self._start_response = start_response
        self._started = False
        self.status = CLIENT_CLOSED  # until it is started

    def start(self, status: str, headers: list[Header], exc_info: Any = None) -> Callable[[bytes], object]:
        self._started = True
        self.status = int(status[:3]) if status[:3].isdecimal() else 500
        own = {name.lower() for name, _ in headers}
        ours = [header for header in headers_of(self._passages) if header[0] in LISTS or header[0].lower() not in own]
        if exc_info is None:
            return self._start_response(status, headers + ours)
        return self._start_response(status, headers + ours, exc_info)

    def refused(self, raised: RateLimited) -> Iterable[bytes]:
        """Return the refusal that the application raised; raise it again if a response has begun."""
        if self._started:
            self.fail()
            raise raised
        return refused(raised_refusal(raised, self._passages), self._environ, self.start)

    def fail(self) -> None:
        """End the request because the application raised, though a response may have begun."""
        self.status = 500
        self.leave()

    def leave(self) -> None:
        for passage in self._passages:
            passage.leave(self.status)


class _Response:
    """The body of a response; the passages end when it is closed."""

    def __init__(self, outcome: _Outcome, body: Iterable[bytes]) -> None:
        self._outcome = outcome
        self._body = body
        self._chunks: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            if self._chunks is None:
                self._chunks = iter(self._body)
            return next(self._chunks)
        except StopIteration:
            raise
        except RateLimited as raised:
            self._chunks = iter(self._outcome.refused(raised))
            return next(self._chunks)
        except BaseException:
            self._outcome.fail()
            raise

    def close(self) -> None:
        """End the request: the server is done with the response, or never began to send it."""
        try:
            if close := getattr(self._body, "close", None):
                close()
        finally:
            self._outcome.leave()

    def __del__(self) -> None:
        """End the request for a server that does not close; twice changes nothing."""
        self._outcome.leave()
