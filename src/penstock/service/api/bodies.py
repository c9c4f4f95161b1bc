"""What callers send and get as JSON. Unknown fields are errors: a misspelt one must not mean its default."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import UNSET, Struct, UnsetType, json

Entry: TypeAlias = str | int | bool | None
JsonKey: TypeAlias = str | list[str]
JsonQuota: TypeAlias = str | list[str]


# ---------------------------------------------------------------- what is sent


class Check(Struct, forbid_unknown_fields=True, gc=False):
    """A request, by what is known of it.

    With `receipt` the answer has a token, to refund or settle it by; with `decisions`, how each counter decided.
    """

    descriptor: dict[str, Entry]
    cost: int = 1
    id: str | None = None
    receipt: bool = False
    decisions: bool = False


class Acquire(Struct, forbid_unknown_fields=True, gc=False):
    """A request, by key and quota, without rules."""

    key: JsonKey
    quota: JsonQuota
    cost: int = 1
    id: str | None = None
    receipt: bool = False
    decisions: bool = False


class Part(Struct, forbid_unknown_fields=True, gc=False):
    """One of several requests that are decided together."""

    key: JsonKey
    quota: JsonQuota
    cost: int = 1


class AcquireAll(Struct, forbid_unknown_fields=True, gc=False):
    """Requests by key and quota, of which all may pass or none."""

    requests: list[Part]
    id: str | None = None
    receipt: bool = False
    decisions: bool = False


class Either(Struct, forbid_unknown_fields=True, gc=False):
    """A request by `descriptor`, or by `key` and `quota`."""

    descriptor: dict[str, Entry] | UnsetType = UNSET
    key: JsonKey | UnsetType = UNSET
    quota: JsonQuota | UnsetType = UNSET
    cost: int = 1
    id: str | None = None


class Peek(Struct, forbid_unknown_fields=True, gc=False):
    """The same, where nothing is charged."""

    descriptor: dict[str, Entry] | UnsetType = UNSET
    key: JsonKey | UnsetType = UNSET
    quota: JsonQuota | UnsetType = UNSET
    cost: int = 1
    decisions: bool = False


class Reset(Struct, forbid_unknown_fields=True, gc=False):
    """Counters to forget: those that `descriptor` is counted by, or those of `key` and `quota`."""

    descriptor: dict[str, Entry] | UnsetType = UNSET
    key: JsonKey | UnsetType = UNSET
    quota: JsonQuota | UnsetType = UNSET


class Explain(Struct, forbid_unknown_fields=True, gc=False):
    """A request to explain."""

    descriptor: dict[str, Entry]
    cost: int = 1


class Refund(Struct, forbid_unknown_fields=True, gc=False):
    """Give back what was charged, or `units` of it."""

    receipt: str
    units: int | None = None


class Settle(Struct, forbid_unknown_fields=True, gc=False):
    """Make the cost of a reservation `units` after all."""

    receipt: str
    units: int


class Places(Struct, forbid_unknown_fields=True, gc=False):
    """The places that came with a receipt."""

    receipt: str


# ---------------------------------------------------------------- what is answered


class Decision(Struct, gc=False):
    """The answer to one ask of a request, in the order asked. `charged` says whether its counter was."""

    rule: str
    quota: str
    cost: int
    allowed: bool
    remaining: int
    retry_after: float
    reset_after: float
    more_after: float
    delay: float
    advisory: bool
    charged: bool


class Verdict(Struct, gc=False):
    """The answer to a request.

    - `status`: what the caller may answer its own client with: 200, or 429, 403, 503.
    - `limit`, `remaining`: null where no quota applies.
    - `message`: the text of the rule for refused clients, if it has one.
    - `decisions`: of each counter, if they were wanted.
    """

    allowed: bool
    status: int
    reason: str
    rule: str
    limit: int | None
    remaining: int | None
    retry_after: float
    reset_after: float
    delay: float
    source: str
    degraded: bool
    headers: dict[str, str]
    version: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    would_refuse: tuple[str, ...] | UnsetType = UNSET
    receipt: str | UnsetType = UNSET
    decisions: list[Decision] | UnsetType = UNSET


class Amended(Struct, gc=False):
    """Units that came back: the most of any one counter, and of each. Below zero: charged on top."""

    units: int
    each: tuple[int, ...]


class Renewed(Struct, gc=False):
    """Whether all places are still held."""

    held: bool


class Forgotten(Struct, gc=False):
    """How many counters were forgotten."""

    counters: int


class Counter(Struct, gc=False):
    """One counter as it is now."""

    quota: str
    used: int
    remaining: int
    capacity: int
    blocked_for: float
    reset_after: float


class Explained(Struct, gc=False):
    """One rule: whether it applies, and why or why not."""

    rule: str
    applies: bool
    why: str
    mode: str
    action: str
    key: str
    quotas: list[str]
    counters: list[Counter]


class Explanation(Struct, gc=False):
    """What the rules make of a request."""

    version: str
    outcome: str
    rules: list[Explained]


encode = json.Encoder().encode
