"""The decisions about one request: its key and cost, the headers and the refusal, the amendments afterwards.

A gate neither waits nor knows a framework. `penstock.middleware.passage` has the two kinds that ask limiters; adapters
read requests (`penstock.middleware.request`).

    request ─▶ Gate ─▶ key, quota, cost ─▶ limiter ─▶ Verdict ─▶ headers, or a response
                       descriptor, cost ─▶ enforcer ─▶ Ruling      refund, settle, release when it is over

The response to a refused request is that of `penstock.rules.refusal`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import methodcaller
from typing import Any, ClassVar, Literal, TypeAlias, TypedDict

from penstock.enforcer import AsyncEnforcer, Enforcer
from penstock.engine.decorator import is_coroutine_function
from penstock.engine.operations import QuotaLike
from penstock.errors import CostExceedsLimit, InvalidOption, fault, is_from_signal_handler, shown
from penstock.headers import Header, HeaderWriter
from penstock.holds import holds_place
from penstock.limiter import AsyncLimiter, Limiter
from penstock.middleware.request import Entry, Request
from penstock.middleware.worker_count import warn_if_several
from penstock.model import Key, Verdict, check_fits
from penstock.quota import MAX_LIMIT
from penstock.rules.api_keys import API_KEY_HEADER
from penstock.rules.client_ip import TrustedProxies
from penstock.rules.entries import MAX_ADDRESS, key_part
from penstock.rules.refusal import RefusalResponse, refusal_of, shown_to_clients
from penstock.stores import InProcess

_log = logging.getLogger("penstock.middleware")

CLIENT_CLOSED = 499
"""The status of a request whose client left before there was a response."""

IPV6_PREFIX = 64
"""Bits of an IPv6 address that tell clients apart: a client with one address has the network around it."""

MAX_REMEMBERED = 4_096

AmendStep: TypeAlias = tuple[Literal["refund", "settle", "release"], int | None]
"""An amendment of a charge, and its units."""


class GateOptions(TypedDict, total=False):
    """The options of every middleware. Functions receive a `Request`.

    - `limiter` and `quota`, or `enforcer`: what decides.
    - `key`, with a limiter: entries of the request, such as `"user | ip"` (the first that is present), a list of such,
      or a function. By default the client's address.
    - `name`, with a limiter: what is counted, if several middlewares count apart with equal quotas.
    - `cost`: the cost of a request, or a function. It is charged as far as a quota could ever admit it, and at least 1.
      If the function raises, or returns no whole number, that is logged and the request costs the most it could.
    - `charge`: which outcomes stay charged, a function of the response's status; the others are refunded.
    - `settle`: whether handlers set the true cost afterwards (`passage.cost = 1432`).
    - `exempt`: which requests pass without a decision, a function.
    - `entries`: more entries of the descriptor, or other functions for the known ones, by name.
    - `api_key_header`: the header with the client's API key. By default `X-API-Key`.
    - `trusted_proxies`, `forwarded_header`: see `penstock.rules.client_ip`.
    - `renew`: whether places are renewed while a request takes longer than their ttl.
    - `dialect`, `hidden`: which headers clients get, see `penstock.headers.HeaderWriter`.
    - `messages`, in ASGI middlewares: the quota for messages of a WebSocket; with an enforcer `True`.
    """

    limiter: Limiter | AsyncLimiter
    quota: QuotaLike
    enforcer: Enforcer | AsyncEnforcer
    key: str | Sequence[str] | Callable[[Request], Key | None]
    name: str
    cost: int | Callable[[Request], int]
    charge: Callable[[int], bool]
    settle: bool
    exempt: Callable[[Request], bool]
    entries: Mapping[str, Entry]
    api_key_header: str
    trusted_proxies: int | Collection[str]
    forwarded_header: str
    renew: bool
    dialect: str | Sequence[str]
    hidden: Collection[str]
    messages: QuotaLike | bool


def unless_server_error(status: int) -> bool:
    """For `charge`: refund requests that fail on the server's side."""
    return status < 500


def failed_logins(status: int) -> bool:
    """For `charge`: charge failed logins only. A client that leaves before the response has not logged in."""
    return status in (401, 403, CLIENT_CLOSED)


