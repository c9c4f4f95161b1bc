"""From the outcomes of operations to the answer of the rate limit service. Pure: the time is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.clock import SECOND, Micros
from penstock.model import Decision, Verdict
from penstock.service.envoy import answers
from penstock.service.envoy.answers import OK, OVER_LIMIT
from penstock.service.envoy.planning import Conduct, Fate, Plan


class Answerer:
    """Writes answers."""

    def __init__(self, conduct: Conduct) -> None:
        self._conduct = conduct
        self._names = tuple(answers.header_name(name) for name in conduct.headers or ())
        self._retry_after = answers.header_name("retry-after")

    def simple(self, fate: Fate, verdict: Verdict) -> bytes:
        """The answer to a simple plan."""
        allowed, remaining, retry_after, reset_after, *_ = verdict[0]
        tally, cost = fate.tally, fate.cost
        tally.total_hits += cost
        if allowed:
            tally.within_limit += cost
            if fate.limit.requests - remaining > fate.near:
                tally.near_limit += cost
            return b"\x08\x01" + answers.status(OK, fate.current, remaining, -(-reset_after // SECOND))
        tally.over_limit += cost
        wait = -(-retry_after // SECOND)
        answer = b"\x08\x02" + answers.status(OVER_LIMIT, fate.current, 0, wait)
        return answer + answers.header(self._retry_after, wait) if self._conduct.retry_after else answer

    def answer(self, plan: Plan, verdicts: Sequence[Verdict], now: Micros) -> bytes:
        """The answer to any plan; `now` is since the epoch."""
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
            statuses.append(answers.status(OK if kept or shadow else OVER_LIMIT, fate.current, remaining, wait))
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
        parts = [answers.OVERALL[OVER_LIMIT if refused else OK], *statuses]
        if self._names and tightest is not None:
            remaining, fate, wait = tightest
            values = fate.limit.requests, remaining, wait
            parts += [answers.header(name, value) for name, value in zip(self._names, values, strict=True)]
        if refused and conduct.retry_after:
            parts.append(answers.header(self._retry_after, longest))
        if plan.asked:
            parts += [plan.asked, answers.metadata({"metadata": kept_metadata} if kept_metadata else {})]
        return b"".join(parts)


def _merge(into: dict[str, object], more: Mapping[str, object]) -> None:
    """Entries of several limits together: of the same name, the first; mappings are merged themselves."""
    for name, value in more.items():
        there = into.get(name)
        if isinstance(value, Mapping) and (there is None or isinstance(there, dict)):
            merged = into[name] = dict(there or {})
            _merge(merged, value)
        else:
            into.setdefault(name, value)


def _judged(fate: Fate, verdicts: Sequence[Verdict], now: Micros) -> tuple[bool, int, int]:
    """Whether a descriptor is within its limit, what remains, and after how many seconds there is more."""
    limit = fate.limit
    if fate.op < 0:  # a limit of 0
        period = limit.unit.seconds if limit.unit is not None else 1
        return False, 0, period - now // SECOND % period
    decisions: Sequence[Decision] = verdicts[fate.op].decisions
    parts = decisions[fate.ask : fate.ask + (len(limit.quota.parts) if limit.quota is not None else 1)]
    rate = parts[0]
    if fate.never:
        return False, 0, answers.seconds(max(rate.reset_after_us, rate.retry_after_us))
    if all(parts):
        return True, rate.remaining, answers.seconds(rate.reset_after_us)
    return False, 0, answers.seconds(max(part.retry_after_us for part in parts if not part))


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
