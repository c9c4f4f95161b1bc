"""Who is to be asked: what nodes of a cluster say, and whom to believe."""

from penstock.model import Failed
from penstock.stores.redis.cluster import Asked, Claim, OfCluster, claims, members
from penstock.stores.redis.replies import not_sent
from penstock.stores.redis.settings import Node, read_url

HOST = Asked("10.0.0.9")
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
    assert claims(NODES, Asked("x", by_name=True))[1].node == Node("two.example", 7000)
    assert claims(NODES, Asked("x", by_name=True))[2].node == Node("fd00::5", 7000)


def test_members_are_all_that_have_not_failed() -> None:
    known = {Node("10.0.0.1", 7000), Node("10.0.0.2", 7000), Node("10.0.0.3", 7000)}
    assert members(NODES, HOST) == known | {Node("10.0.0.9", 7003)}


class Told(OfCluster):
    """A cluster of which one hears only what a test says."""

    def __init__(self) -> None:
        super().__init__(read_url("redis+cluster://seed", secret="x", partitions=1))

    def hear(self, *nodes: tuple[int, str]) -> Node | None:
        self.said = [f"id {host}:1@2 master - 0 0 {epoch} connected 0-16383" for epoch, host in nodes]
        self._look_once()
        return self.node(0)

    def _ask_some(self) -> tuple[list[tuple[str, Asked]], list[Failed]]:
        return [(text, HOST) for text in self.said], [not_sent("gone", "seed:6379")]


def test_the_newest_epoch_is_believed_whoever_says_what() -> None:
    assert Told().hear((3, "old"), (5, "new"), (4, "middle")) == Node("new", 1)


def test_who_was_replaced_does_not_come_back_by_hearsay() -> None:
    cluster = Told()
    cluster.hear((5, "new"))
    nodes = cluster.nodes()
    assert cluster.hear((3, "old")) == Node("new", 1)
    assert cluster.nodes() is nodes
    assert cluster.hear((6, "old")) == Node("old", 1)
    assert cluster.nodes() == {Node("old", 1)}


def test_a_server_that_says_it_was_replaced_is_believed() -> None:
    cluster = Told()
    cluster.hear((5, "new"))
    cluster.moved(0, Node("newer", 1), Node("new", 1))
    assert cluster.node(0) == Node("newer", 1)
    cluster.moved(0, Node("other", 1), Node("new", 1))
    assert cluster.node(0) == Node("newer", 1), "old news"
    assert cluster.hear((6, "newer")) == Node("newer", 1)


def test_when_nobody_tells_what_was_known_stays_and_trouble_is_said() -> None:
    cluster = Told()
    cluster.hear((5, "new"))
    assert cluster.hear() == Node("new", 1)
    trouble = cluster.trouble()
    assert trouble is not None
    assert str(trouble.error) == "redis at seed:6379: nobody could tell who decides (seed:6379: gone)"
    cluster.hear((5, "new"))
    assert cluster.trouble() is None


def test_whoever_waits_for_a_look_is_called() -> None:
    cluster = Told()
    cluster._watching = True  # no thread shall look meanwhile
    called: list[int] = []
    cluster.when_looked(lambda: called.append(1))
    cluster.hear((5, "new"))
    cluster.hear((5, "new"))
    assert called == [1]
