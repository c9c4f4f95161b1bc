"""Whatever is sent, it is answered once, never by a 5xx; and what is refused as wrong has changed nothing."""

import json
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from penstock.service.api import openapi
from penstock.stores.memory import MemoryStore
from tests.unit.service.desk import Answer, ByHand, Desk

DESK = Desk()
SHARED = Desk(shared=True)
PER_EXAMPLE = 5
EXAMPLES: dict[str, Any] = {call.path: call.example for call in openapi.CALLS}
FIELDS = ["descriptor", "key", "quota", "cost", "id", "receipt", "units", "Cost", "x"]
RECEIPT = DESK.post("/v1/hold", {"key": "k", "quota": "9 concurrent ttl 1h; 99/day", "id": "x"}).json["receipt"]
UNUSED = {"key": "never charged", "quota": "5/minute"}

texts = st.text(max_size=20) | st.sampled_from(["1/minute", "5 concurrent", "", "a" * 1_025, "1/s;1/s", RECEIPT])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(10**40), 10**40) | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def bodies(draw: st.DrawFn, path: str) -> bytes:
    """Something near to what is expected there, or anything."""
    kind = draw(st.sampled_from(["changed", "changed", "cut", "bytes", "value", "flipped"]))
    if kind == "bytes":
        return draw(st.binary(max_size=60))
    if kind == "value":
        return json.dumps(draw(values)).encode()
    body = EXAMPLES[path]
    if kind == "changed" and isinstance(body, dict):
        body = {**body, draw(st.sampled_from(FIELDS)): draw(values)}
    elif kind == "changed":
        body = [*body, draw(values)]
    raw = json.dumps(body).encode()
    if kind == "cut":
        return raw[: draw(st.integers(0, len(raw)))]
    if kind == "flipped":
        position = draw(st.integers(0, len(raw) - 1))
        return raw[:position] + draw(st.binary(min_size=1, max_size=2)) + raw[position + 1 :]
    return raw


calls = st.sampled_from([*EXAMPLES]).flatmap(lambda path: st.tuples(st.just(path), bodies(path)))


@given(st.lists(calls, min_size=PER_EXAMPLE, max_size=PER_EXAMPLE), st.booleans())
def test_no_body_breaks_anything(sent: list[tuple[str, bytes]], shared: bool) -> None:
    desk = SHARED if shared else DESK
    for path, body in sent:
        counters = counted(desk)
        (answer,) = desk.ask(ByHand(b"POST", path.encode(), body))
        assert answer.status in (200, 400, 422), (answer.status, path)
        if answer.status != 200:
            check_problem(answer)
            assert counted(desk) == counters
    together = [ByHand(b"POST", path.encode(), body) for path, body in sent]
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
