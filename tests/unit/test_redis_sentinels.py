"""The primary of a service: announcements and replies of Sentinels, and which are believed."""

from collections.abc import Sequence
from typing import Any

from penstock.model import Failed
from penstock.stores.redis.config import Node, read_url
from penstock.stores.redis.connection import BlockingConnection
from penstock.stores.redis.sentinel import NamedPrimary, SentinelTopology

SEED = Node("seed", 26379)
OLD, NEW = Node("10.0.0.1", 6379), Node("10.0.0.2", 6380)


class Announcer(BlockingConnection):
    """A connection on which some things are said."""

    def __init__(self, *messages: object) -> None:
        self._messages = list(messages)

    def is_quiet(self) -> bool:
        return not self._messages

    def receive(self, until: float) -> object:
        return self._messages.pop(0)


class Told(SentinelTopology):
    """A service whose one Sentinel says what a test wants; every server but those in `replicas` is a primary."""

    def __init__(self, epoch: int, primary: Node) -> None:
        super().__init__(read_url("redis+sentinel://seed/main", secret="x"))
        self.said: NamedPrimary | Failed = NamedPrimary(epoch, primary)
        self.replicas: dict[Node, Node] = {}
        self.watch.look()

    def announce(self, epoch: int, primary: Node) -> Node | None:
        self.said = NamedPrimary(epoch, primary)
        self._announcer = SEED, Announcer([b"message", b"+switch-master", b"main and whatever else it says"])
        self.received()
        return self.node(0)

    def primary(self) -> Node | None:
        self.watch.look()
        return self.node(0)

    def _query(self, nodes: Sequence[Node]) -> dict[Node, NamedPrimary | Failed]:
        return {SEED: self.said}

    def _listen(self, sentinels: Sequence[Node]) -> None:
        """No Sentinel publishes."""

    def _role_of(self, node: Node) -> list[Any] | None:
        if node in self.replicas:
            primary = self.replicas[node]
            return [b"slave", primary.host.encode(), primary.port]
        return [b"master"]


def test_after_an_announcement_the_sentinel_is_asked_at_once() -> None:
    told = Told(3, OLD)
    assert told.announce(4, NEW) == NEW
    assert told.nodes == {NEW}
    assert told.watch.in_doubt  # the others may know better


def test_announcements_of_other_services_are_ignored() -> None:
    told = Told(3, OLD)
    told.watch.in_doubt = False
    told.said = NamedPrimary(4, NEW)
    told._announcer = SEED, Announcer([b"message", b"+switch-master", b"other a 1 b 2"], [b"subscribe", b"x", 1])
    told.received()
    assert told.node(0) == OLD
    assert not told.watch.in_doubt
    assert told._announcer is not None


def test_an_announcement_with_an_older_epoch_is_not_followed() -> None:
    told = Told(4, NEW)
    assert told.announce(3, OLD) == NEW


def test_an_announcer_that_hangs_up_ends_the_listening_and_not_the_looking() -> None:
    told = Told(3, OLD)
    told._announcer = SEED, Announcer(b"nonsense")
    told.received()
    assert told._announcer is None
    assert told.watch.in_doubt


def test_a_primary_that_handed_over_is_believed_about_its_successor() -> None:
    told = Told(3, OLD)
    told.replicas[OLD] = NEW
    assert told.primary() == OLD  # there is no doubt
    told.watch._suspects.add(OLD)
    assert told.primary() == NEW
    assert told.primary() == NEW  # although the Sentinel names the old one still
    told.said = NamedPrimary(4, OLD)
    told.replicas = {NEW: OLD}
    assert told.primary() == OLD


def test_a_successor_that_is_none_is_not_followed() -> None:
    told = Told(3, OLD)
    told.replicas = {OLD: NEW, NEW: OLD}
    told.watch._suspects.add(OLD)
    assert told.primary() == OLD
