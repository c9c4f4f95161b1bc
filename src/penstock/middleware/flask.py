"""Flask: limits for all views, for one view more, and none for some.

    limit = RateLimit(app, limiter=Limiter(), quota="100/minute")      # or limit.init_app(app) later

    @app.post("/login")
    @limit.on("5/minute")                                            # beside the limit for all views
    def login(): ...

    @app.get("/health")
    @limit.exempt
    def health(): ...

The route is the rule that Flask matched, `/users/<int:id>`. Requests are charged before the view runs, in the order in
which functions were registered with `before_request`; places are held until the response is closed. If a view raises
`RateLimited`, the response is the refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast

import flask

from penstock.engine.operations import QuotaLike
from penstock.errors import InvalidOption, RateLimited
from penstock.middleware.gate import GateOptions
from penstock.middleware.passage import BlockingGate, Passage, Visit, raised_refusal
from penstock.middleware.view_names import Names
from penstock.middleware.wsgi import VISIT, WSGIRequest, guarded

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

P = ParamSpec("P")
R = TypeVar("R")

_EXEMPT = "penstock_exempt"
_FOR_ALL_VIEWS = ("quota", "enforcer", "key", "name", "cost", "charge", "settle", "exempt")


class FlaskRequest(WSGIRequest):
    """A request of Flask."""

    __slots__ = ()

    @property
    def environ(self) -> WSGIEnvironment:
        return self.native.environ  # type: ignore[no-any-return]

    def route(self) -> str | None:
        rule = self.native.url_rule
        return None if rule is None else rule.rule


class RateLimit:
    """The extension. With a limiter and no quota, only views that say so are limited."""

    def __init__(self, app: flask.Flask | None = None, **options: Unpack[GateOptions]) -> None:
        self._options = options
        self._names = Names()
        only_views = "limiter" in options and "quota" not in options
        self._gate = None if only_views else BlockingGate(options)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Guard an application."""
        if "penstock" in app.extensions:
            raise InvalidOption(f"{app.name}: has its limits already (expected init_app once per application)")
        app.extensions["penstock"] = self
        app.before_request(self._before_view)
        app.register_error_handler(RateLimited, _answered)
        app.wsgi_app = partial(guarded, app.wsgi_app)  # type: ignore[method-assign]

    def exempt(self, view: Callable[P, R]) -> Callable[P, R]:
        """Decorate a view so that the limit for all views does not apply to it."""
        setattr(view, _EXEMPT, True)
        return view

    def on(self, quota: QuotaLike, /, **options: Unpack[GateOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a view with a limit of its own, beside the one for all views.

        It is counted apart, by the function's name unless `name` is given; functions of the same name are told apart by
        their endpoints. Entries, proxies and headers are as for all views.
        """
        gate = BlockingGate(self._for_view(quota, options))

        def decorate(view: Callable[P, R]) -> Callable[P, R]:
            called = None if "name" in options else self._names.join(view)

            @wraps(view)
            def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                refusal = _enter(gate, called and called(_endpoint))
                if refusal is not None:
                    return cast("R", refusal)
                return cast("R", flask.current_app.ensure_sync(view)(*args, **kwargs))

            if called is not None:
                self._names.mark(limited)
            return limited

        return decorate

    def _for_view(self, quota: QuotaLike, own: GateOptions) -> GateOptions:
        shared = {name: value for name, value in self._options.items() if name not in _FOR_ALL_VIEWS}
        if "enforcer" in self._options:
            shared["limiter"] = self._options["enforcer"].limiter
        return cast("GateOptions", {**shared, "quota": quota, **own})

    def _before_view(self) -> flask.Response | None:
        if self._gate is None or getattr(_view(), _EXEMPT, False):
            return None
        return _enter(self._gate)


def visit() -> Visit[Passage]:
    """Return the visit of the current request; `visit().cost = 1432` settles."""
    known: Visit[Passage] | None = flask.request.environ.get(VISIT)
    if known is None:
        raise InvalidOption(
            "visit: a request that did not come through its application (expected init_app of this application)"
        )
    return known


def _endpoint() -> str | None:
    return flask.request.endpoint


def _view() -> Any:
    return flask.current_app.view_functions.get(flask.request.endpoint or "")


def _answered(raised: RateLimited) -> flask.Response:
    """Return the response to a refusal that a view raised."""
    status, headers, body = raised_refusal(raised, visit().passages)
    return flask.Response(body, status, headers)


def _enter(gate: BlockingGate, name: str | None = None) -> flask.Response | None:
    """Charge the current request. Return the response if it is refused."""
    native = flask.request._get_current_object()  # type: ignore[attr-defined]
    passages = visit().passages
    entered = gate.enter(FlaskRequest(native, gate.entries), name=name)
    if entered is None or entered:
        passages += () if entered is None else (entered,)
        return None
    status, headers, body = entered.refusal()
    return flask.Response(body, status, headers)