class Gate:
    """The part of a middleware that neither waits nor knows a framework."""

    kinds: ClassVar[tuple[type, type]]
    """The limiter and the enforcer that this kind of gate takes."""

    def __init__(self, options: GateOptions) -> None:
        unknown = options.keys() - GateOptions.__annotations__.keys()
        if unknown:
            known = ", ".join(GateOptions.__annotations__)
            raise InvalidOption(f"{', '.join(sorted(unknown))}: unknown option (expected {known})")
        if options.get("messages", False) is not False:
            raise InvalidOption("messages: not supported here (expected it with an ASGI middleware)")
        self._check_who_decides(options)
        self.enforcer: Any = options.get("enforcer")
        self.limiter: Any = options["limiter"] if self.enforcer is None else self.enforcer.limiter
        self.quota: Any = options.get("quota")
        self.in_process = isinstance(self.limiter.store, InProcess)
        self.settles = options.get("settle", False)
        self.renews = options.get("renew", False)
        _check_functions(options)
        self._cost = _checked_cost(options.get("cost", 1))
        self._most = self._most_at_once()
        self._charge = options.get("charge")
        self.exempt = options.get("exempt")
        self._writer = HeaderWriter(options.get("dialect", "ietf"), hidden=options.get("hidden", ()))
        self.sends_lists = options.get("dialect", "ietf") in ("ietf", "none")  # to which an application may add its own
        self._proxies = TrustedProxies(
            options.get("trusted_proxies", 0), header=options.get("forwarded_header", "x-forwarded-for")
        )
        self.follows_up = self._follows_up()
        warn_if_several(self.limiter.store)
        self.entries = self._all_entries(options)
        self.key = self._key_of(options)

    def _check_who_decides(self, options: GateOptions) -> None:
        limiter_kind, enforcer_kind = self.kinds
        enforcer, limiter = options.get("enforcer"), options.get("limiter")
        if (enforcer is None) == (limiter is None) or (limiter is None) != ("quota" not in options):
            raise InvalidOption("middleware: expected a limiter and a quota, or an enforcer")
        if limiter is not None and not isinstance(limiter, limiter_kind):
            raise InvalidOption(f"limiter: expected {limiter_kind.__name__}, not {type(limiter).__name__}")
        if enforcer is not None and not isinstance(enforcer, enforcer_kind):
            raise InvalidOption(f"enforcer: expected {enforcer_kind.__name__}, not {type(enforcer).__name__}")
        if limiter is not None:
            limiter.operations.quotas(options["quota"])  # an invalid quota is an error now, not at the first request
        elif named := {"key", "name"} & options.keys():
            raise InvalidOption(f"{named.pop()}: the rules of an enforcer say that (expected it with a limiter alone)")

    def _follows_up(self) -> bool:
        """Return whether there may be something to amend when a request is over."""
        if self._charge is not None or self.settles or self.enforcer is not None:
            return True
        return self.limiter.operations.has_places(self.quota)  # type: ignore[no-any-return]

    def _all_entries(self, options: GateOptions) -> dict[str, Entry]:
        api_key_header = options.get("api_key_header", API_KEY_HEADER).lower()
        entries: dict[str, Entry] = {"method": _method}
        entries |= {name: methodcaller(name) for name in ("path", "route", "user")}
        entries["api_key"] = methodcaller("header", api_key_header)
        entries["ip"] = self._address
        return entries | dict(options.get("entries", {}))

    def _address(self, request: Request) -> str | None:
        proxies = self._proxies
        return proxies.client(request.peer(), request.lines(proxies.header) if proxies.header else ())

    def _key_of(self, options: GateOptions) -> Callable[[Request], Key]:
        key, name = options.get("key", "ip"), options.get("name")
        before = () if name is None else (name,)
        if callable(key):
            return _own_key(key, before)
        texts = (key,) if isinstance(key, str) else tuple(key)
        parts = tuple(tuple(entry.strip() for entry in text.split("|")) for text in texts)
        for entry in (entry for part in parts for entry in part):
            if entry not in self.entries:
                raise InvalidOption(f"key {shown(entry)}: no such entry (expected {', '.join(self.entries)})")
        by_entries = _key_of_entries(parts, before)
        if parts == (("ip",),) and not self._proxies.header and self.entries["ip"] == self._address:
            return _remembered_by_peer(by_entries)
        return by_entries

    def named_key(self, request: Request, name: str) -> Key:
        """Return the key, where what is counted is known only now."""
        key = self.key(request)
        return (name, *key) if key.__class__ is tuple else (name, key)  # type: ignore[return-value]

    def cost(self, request: Request) -> int:
        """Return the cost of a request: at least 1 and never an error, because clients may influence it."""
        cost = self._cost
        return cost if cost.__class__ is int else self._computed_cost(request)

    def _computed_cost(self, request: Request) -> int:
        try:
            cost = self._cost(request)  # type: ignore[operator]
        except request.not_yet:
            raise
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            _fault("cost", error, "the request costs the most it could")
            return self._most
        if isinstance(cost, bool) or not isinstance(cost, int):
            _log.error("cost: no whole number but %s, so the request costs the most it could", type(cost).__name__)
            return self._most
        return min(max(cost, 1), self._most)

    def _most_at_once(self) -> int:
        """Return the most that a request can cost; with an enforcer it depends on the rules that match."""
        if self.enforcer is not None:
            return MAX_LIMIT
        rates = [part for part in self.limiter.operations.quotas(self.quota) if not part.flat]
        if isinstance(self._cost, int):
            for part in rates:
                check_fits(self._cost, part)
        return min([part.capacity for part in rates], default=MAX_LIMIT)

    def fitting(self, cost: int, error: CostExceedsLimit) -> int:
        """Return the most that the rules could ever admit, in place of a cost above it."""
        smaller = cost * error.most // error.cost
        if not 1 <= smaller < cost:
            raise error
        return smaller

    def headers(self, verdict: Verdict) -> list[Header]:
        """Return the headers that any response gets."""
        return self._writer.headers(verdict if verdict.__class__ is Verdict else shown_to_clients(verdict))

    def refusal(self, verdict: Verdict) -> RefusalResponse:
        """Return the response to a request that was refused."""
        return refusal_of(verdict, self._writer)

    def amends(self, verdict: Verdict, status: int, cost: int | None) -> Sequence[AmendStep]:
        """Return the amendments for an admitted request that ended with `status`; `cost` is its true cost, if set."""
        if not self._stays_charged(status):
            return (("refund", None),)  # of places, too
        steps: list[AmendStep] = [] if cost is None else [("settle", cost)]
        if holds_place(verdict):
            steps.append(("release", None))
        return steps

    def _stays_charged(self, status: int) -> bool:
        try:
            return self._charge is None or bool(self._charge(status))
        except Exception as error:  # the response exists, and places have to come back all the same
            if is_from_signal_handler(error):
                raise
            _fault("charge", error, "the request stays charged")
            return True


