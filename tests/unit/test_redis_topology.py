"""The servers that decide: replies of cluster nodes and Sentinels, and which are believed."""

import _thread
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from penstock.engine.lifetime import Token
from penstock.model import Failed
from penstock.stores.redis.cluster import Claim, ClusterTopology, Witness, claims, members, names
from penstock.stores.redis.config import Node, read_url
from penstock.stores.redis.errors import not_sent
from penstock.stores.redis.sentinel import NamedPrimary, SentinelTopology

HOST = Witness("10.0.0.9")
NODES = """\
aaa 10.0.0.1:7000@17000 myself,master - 0 0 7 connected 0-99 200 [300->-bbb] [400-<-ccc]
bbb 10.0.0.2:7000@17000,two.example master - 0 1 8 connected 100-199 201-16383
ccc 10.0.0.3:7000@17000,,shard-id=1 slave bbb 0 1 8 connected
ddd :7003@17003 master - 0 0 9 connected
eee [fd00::5]:7000@17000,shard-id=1 master,fail - 0 0 2 disconnected 5-6
fff :0@0 master,noaddr - 0 0 1 disconnected
"""


def test_primaries_claim_their_slots() -> None:
    assert claims(NODES, HOST) == [
        Claim(7, Node("10.0.0.1", 7000), [(0, 99), (200, 200)]),
        Claim(8, Node("10.0.0.2", 7000), [(100, 199), (201, 16383)]),
        Claim(2, Node("fd00::5", 7000), [(5, 6)]),
    ]


def test_with_tls_a_node_goes_by_its_name() -> None:
    assert claims(NODES, Witness("x", by_name=True))[1].node == Node("two.example", 7000)
    assert claims(NODES, Witness("x", by_name=True))[2].node == Node("fd00::5", 7000)


def test_with_tls_a_node_named_by_address_is_known_by_name() -> None:
    assert names(NODES, Witness("x", by_name=True)) == {Node("10.0.0.2", 7000): Node("two.example", 7000)}
    assert names(NODES, Witness("x")) == {}


def test_members_are_all_that_have_not_failed() -> None:
    known = {Node("10.0.0.1", 7000), Node("10.0.0.2", 7000), Node("10.0.0.3", 7000)}
    assert members(NODES, HOST) == known | {Node("10.0.0.9", 7003)}


class Told(ClusterTopology):
    """A cluster of which one hears only what a test says."""

    def __init__(self) -> None:
        super().__init__(read_url("redis+cluster://seed", secret="x", partitions=1))

    def hear(self, *nodes: tuple[int, str]) -> Node | None:
        self.said = [f"id {host}:1@2 master - 0 0 {epoch} connected 0-16383" for epoch, host in nodes]
        self.watch.look()
        return self.node(0)

    def _query_some(self) -> tuple[list[tuple[str, Witness]], list[Failed]]:
        return [(text, HOST) for text in self.said], [not_sent("gone", "seed:6379")]


def test_the_newest_epoch_is_believed_from_any_node() -> None:
    assert Told().hear((3, "old"), (5, "new"), (4, "middle")) == Node("new", 1)


def test_a_replaced_server_does_not_come_back_by_an_old_epoch() -> None:
    cluster = Told()
    cluster.hear((5, "new"))
    nodes = cluster.nodes
    assert cluster.hear((3, "old")) == Node("new", 1)
    assert cluster.nodes is nodes
    assert cluster.hear((6, "old")) == Node("old", 1)
    assert cluster.nodes == {Node("old", 1)}


def test_a_server_that_redirects_its_own_slot_is_believed() -> None:
    cluster = Told()
    cluster.hear((5, "new"))
    cluster.moved(0, Node("newer", 1), Node("new", 1))
    assert cluster.node(0) == Node("newer", 1)
    cluster.moved(0, Node("other", 1), Node("new", 1))
    assert cluster.node(0) == Node("newer", 1), "old news"
    assert cluster.hear((6, "newer")) == Node("newer", 1)


def test_a_failed_look_keeps_what_was_known_and_reports_the_failure() -> None:
    cluster = Told()
    cluster.hear((5, "new"))
    assert cluster.hear() == Node("new", 1)
    trouble = cluster.trouble()
    assert trouble is not None
    assert str(trouble.error) == "redis at seed:6379: no server could tell which one decides (seed:6379: gone)"
    cluster.hear((5, "new"))
    assert cluster.trouble() is None


def test_callbacks_that_wait_for_a_look_are_called() -> None:
    cluster = Told()
    cluster.watch._thread = Token  # no thread shall look meanwhile
    called: list[int] = []
    cluster.when_looked(lambda: called.append(1))
    cluster.hear((5, "new"))
    cluster.hear((5, "new"))
    assert called == [1]


# ---------------------------------------------------------------- Sentinels


class Line:
    """A connection on which something was announced, whatever that was."""

    def __init__(self, said: int = 1) -> None:
        self.said = said

    def is_quiet(self) -> bool:
        return self.said == 0

    def receive(self, until: float) -> list[bytes]:
        self.said -= 1
        return [b"message", b"+switch-master", b"main old 1 new 1"]


