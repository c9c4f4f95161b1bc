"""Whatever is sent, it is answered once, never by a 5xx; and what is refused as wrong has changed nothing."""

import json
from random import Random
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from penstock.service.api import openapi
from penstock.stores.memory.store import MemoryStore
from tests.unit.service.desk import Answer, ByHand, Desk

DESK = Desk()
SHARED = Desk(shared=True)
PER_EXAMPLE = 5
EXAMPLES: dict[str, Any] = {call.path: call.example for call in openapi.CALLS}
FIELDS = ["descriptor", "key", "quota", "cost", "id", "receipt", "units", "Cost", "x"]
RECEIPT = DESK.post("/v1/hold", {"key": "k", "quota": "9 concurrent ttl 1h; 99/day", "id": "x"}).json["receipt"]
UNUSED = {"key": "never charged", "quota": "5/minute"}

TEXTS = ["1/minute", "5 concurrent", "", "a" * 1_025, "1/s;1/s", RECEIPT, "\ud800", "\u00e9", "0", "nan"]
PLAIN: list[Any] = [None, True, False, 0, 1, -1, 2**53, 2**64, 10**40, 0.5, -1e300, float("inf"), float("nan"), *TEXTS]


def value(random: Random, depth: int = 0) -> Any:
    kind = random.random()
    if depth > 2 or kind < 0.6:
        return random.choice(PLAIN)
    if kind < 0.8:
        return [value(random, depth + 1) for _ in range(random.randrange(4))]
    return {random.choice([*TEXTS, *FIELDS]): value(random, depth + 1) for _ in range(random.randrange(4))}


def body(random: Random, path: str) -> bytes:
    """Something near to what is expected there, or anything."""
    kind = random.choice(["changed", "changed", "cut", "bytes", "value", "flipped"])
    if kind == "bytes":
        return random.randbytes(random.randrange(60))
    if kind == "value":
        return json.dumps(value(random)).encode()
    sent = EXAMPLES[path]
    if kind == "changed":
        changed = {random.choice(FIELDS): value(random)}
        sent = {**sent, **changed} if isinstance(sent, dict) else [*sent, {**sent[0], **changed}]
    raw = json.dumps(sent).encode()
    at = random.randrange(len(raw))
    if kind == "cut":
        return raw[:at]
    return raw[:at] + random.randbytes(random.randrange(3)) + raw[at + 1 :] if kind == "flipped" else raw


@given(st.integers(0, 2**64 - 1))
def test_no_body_breaks_anything(seed: int) -> None:
    random = Random(seed)  # ten times as fast as drawing every part of a body
    desk = random.choice([SHARED, DESK])
    sent = [(path, body(random, path)) for path in random.choices([*EXAMPLES], k=PER_EXAMPLE)]
    for path, raw in sent:
        counters = counted(desk)
        (answer,) = desk.ask(ByHand(b"POST", path.encode(), raw))
        assert answer.status in (200, 400, 422), (answer.status, path)
        if answer.status != 200:
            check_problem(answer)
            assert counted(desk) == counters
    together = [ByHand(b"POST", path.encode(), raw) for path, raw in sent]
    assert {answer.status for answer in desk.ask(*together)} <= {200, 400, 422}
    assert desk.post("/v1/peek", UNUSED).json["remaining"] == 5


def counted(desk: Desk) -> int:
    return cast("MemoryStore", desk.limiter.store).counters


def check_problem(answer: Answer) -> None:
    assert answer.headers[b"content-type"] == b"application/problem+json"
    assert answer.json.keys() >= {"title", "status", "code", "detail"}
    assert answer.json["status"] == answer.status


headers = st.lists(
    st.tuples(
        st.sampled_from([b"x-original-uri", b"x-forwarded-uri", b"x-forwarded-for", b"x-original-method", b"host"]),
        st.binary(max_size=30),
    ),
    max_size=5,
)
paths = st.sampled_from([b"/v1/authz", b"/v1/authz-original", b"/v1/authz-forwarded", b"/v1/check", b"/v1/"])


@given(paths, st.binary(max_size=30), st.binary(min_size=1, max_size=8), headers)
def test_no_path_method_or_header_breaks_anything(
    path: bytes, rest: bytes, method: bytes, sent: list[tuple[bytes, bytes]]
) -> None:
    (answer,) = DESK.ask(ByHand(method, path + rest, b"", sent))
    assert answer.status < 500
