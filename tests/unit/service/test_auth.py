"""Who may ask."""

import pytest

from penstock.errors import InvalidOption
from penstock.service.auth import Guarded
from penstock.service.wire.calls import Call, Head, Header, Peer
from tests.unit.service.desk import ByHand

TOKEN = "0123456789abcdef"
OK = Head(200)


class Open:
    def __init__(self) -> None:
        self.batches: list[int] = []

    def handle(self, calls: list[Call]) -> None:
        self.batches.append(len(calls))
        for call in calls:
            call.answer(OK)


def call(*headers: Header, path: bytes = b"/v1/check", names: tuple[str, ...] = ()) -> ByHand:
    return ByHand(b"POST", path, b"", headers, Peer("127.0.0.1", True, names))


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ((b"authorization", b"Bearer 0123456789abcdef"), 200),
        ((b"authorization", b"bearer  0123456789abcdef"), 200),
        ((b"x-penstock-token", b"0123456789abcdef"), 200),
        ((b"authorization", b"Bearer 0123456789abcdeg"), 401),
        ((b"authorization", b"Bearer 0123456789abcdef0"), 401),
        ((b"authorization", b"Bearer"), 401),
        ((b"authorization", b"Basic 0123456789abcdef"), 401),
        ((b"authorization", b"0123456789abcdef"), 401),
        ((b"x-token", b"0123456789abcdef"), 401),
    ],
)
def test_a_token_opens(header: Header, status: int) -> None:
    asked = call(header)
    Guarded(Open(), [TOKEN, "another one of them"]).handle([asked])
    assert asked.answered.status == status


def test_who_shows_nothing_is_told_what_to_show_and_others_pass_as_a_batch() -> None:
    behind = Open()
    calls = [call((b"x-penstock-token", TOKEN.encode())), call(), call((b"x-penstock-token", TOKEN.encode()))]
    Guarded(behind, [TOKEN]).handle([*calls])
    assert behind.batches == [2]
    refused = calls[1].answered
    assert (refused.status, refused.headers[b"www-authenticate"]) == (401, b"Bearer")
    assert refused.json["code"] == "unauthorized"
    Guarded(behind, [TOKEN]).handle([call()])
    assert behind.batches == [2]


def test_a_proxy_may_pass_on_its_clients_authorization() -> None:
    asked = call((b"authorization", b"Bearer of the client itself"), (b"x-penstock-token", TOKEN.encode()))
    Guarded(Open(), [TOKEN]).handle([asked])
    assert asked.answered.status == 200


def test_open_paths_are_open_and_nothing_beside_them() -> None:
    calls = [call(path=b"/livez"), call(path=b"/livez/"), call(path=b"/v1/openapi.json")]
    Guarded(Open(), [TOKEN], {b"/livez"}).handle([*calls])
    assert [one.answered.status for one in calls] == [200, 401, 401]


def test_a_certificate_opens_by_its_name() -> None:
    known, unknown, none = call(names=("edge", "edge.example")), call(names=("other",)), call()
    Guarded(Open(), [], names=["edge"]).handle([known, unknown, none])
    assert [one.answered.status for one in (known, unknown, none)] == [200, 401, 401]
    anybody = call(names=("other",))
    Guarded(Open(), [], names=["*"]).handle([anybody])
    assert anybody.answered.status == 200


def test_what_would_open_to_nobody_or_be_guessed_is_an_error() -> None:
    with pytest.raises(InvalidOption, match=r"^auth: expected tokens, or names of certificates$"):
        Guarded(Open(), [])
    with pytest.raises(InvalidOption, match=r"^token 1: expected at least 16 printable ASCII characters$"):
        Guarded(Open(), [TOKEN, "short"])