class Sentinels(SentinelTopology):
    """Sentinels of which one hears only what a test says; servers have the roles that it gives them."""

    def __init__(self) -> None:
        self.says: dict[str, NamedPrimary | Failed] = {}
        self.roles: dict[str, list[Any]] = {}
        super().__init__(read_url("redis+sentinel://s1,s2/main", secret="x"))

    def hear(self, **says: tuple[int, str] | None) -> Node | None:
        self.said(**says)
        self.watch.look()
        return self.node(0)

    def said(self, **says: tuple[int, str] | None) -> None:
        self.says = {
            name: not_sent("gone", name) if told is None else NamedPrimary(told[0], Node(told[1], 1))
            for name, told in says.items()
        }

    def _query(self, nodes: Sequence[Node]) -> dict[Node, NamedPrimary | Failed]:
        return {node: self.says.get(node.host, not_sent("gone", node.place)) for node in nodes}

    def _listen(self, sentinels: Sequence[Node]) -> None:
        self._announcer = (sentinels[0], Line()) if sentinels else None  # type: ignore[assignment]

    def _role_of(self, node: Node) -> list[Any] | None:
        return self.roles.get(node.host, [b"master"])


def test_the_newest_epoch_of_all_sentinels_is_believed() -> None:
    sentinels = Sentinels()
    assert sentinels.hear(s1=(3, "old"), s2=(4, "new")) == Node("new", 1)
    assert sentinels.hear(s1=(3, "old")) == Node("new", 1), "a replaced server does not come back by an old epoch"
    assert sentinels.hear(s1=(5, "old")) == Node("old", 1)
    assert sentinels.nodes == {Node("old", 1)}


def test_after_an_announcement_its_sentinel_is_queried() -> None:
    sentinels = Sentinels()
    sentinels.hear(s1=(3, "old"), s2=(3, "old"))
    sentinels.said(s1=(4, "new"), s2=(3, "old"))
    sentinels.received()
    assert sentinels.node(0) == Node("new", 1)
    assert sentinels.hear(s2=(3, "old")) == Node("new", 1), "a Sentinel that does not know yet"


def test_an_announcement_of_the_old_primary_is_not_followed() -> None:
    sentinels = Sentinels()
    sentinels.hear(s1=(5, "old"), s2=(5, "old"))
    sentinels.received()
    assert sentinels.node(0) == Node("old", 1), "it announced what was before"
    sentinels.said(s1=(4, "new"))
    sentinels.received()
    assert sentinels.node(0) == Node("old", 1), "it has fallen behind"


def test_an_unparsable_announcement_ends_the_subscription() -> None:
    sentinels = Sentinels()
    sentinels.hear(s1=(5, "old"))
    sentinels._announcer = Node("gone", 1), Line()  # type: ignore[assignment]
    sentinels._query = lambda nodes: {}  # type: ignore[method-assign]
    sentinels.received()
    assert sentinels._announcer is None
    assert sentinels.watch.in_doubt


def test_a_primary_that_handed_over_is_left_for_its_successor() -> None:
    sentinels = Sentinels()
    sentinels.hear(s1=(5, "old"))
    sentinels.roles = {"old": [b"slave", b"new", 1]}
    assert sentinels.hear(s1=(5, "old")) == Node("old", 1), "there is no doubt"
    sentinels.watch._thread = Token  # no thread shall look meanwhile
    sentinels.doubt(Node("old", 1))
    assert sentinels.hear(s1=(5, "old")) == Node("new", 1)


def test_a_failed_look_says_why_and_whether_it_is_transient() -> None:
    sentinels = Sentinels()
    assert sentinels.hear(s1=None, s2=None) is None
    trouble = sentinels.trouble()
    assert trouble is not None
    place = "s1:26379,s2:26379/main"
    assert str(trouble.error) == f"redis at {place}: no server could tell which one decides (s1: gone)"
    assert trouble.error.transient
    sentinels.says["s2"] = not_sent("forbidden", "s2", transient=False)
    sentinels.watch.look()
    trouble = sentinels.trouble()
    assert trouble is not None
    assert str(trouble.error) == f"redis at {place}: no server could tell which one decides (s2: forbidden)"
    assert trouble.error.transient, "the other one may come back"


# ---------------------------------------------------------------- watching


def test_closing_a_topology_calls_callbacks_that_wait() -> None:
    cluster = Told()
    cluster.watch._thread = Token  # no thread shall look meanwhile
    called: list[int] = []
    cluster.when_looked(lambda: called.append(1))
    cluster.close()
    cluster.when_looked(lambda: called.append(2))
    assert called == [1, 2]
    trouble = cluster.trouble()
    assert trouble is not None
    assert str(trouble.error) == "redis at seed:6379: the store is closed"
    assert not trouble.error.transient


def test_a_watcher_that_could_not_be_started_is_started_by_the_next_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    cluster = Told()
    monkeypatch.setattr(_thread, "start_new_thread", full)
    cluster.doubt()
    started: list[object] = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda *what: started.append(what))
    cluster.doubt()
    assert len(started) == 1


def test_a_watcher_whose_start_was_interrupted_is_started_by_the_next_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    cluster = Told()
    monkeypatch.setattr(_thread, "start_new_thread", interrupted)
    with suppress(KeyboardInterrupt):
        cluster.when_looked(lambda: None)
    started: list[object] = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda *what: started.append(what))
    cluster.when_looked(lambda: None)
    assert len(started) == 1


def test_an_unparsable_reply_does_not_end_the_watch() -> None:
    cluster = Told()
    cluster.hear((5, "new"))
    cluster._query_some = lambda: ([("nonsense", HOST)], [])  # type: ignore[method-assign]
    cluster.watch.look()
    trouble = cluster.trouble()
    assert trouble is not None
    assert "unparsable reply about the server that decides (IndexError)" in str(trouble.error)
    assert cluster.node(0) == Node("new", 1)
