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
def test_token_gives_access(header: Header, status: int) -> None:
    asked = call(header)
    Guarded(Open(), [TOKEN, "another one of them"]).handle([asked])
    assert asked.answered.status == status


def test_unauthenticated_call_is_answered_401_and_the_rest_pass_as_one_batch() -> None:
    behind = Open()
    calls = [call((b"x-penstock-token", TOKEN.encode())), call(), call((b"x-penstock-token", TOKEN.encode()))]
    Guarded(behind, [TOKEN]).handle([*calls])
    assert behind.batches == [2]
    refused = calls[1].answered
    assert (refused.status, refused.headers[b"www-authenticate"]) == (401, b"Bearer")
    assert refused.json["code"] == "unauthorized"
    Guarded(behind, [TOKEN]).handle([call()])
    assert behind.batches == [2]


def test_proxy_may_forward_the_authorization_of_its_client() -> None:
    asked = call((b"authorization", b"Bearer of the client itself"), (b"x-penstock-token", TOKEN.encode()))
    Guarded(Open(), [TOKEN]).handle([asked])
    assert asked.answered.status == 200


def test_open_paths_need_no_authentication_and_others_do() -> None:
    calls = [call(path=b"/livez"), call(path=b"/livez/"), call(path=b"/v1/openapi.json")]
    Guarded(Open(), [TOKEN], {b"/livez"}).handle([*calls])
    assert [one.answered.status for one in calls] == [200, 401, 401]


def test_certificate_gives_access_by_its_name() -> None:
    known, unknown, none = call(names=("edge", "edge.example")), call(names=("other",)), call()
    Guarded(Open(), [], names=["edge"]).handle([known, unknown, none])
    assert [one.answered.status for one in (known, unknown, none)] == [200, 401, 401]
    anybody = call(names=("other",))
    Guarded(Open(), [], names=["*"]).handle([anybody])
    assert anybody.answered.status == 200


def test_missing_or_weak_credentials_are_an_error() -> None:
    with pytest.raises(InvalidOption, match=r"^auth: expected tokens, or names of certificates$"):
        Guarded(Open(), [])
    with pytest.raises(InvalidOption, match=r"^token 1: expected at least 16 printable ASCII characters$"):
        Guarded(Open(), [TOKEN, "short"])
