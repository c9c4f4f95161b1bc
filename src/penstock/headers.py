"""Response headers and the body of a refusal, made from a `Verdict`. Pure; it reads no clock.

Dialects, of which a writer may write several:

    ietf        RateLimit-Policy: "100-per-minute";q=100;w=60       draft-ietf-httpapi-ratelimit-headers-08 to -11
                RateLimit: "100-per-minute";r=50;t=30
    draft6      RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset in seconds
    x-epoch     X-RateLimit-Limit, -Remaining, and -Reset as an instant, in seconds since the Unix epoch
    x-seconds   the same with -Reset in seconds from now
    none        no header that reveals a capacity

In every dialect a refusal carries `Retry-After`, in whole seconds, rounded up and at least 1. A client that waits so
long passes, unless other requests come first. It also carries `Cache-Control: no-store`, because a 429 must not be
cached (RFC 6585).

**Which policies.** `RateLimit` lists the same policies as `RateLimit-Policy`. The draft lets a server leave out all but
the one closest to exhaustion, but the policy with the smallest share left is not always the first to refuse. The other
dialects have room for one policy: the refused one with the longest wait, else the one with the smallest share left.
Advisory decisions are never shown.

**q and w** state the sustained rate. `w` is the period, or the time in which a larger burst refills, rounded up to
whole seconds. `q` is scaled alike and rounded down, so it never exceeds what is enforced and is never below `r`.

**t** is the time until more is available. If the policy admits, `t` is at least so long that r/t does not exceed q/w,
because clients spread `r` over `t` (section 8.5 of draft-11). **Reset** is when the window ends or the bucket is full;
on a refusal it equals `Retry-After`, so that a client may follow either.

**Calendar periods** have no `w`, because their length varies. **concurrency** has none, because places are not counted
by time; it says `qu="concurrent-requests"` instead.

**Degraded answers.** While the store is gone and all requests are admitted or refused alike (`Verdict.source` is "open"
or "closed"), the state of no policy is known, so none is listed. Such a refusal is a 503 and no 429, because the client
did nothing wrong. An answer of this host alone ("local") shows this host's share of what is left.

**min_interval** of less than a second is not listed: rounded up it would say `r=0;t=1` after every admission and slow
clients down more than the limit does. A longer one is listed, but chosen as the one policy only if there is no other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeAlias

from penstock.clock import SECOND, Micros
from penstock.errors import InvalidInput, InvalidOption
from penstock.model import Decision, Verdict
from penstock.quota import CONCURRENCY, MIN_INTERVAL, Quota
from penstock.quota import text as quota_text

DIALECTS = ("ietf", "draft6", "x-epoch", "x-seconds", "none")
PROBLEM_JSON = "application/problem+json"
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
OK, TOO_MANY, UNAVAILABLE = 200, 429, 503
MAX_INTEGER = 999_999_999_999_999  # the largest in a structured field
MAX_REMEMBERED = 1_024

Header: TypeAlias = tuple[str, str]


class _Policy(NamedTuple):
    """The quota of the ask at `position`, as clients see it."""

    position: int
    name: str
    q: int
    w: int | None
    limit: int  # for dialects without a window
    quota: Quota


class _Shown(NamedTuple):
    """What clients may see of requests with the same quotas."""

    named: tuple[_Policy, ...]  # in a refusal's body
    listed: tuple[_Policy, ...]  # in headers
    policy_header: Header


Write: TypeAlias = Callable[[_Shown, Sequence[Decision], Micros], list[Header]]
"""Writes one dialect, from the policies, the decisions in the order asked, and the wait (0 if admitted)."""


class HeaderWriter:
    """Writes the headers of every response, and the body of refusals.

    - `dialect`: one of `DIALECTS`, or several. A writer with `"none"` is for clients that must not learn capacities:
      they get `Retry-After` alone, and a body that names no policy.
    - `hidden`: names of quotas that are not shown to clients, such as those against abuse. They refuse all the same.

    >>> writer = HeaderWriter("ietf", hidden=["login-abuse"])
    """

    def __init__(self, dialect: str | Sequence[str] = "ietf", *, hidden: Collection[str] = ()) -> None:
        self._writes = tuple(_WRITES[name] for name in _dialects(dialect) if name != "none")
        self._hidden = _hidden(hidden)
        self._remembered: dict[object, _Shown] = {}

    def headers(self, verdict: Verdict) -> list[Header]:
        """Return the headers to add to the response, admitted or refused."""
        wait = 0 if verdict[0][0] else _wait(verdict)
        headers: list[Header] = []
        if self._writes and (len(verdict) < 8 or verdict.source == "local"):
            shown = self._shown(verdict)
            if shown.listed:
                decisions = verdict[5] or (verdict,)  # a lone verdict is its own decision
                for write in self._writes:
                    headers += write(shown, decisions, wait)
        if wait:
            headers += ("Retry-After", str(_seconds(wait))), ("Cache-Control", "no-store")
        return headers

    def problem(self, verdict: Verdict) -> dict[str, object]:
        """Return the problem details (RFC 9457) of a refusal: which policies refused, and when to retry."""
        if verdict:
            raise InvalidInput("problem of an admitted verdict: expected a refusal")
        if status_of(verdict) == UNAVAILABLE:
            return {
                "type": "about:blank",
                "title": "Service Unavailable",
                "status": UNAVAILABLE,
                "detail": f"Cannot be decided now: try again in {_in_seconds(verdict)}.",
            }
        decisions = verdict.decisions
        named = self._shown(verdict).named if self._writes else ()
        violated = [policy.name for policy in named if not decisions[policy.position]]
        by = f" by {', '.join(violated)}" if violated else ""
        problem: dict[str, object] = {
            "type": QUOTA_EXCEEDED,
            "title": "Quota Exceeded",
            "status": TOO_MANY,
            "detail": f"Refused{by}: try again in {_in_seconds(verdict)}.",
        }
        return problem | {"violated-policies": violated} if violated else problem

    def body(self, verdict: Verdict) -> bytes:
        """Return the problem as a response body; its content type is `PROBLEM_JSON`."""
        return json.dumps(self.problem(verdict)).encode("ascii")

    def _shown(self, verdict: Verdict) -> _Shown:
        """Return what clients may see of a request with these quotas, from a cache."""
        several = verdict[5]
        request = tuple([(decision[3], decision[5]) for decision in several]) if several else verdict[3]
        shown = self._remembered.get(request)
        if shown is None:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            shown = self._remembered[request] = self._show(verdict.decisions)
        return shown

    def _show(self, decisions: Sequence[Decision]) -> _Shown:
        named: dict[str, _Policy] = {}
        for position, decision in enumerate(decisions):
            quota = decision.quota
            if not decision.advisory and quota.name not in self._hidden:
                name = _unique(_name(quota), named)
                named[name] = _policy(position, name, quota)
        policies = tuple(named.values())
        listed = tuple(p for p in policies if p.quota.algorithm != MIN_INTERVAL or p.quota.period_us >= SECOND)
        return _Shown(policies, listed, ("RateLimit-Policy", ", ".join(map(_policy_item, listed))))


def status_of(verdict: Verdict) -> int:
    """Return the status of the response: 429 if a limit was exceeded, 503 if that could not be decided, else 200."""
    if verdict[0][0]:
        return OK
    return UNAVAILABLE if verdict.source == "closed" else TOO_MANY


def _in_seconds(refusal: Verdict) -> str:
    seconds = _seconds(_wait(refusal))
    return f"{seconds} second{'s' if seconds > 1 else ''}"


def _wait(refusal: Verdict) -> Micros:
    """Return how long a refused client has to wait; never 0."""
    return max(refusal.retry_after_us, refusal.more_after_us, 1)


def _seconds(micros: Micros) -> int:
    return -(-micros // SECOND)


def _policy_item(policy: _Policy) -> str:
    unit = ';qu="concurrent-requests"' if policy.quota.algorithm == CONCURRENCY else ""
    window = "" if policy.w is None else f";w={policy.w}"
    return f'"{policy.name}";q={policy.q}{unit}{window}'


def _policy(position: int, name: str, quota: Quota) -> _Policy:
    if quota.calendar is not None or quota.algorithm == CONCURRENCY:
        return _Policy(position, name, quota.limit, None, quota.limit, quota)
    limit = max(quota.limit, quota.capacity)
    w = -(-limit * quota.period_us // (quota.limit * SECOND))
    q = min(quota.limit * w * SECOND // quota.period_us, MAX_INTEGER)
    return _Policy(position, name, q, w, limit, quota)


def _name(quota: Quota) -> str:
    """Return the quota's own name, or one made from its amounts."""
    period = quota.calendar.unit if quota.calendar else quota_text.write_period(quota.period_us).replace(" ", "-")
    if quota.algorithm == MIN_INTERVAL:
        return f"{quota.name}-min-interval" if quota.name else f"min-interval-{period}"
    if quota.name:
        return quota.name
    if quota.algorithm == CONCURRENCY:
        return f"{quota.limit}-concurrent"
    burst = "" if quota.burst is None else f"-burst-{quota.burst}"
    return f"{quota.limit}-per-{period}{burst}"


