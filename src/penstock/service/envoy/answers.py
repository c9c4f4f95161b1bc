"""Answers of the rate limit service, written by hand: the same bytes as built messages, in a fourth of the time.

    RateLimitResponse   1 overall code   2 statuses   3 response headers   6 dynamic metadata
    DescriptorStatus    1 code   2 current limit   3 remaining   4 duration until reset
    RateLimit           1 requests per unit   2 unit   3 name

Fields that are zero are left out, as everywhere in the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.clock import SECOND, Micros
from penstock.model import Decision, Verdict
from penstock.service.envoy.config import Limit
from penstock.service.envoy.protocol import Struct

if TYPE_CHECKING:
    from penstock.service.envoy.plans import Conduct, Fate, RequestPlan

OK, OVER_LIMIT = 1, 2
OVERALL = {OK: b"\x08\x01", OVER_LIMIT: b"\x08\x02"}
UNLIMITED_REMAINING = 2**32 - 1

KNOWN = 16_384  # numbers of two bytes, as most limits and waits are
_VARINTS = [bytes([n]) if n < 128 else bytes([n & 127 | 128, n >> 7]) for n in range(KNOWN)]


def varint(number: int) -> bytes:
    """Encode a whole number, seven bits a byte."""
    if number < KNOWN:
        return _VARINTS[number]
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(tag: int, content: bytes) -> bytes:
    """Encode a field with content of some length: text, bytes, a message."""
    return _VARINTS[tag << 3 | 2] + varint(len(content)) + content


def current_limit(requests: int, unit: int, name: str) -> bytes:
    """Encode the limit of a status."""
    amount = b"\x08" + varint(requests) if requests else b""
    length = b"\x10" + varint(unit) if unit else b""
    return field(2, amount + length + (field(3, name.encode()) if name else b""))


def limit_field(limit: Limit | None) -> bytes:
    """Encode the limit of a status from the configuration; empty where there is none to show."""
    if limit is None or limit.unit is None or limit.unlimited:
        return b""
    return current_limit(limit.requests, limit.unit.number, limit.name)


def status(code: int, current: bytes, remaining: int, seconds: int) -> bytes:
    """Encode a status."""
    body = OVERALL[code] + current
    if remaining:
        body += b"\x18" + (_VARINTS[remaining] if remaining < KNOWN else varint(remaining))
    if seconds:
        length = _VARINTS[seconds] if seconds < KNOWN else varint(seconds)
        body += b"\x22" + _VARINTS[len(length) + 1] + b"\x08" + length
    return b"\x12" + (_VARINTS[len(body)] if len(body) < KNOWN else varint(len(body))) + body


def header(name: bytes, value: int) -> bytes:
    """Encode a response header; `name` is made by `header_name`."""
    return field(3, name + field(2, b"%d" % value))


def header_name(name: str) -> bytes:
    return field(1, name.encode())


def metadata(said: Mapping[str, object]) -> bytes:
    """Encode dynamic metadata. Of several such fields, readers merge the entries by their names."""
    if not said:
        return b""
    struct = Struct()
    struct.update(said)
    return field(6, struct.SerializeToString())


def seconds(micros: Micros) -> int:
    """Return whole seconds, rounded up, so that a retry after them is not too early."""
    return -(-micros // SECOND)


class Answerer:
    """Writes answers from verdicts. Pure: the time is an argument."""

    def __init__(self, conduct: Conduct) -> None:
        self._conduct = conduct
        self._names = tuple(header_name(name) for name in conduct.headers or ())
        self._retry_after = header_name("retry-after")

    def simple(self, fate: Fate, verdict: Verdict) -> bytes:
        """Return the answer to a simple plan."""
        allowed, remaining, retry_after, reset_after, *_ = verdict[0]
        tally, cost = fate.tally, fate.cost
        tally.total_hits += cost
        if allowed:
            tally.within_limit += cost
            if fate.limit.requests - remaining > fate.near:
                tally.near_limit += cost
            return b"\x08\x01" + status(OK, fate.current, remaining, -(-reset_after // SECOND))
        tally.over_limit += cost
        wait = -(-retry_after // SECOND)
        answer = b"\x08\x02" + status(OVER_LIMIT, fate.current, 0, wait)
        return answer + header(self._retry_after, wait) if self._conduct.retry_after else answer

    def answer(self, plan: RequestPlan, verdicts: Sequence[Verdict], now: Micros) -> bytes:
        """Return the answer to any plan; `now` is since the epoch."""
        conduct = self._conduct
        statuses: list[bytes] = []
        kept_metadata: dict[str, object] = {}
        over = quota_over = quota_kept = False
        longest = 0
        tightest: tuple[int, Fate, int] | None = None  # remaining, fate, seconds until reset
        for fate in plan.fates:
            if fate.fixed:
                fate.tally.total_hits += fate.cost
                fate.tally.within_limit += fate.cost
                statuses.append(fate.fixed)
                continue
            kept, remaining, wait = _judged(fate, verdicts, now)
            _count(fate, kept=kept, remaining=remaining)
            shadow = fate.limit.shadow
            if plan.asked and (kept or shadow):
                _merge(kept_metadata, fate.limit.metadata)
            statuses.append(status(OK if kept or shadow else OVER_LIMIT, fate.current, remaining, wait))
            if not kept and not shadow:
                longest = max(longest, wait)
            if tightest is None or remaining < tightest[0] or not (kept or shadow):
                tightest = remaining, fate, wait
            if fate.limit.quota_mode or conduct.quota_mode:
                quota_kept = quota_kept or kept or shadow
                quota_over = quota_over or not (kept or shadow)
            else:
                over = over or not (kept or shadow)
        refused = (over or (quota_over and not quota_kept)) and not conduct.shadow_mode
        parts = [OVERALL[OVER_LIMIT if refused else OK], *statuses]
        if self._names and tightest is not None:
            remaining, fate, wait = tightest
            values = fate.limit.requests, remaining, wait
            parts += [header(name, value) for name, value in zip(self._names, values, strict=True)]
        if refused and conduct.retry_after:
            parts.append(header(self._retry_after, longest))
        if plan.asked:
            parts += [plan.asked, metadata({"metadata": kept_metadata} if kept_metadata else {})]
        return b"".join(parts)


def _merge(into: dict[str, object], more: Mapping[str, object]) -> None:
    """Add entries of another limit: of the same name, the first stays; mappings are merged."""
    for name, value in more.items():
        there = into.get(name)
        if isinstance(value, Mapping) and (there is None or isinstance(there, dict)):
            merged = into[name] = dict(there or {})
            _merge(merged, value)
        else:
            into.setdefault(name, value)


def _judged(fate: Fate, verdicts: Sequence[Verdict], now: Micros) -> tuple[bool, int, int]:
    """Return whether a descriptor is within its limit, the rest, and the seconds until there is more."""
    limit = fate.limit
    if fate.op < 0:  # a limit of 0
        period = limit.unit.seconds if limit.unit is not None else 1
        return False, 0, period - now // SECOND % period
    decisions: Sequence[Decision] = verdicts[fate.op].decisions
    parts = decisions[fate.ask : fate.ask + (len(limit.quota.parts) if limit.quota is not None else 1)]
    rate = parts[0]
    if fate.never:
        return False, 0, seconds(max(rate.reset_after_us, rate.retry_after_us))
    if all(parts):
        return True, rate.remaining, seconds(rate.reset_after_us)
    return False, 0, seconds(max(part.retry_after_us for part in parts if not part))


def _count(fate: Fate, *, kept: bool, remaining: int) -> None:
    tally, cost, limit = fate.tally, fate.cost, fate.limit
    tally.total_hits += cost
    if kept:
        tally.within_limit += cost
        if limit.requests - remaining > fate.near:
            tally.near_limit += cost
        return
    tally.over_limit += cost
    if limit.shadow:
        tally.shadow_mode += cost
