"""Quotas that callers name. Each takes memory for as long as the service runs, so their number is bounded."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.engine.operations import Operations
from penstock.errors import InvalidQuota
from penstock.quota import Identity
from penstock.service.api.bodies import JsonQuota

MOST = 10_000
"""How many kinds of counters callers may name: by algorithm, period and name, whatever the key and the amount."""


TOGETHER = 32
"""How many one call may name: each takes time while other calls wait, and a list of them is remembered."""


class KnownQuotas:
    """The quotas named so far. Lets a quota pass that is one of them, or for which there is room."""

    def __init__(self, operations: Operations, most: int = MOST) -> None:
        self._operations, self._most = operations, most
        self._texts: set[str] = set()  # of those that have passed: a text is found sooner than its meaning
        self._identities: set[Identity] = set()

    def check(self, quota: JsonQuota) -> JsonQuota:
        """Return `quota` itself; raise `InvalidQuota` if there are too many."""
        if quota.__class__ is str and quota in self._texts:
            return quota
        if quota.__class__ is list:  # before any of them is read
            check_number(len(quota))
        parts = self._operations.quotas(quota)
        check_number(len(parts))
        found = {part.identity for part in parts} - self._identities
        if len(self._identities) + len(found) > self._most:
            raise InvalidQuota(
                f"quota: one more beside {len(self._identities)} others (expected: at most {self._most} "
                "that differ in algorithm, period or name; what varies belongs into the key)"
            )
        self._identities |= found
        if quota.__class__ is str:
            if len(self._texts) >= self._most:  # the same counters with ever other amounts
                self._texts.clear()
            self._texts.add(quota)
        return quota

    def check_all(self, quotas: Sequence[JsonQuota]) -> None:
        """Check the quotas of one call. Once it has named too many, no more of them are read or remembered."""
        check_number(sum([len(quota) if quota.__class__ is list else 1 for quota in quotas]))  # before any is read
        named = 0
        for quota in quotas:
            named += len(self._operations.quotas(self.check(quota)))  # a text may name several
            check_number(named)


def check_number(quotas: int) -> None:
    """Raise `InvalidQuota` if one call names more quotas than it may."""
    if quotas > TOGETHER:
        raise InvalidQuota(f"quota: {quotas} of them (expected at most {TOGETHER} in one call)")