def _unique(name: str, taken: Collection[str]) -> str:
    """Return `name`, numbered if an earlier ask of the request has it: one quota of two keys, or two equal names."""
    numbered, number = name, 2
    while numbered in taken:
        numbered, number = f"{name}-{number}", number + 1
    return numbered


# The functions below read decisions by position, for speed: [0] is the answer, [1] the instant.


def _write_ietf(shown: _Shown, decisions: Sequence[Decision], wait: Micros) -> list[Header]:
    items = []
    for position, name, q, w, _, _ in shown.listed:
        allowed, remaining, _, _, more_after, _, _ = decisions[position][0]
        t = -(-more_after // SECOND)
        if allowed and w and t * q < remaining * w:
            t = -(-remaining * w // q)
        items.append(f'"{name}";r={remaining};t={t}')
    return [shown.policy_header, ("RateLimit", ", ".join(items))]


def _write_triple(prefix: str, *, epoch: bool) -> Write:
    limit, remaining, reset = f"{prefix}-Limit", f"{prefix}-Remaining", f"{prefix}-Reset"

    def write(shown: _Shown, decisions: Sequence[Decision], wait: Micros) -> list[Header]:
        policy = shown.listed[0] if len(shown.listed) == 1 else _foremost(shown.listed, decisions)
        decision = decisions[policy.position]
        _, left, _, reset_after, _, _, _ = decision[0]
        until = wait or reset_after
        if epoch:  # round the instant and not the wait, so that all answers of one window state the same instant
            until += decision[1]
        return [(limit, str(policy.limit)), (remaining, str(left)), (reset, str(-(-until // SECOND)))]

    return write


def _foremost(policies: tuple[_Policy, ...], decisions: Sequence[Decision]) -> _Policy:
    """Return the policy to show in a dialect with room for one."""
    refused = [policy for policy in policies if not decisions[policy.position]]
    if refused:
        return max(refused, key=lambda policy: decisions[policy.position].retry_after_us)
    budgets = [policy for policy in policies if policy.quota.algorithm != MIN_INTERVAL] or policies
    return min(budgets, key=lambda policy: decisions[policy.position].remaining / policy.quota.capacity)


_WRITES: dict[str, Write] = {
    "ietf": _write_ietf,
    "draft6": _write_triple("RateLimit", epoch=False),
    "x-epoch": _write_triple("X-RateLimit", epoch=True),
    "x-seconds": _write_triple("X-RateLimit", epoch=False),
}


def _dialects(dialect: str | Sequence[str]) -> tuple[str, ...]:
    dialects = tuple(dialect) if isinstance(dialect, list | tuple) else (dialect,)
    for name in dialects or (dialect,):
        if name not in DIALECTS:
            raise InvalidOption(f"dialect {name!r}: expected one or several of {', '.join(DIALECTS)}")
    if len(set(dialects)) < len(dialects):
        raise InvalidOption(f"dialects {', '.join(dialects)}: expected each at most once")
    if "none" in dialects and len(dialects) > 1:
        raise InvalidOption(f"dialects {', '.join(dialects)}: expected none to stand alone")
    if {"x-epoch", "x-seconds"} <= set(dialects):
        raise InvalidOption("dialects x-epoch and x-seconds: expected one of them, both write X-RateLimit-Reset")
    return dialects


def _hidden(hidden: Collection[str]) -> frozenset[str]:
    if not isinstance(hidden, list | tuple | set | frozenset):
        raise InvalidOption(f"hidden {hidden!r}: expected a list of names, not {type(hidden).__name__}")
    for name in hidden:
        if not isinstance(name, str) or not quota_text.NAME.fullmatch(name):
            raise InvalidOption(f"hidden {name!r}: expected the name of a quota")
    return frozenset(hidden)
