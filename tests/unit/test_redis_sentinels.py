"""The primary of a service: what Sentinels announce, and when it is believed."""

import pytest

from penstock.stores.redis.sentinels import OfSentinels
from penstock.stores.redis.settings import Node, read_url

OLD, NEW = Node("10.0.0.1", 6379), Node("10.0.0.2", 6380)
SWITCHED = [b"message", b"+switch-master", b"main 10.0.0.1 6379 10.0.0.2 6380"]
PROMOTED = [b"message", b"+promoted-slave", b"slave 10.0.0.2:6380 10.0.0.2 6380 @ main 10.0.0.1 6379"]


def knowing(primary: Node) -> OfSentinels:
    sentinels = OfSentinels(read_url("redis+sentinel://seed/main", secret="x"))
    sentinels._follow(primary)
    return sentinels


@pytest.mark.parametrize("message", [SWITCHED, PROMOTED], ids=["+switch-master", "+promoted-slave"])
def test_a_successor_is_followed_as_soon_as_it_is_announced(message: list[bytes]) -> None:
    sentinels = knowing(OLD)
    sentinels._announced(message)
    assert sentinels.node(0) == NEW
    assert sentinels.nodes() == {NEW}


@pytest.mark.parametrize("message", [SWITCHED, PROMOTED], ids=["+switch-master", "+promoted-slave"])
def test_a_successor_of_somebody_else_is_not(message: list[bytes]) -> None:
    """It may be news of long ago, or of another service."""
    sentinels = knowing(Node("10.0.0.3", 6379))
    sentinels._announced(message)
    assert sentinels.node(0) == Node("10.0.0.3", 6379)
    sentinels = knowing(OLD)
    sentinels._announced([*message[:2], message[2].replace(b"main", b"other")])
    sentinels._announced([b"subscribe", b"+switch-master", 1])
    assert sentinels.node(0) == OLD


class Announcer:
    """A connection on which some things are said."""

    def __init__(self, *messages: object) -> None:
        self._messages = list(messages)

    def is_quiet(self) -> bool:
        return not self._messages

    def receive(self, until: float) -> object:
        return self._messages.pop(0)


def test_announcements_that_make_no_sense_end_the_listening_and_not_the_looking() -> None:
    sentinels = knowing(OLD)
    sentinels._announcer = Announcer(PROMOTED, [b"message", b"+switch-master", b"nonsense"])  # type: ignore[assignment]
    sentinels._heard()
    assert sentinels.node(0) == NEW
    assert sentinels._announcer is None  # the next look finds another
    assert sentinels._in_doubt