def _key_of_entries(parts: tuple[tuple[str, ...], ...], before: tuple[str, ...]) -> Callable[[Request], Key]:
    alternatives = [tuple((entry, f"{entry}=") for entry in part) for part in parts]
    lone = alternatives[0] if len(alternatives) == 1 and not before else None

    def part_of(request: Request, entries: tuple[tuple[str, str], ...]) -> str:
        for entry, mark in entries:
            value = request.get(entry)
            if value:
                return key_part(mark, _text(value), IPV6_PREFIX if entry == "ip" else None)
        return "|".join([entry for entry, _ in entries])  # requests without any of them share one counter

    def key(request: Request) -> Key:
        if lone is not None:
            return part_of(request, lone)
        return (*before, *[part_of(request, entries) for entries in alternatives])

    return key


def _remembered_by_peer(key_of: Callable[[Request], Key]) -> Callable[[Request], Key]:
    """Return the same function with a memory, where a key depends on the peer of the socket alone."""
    known: dict[str | None, Key] = {}

    def key(request: Request) -> Key:
        peer = request.peer()
        try:
            return known[peer]
        except KeyError:
            pass
        if len(known) >= MAX_REMEMBERED:
            known.clear()
        own = key_of(request)
        if peer is None or len(peer) <= MAX_ADDRESS:
            known[peer] = own
        return own

    return key


def _own_key(function: Callable[[Request], Key | None], before: tuple[str, ...]) -> Callable[[Request], Key]:
    def key(request: Request) -> Key:
        own = function(request)
        parts = own if isinstance(own, tuple) else (own or "nobody",)
        return (*before, *parts)

    return key


def _text(value: object) -> str:
    """Return an entry as text that UTF-8 can carry, whatever a client sent."""
    text = value if isinstance(value, str) else str(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _method(request: Request) -> str | None:
    """Return the method; HEAD counts as GET, as in every framework, or it would slip past rules for GET."""
    method = request.method()
    return "GET" if method == "HEAD" else method


def _fault(option: str, error: Exception, then: str) -> None:
    """Log an exception that a function among the options raised."""
    _log.error("%s: raised, so %s: %s", option, then, fault(error))


def _check_functions(options: GateOptions) -> None:
    """Refuse coroutine functions: their results would count as true, or as no number."""
    for name in ("key", "cost", "charge", "exempt"):
        function = options.get(name)
        if callable(function) and is_coroutine_function(function):
            raise InvalidOption(f"{name}: a coroutine function (expected a plain function)")


def _checked_cost(cost: int | Callable[[Request], int]) -> int | Callable[[Request], int]:
    if callable(cost) or (isinstance(cost, int) and not isinstance(cost, bool) and cost >= 1):
        return cost
    raise InvalidOption(f"cost {shown(cost)}: expected a whole number, at least 1, or a function of the request")
