"""A real cluster: slots spread over primaries, each with replicas that can be promoted.

with Cluster("valkey") as cluster:
    client = connect(cluster.url)
    owner = cluster.owner(slot)
    cluster.kill_primary(owner)            # returns when a replica was promoted
    cluster.restart(owner)                 # returns when it follows, empty at first
    cluster.reshard([slot], target)        # or step by step: cluster.move(slot, target)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from tests.rig.certificates import Certificate
from tests.rig.processes import DEADLINE
from tests.rig.resp import Word
from tests.rig.servers import Server
from tests.rig.topologies import (
    Topology,
    awake,
    come_to_terms,
    follows,
    insist,
    linked,
    together,
    url_of,
    without_replication,
)

SLOTS = 16_384

_HASTE = 1_000  # the node timeout while nodes meet: with 15 s, gossip takes five seconds

_CONFIG = """\
cluster-enabled yes
cluster-config-file nodes.conf
cluster-node-timeout {node_timeout}
cluster-require-full-coverage {full_coverage}
cluster-allow-replica-migration no
cluster-replica-validity-factor 0
"""  # no replica migrates, and none is too old to be promoted after the machine stood still


class Cluster(Topology):
    """Nodes that share the slots evenly.

    - `primaries`, and `replicas` for each of them. A replica is promoted if most primaries are left: of three or more.
    - `node_timeout`: milliseconds of silence after which a node is down.
    - `full_coverage`: whether all slots fail when some have no owner, as is a server's default.
    - `password`, `certificate` (which nodes also use among themselves) and `config` are those of `Server`.
    """

    def __init__(
        self,
        flavour: str = "valkey",
        *,
        primaries: int = 3,
        replicas: int = 1,
        node_timeout: int = 1_000,
        full_coverage: bool = False,
        password: str | None = None,
        certificate: Certificate | None = None,
        config: Iterable[str] = (),
    ) -> None:
        lines = [_CONFIG.format(node_timeout=node_timeout, full_coverage="yes" if full_coverage else "no")]
        lines += linked(password, certificate)
        if certificate is not None:
            lines.append("tls-cluster yes")
        lines += config
        self.nodes = tuple(
            Server(flavour, config=lines, password=password, certificate=certificate)
            for _ in range(primaries * (1 + replicas))
        )
        self._size, self._node_timeout = primaries, node_timeout
        self._names: dict[str, Server] = {}
        super().__init__(self.nodes)

    @property
    def url(self) -> str:
        """How a client finds the cluster: `redis+cluster://:password@HOST:PORT,HOST:PORT`."""
        url = url_of("cluster", self.nodes)
        password = self.nodes[0].password
        return url if password is None else url.replace("://", f"://:{password}@")

    @property
    def primaries(self) -> tuple[Server, ...]:
        """The owners of slots, dead or alive, in the order of their first slots."""
        return tuple(dict.fromkeys(owner for owner in self._owners(self._views()) if owner is not None))

    def owner(self, slot: int) -> Server:
        """The owner of a slot: the node that claims it with the highest epoch, on which all nodes will agree."""
        owner = self._owners(self._views())[slot]
        if owner is None:
            raise LookupError(f"slot {slot}: has no owner")
        return owner

    def slots_of(self, server: Server) -> list[int]:
        """The slots that a server owns now."""
        return [slot for slot, owner in enumerate(self._owners(self._views())) if owner is server]

    def replicas_of(self, primary: Server) -> tuple[Server, ...]:
        """Return its replicas, dead or alive, by their own view or else by that of other nodes."""
        return tuple(node for node, followed in self._following(self._views()).items() if followed is primary)

    # ---------------------------------------------------------------- what can happen to a primary

    def kill_primary(self, primary: Server) -> Server:
        """Kill it, and return the replica that was promoted. `restart` brings it back."""
        slot = self.slots_of(primary)[0]
        primary.kill()
        return self.wait_for_new_owner(slot, primary)

    def freeze_and_promote(self, primary: Server) -> Server:
        """Freeze it, and return the replica that was promoted.

        When thawed it soon learns of the promotion, but may first carry out requests sent meanwhile.
        """
        slot = self.slots_of(primary)[0]
        primary.freeze()
        return self.wait_for_new_owner(slot, primary)

    def cluster_failover(self, replica: Server, *how: str) -> Server:
        """Promote a replica (CLUSTER FAILOVER), if need be with "FORCE" or "TAKEOVER"; returns the old primary.

        Redis's nodes vote once in two node timeouts for replicas of the same node: a second election waits for that.
        """
        old = next(primary for primary in self.primaries if replica in self.replicas_of(primary))
        slot = self.slots_of(old)[0]
        insist(
            lambda: replica.ask("CLUSTER", "FAILOVER", *how),
            lambda: self._agreed_owner(slot) is replica,
            f"the failover that the replica on port {replica.port} was asked for",
        )
        return old

    @contextmanager
    def losing_writes(self, primary: Server) -> Iterator[None]:
        """What a primary acknowledges in this block is lost. In the end it is killed, and a replica promoted."""
        slot = self.slots_of(primary)[0]
        with without_replication(primary, awake(self.replicas_of(primary))):
            yield
            primary.kill()
        self.wait_for_new_owner(slot, primary)

    def lose_shard(self, primary: Server) -> tuple[Server, ...]:
        """Kill a primary and all its replicas, and return them when the others know. `restart` brings them back."""
        lost = (primary, *self.replicas_of(primary))
        together(Server.kill, lost)
        name = self._name_of(primary)
        come_to_terms(
            lambda: all(line.failed for view in self._views() for line in view if line.name == name),
            f"the others' notice that the primary on port {primary.port} is gone",
        )
        return lost

    def restart(self, *nodes: Server) -> None:
        """Kill nodes, if they run, and start them again, empty; returns when they have found their places."""
        together(Server.restart, nodes)
        self.wait_until_ok()

    # ---------------------------------------------------------------- moving slots

    def move(self, slot: int, target: Server) -> SlotMove:
        """The move of a slot from its owner to another primary, to be made step by step."""
        return next(self._moves([slot], target))

    def reshard(self, slots: Iterable[int], target: Server) -> None:
        """Move slots, with their keys, from their owners to another primary; returns when all nodes know."""
        for move in self._moves(slots, target):
            move.begin()
            move.move_keys()
            move.finish()
        come_to_terms(self._agreed, "all nodes' knowledge of whose the slots are")

    def can_migrate(self) -> bool:
        """Return whether the servers can move a slot at once, as Valkey can from version 9 on."""
        return any(line.startswith(b"MIGRATESLOTS") for line in self.nodes[0].ask("CLUSTER", "HELP"))

    def migrate(self, slot: int, target: Server) -> None:
        """Move a slot at once, by `CLUSTER MIGRATESLOTS`; returns when all nodes know."""
        self.owner(slot).ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self._name_of(target))
        come_to_terms(lambda: self._agreed_owner(slot) is target, f"the migration of slot {slot}")

    def _moves(self, slots: Iterable[int], target: Server) -> Iterator[SlotMove]:
        owners = self._owners(self._views())
        primaries = tuple(dict.fromkeys(owner for owner in owners if owner is not None))
        for slot in slots:
            source = owners[slot]
            assert source is not None, f"slot {slot} has no owner"
            yield SlotMove(slot, source, target, primaries, self._names)

    # ---------------------------------------------------------------- waiting

    def wait_for_new_owner(self, slot: int, old: Server) -> Server:
        """Return the owner of a slot when all awake nodes agree on another one than `old`."""
        come_to_terms(
            lambda: self._agreed_owner(slot) not in (None, old),
            f"an owner of slot {slot} other than the one on port {old.port}",
        )
        return self.owner(slot)

    def wait_until_ok(self) -> None:
        """Return when every slot is served, and all awake nodes have their roles and agree on them."""
        come_to_terms(self._ok, "a cluster whose nodes agree that all is well")

    def _ok(self) -> bool:
        return all(self._serves_all(node) for node in awake(self.nodes)) and self._agreed() and self._replicated()

    def _serves_all(self, node: Server) -> bool:
        told = dict(line.split(":") for line in node.ask("CLUSTER", "INFO").decode().split())
        return told["cluster_state"] == "ok" and int(told["cluster_slots_ok"]) == SLOTS

    def _replicated(self) -> bool:
        """Return whether all awake replicas are online, and no node marks an awake one as failed."""
        views = self._views()
        suspects = {self._names[line.name] for view in views for line in view if line.suspected}
        links = [(node, primary) for node, primary in self._following(views).items() if node.awake]
        return not awake(suspects) and all(primary.awake and follows(node, primary) for node, primary in links)

    def _agreed(self) -> bool:
        """Return whether all awake nodes know all nodes and have the same view."""
        said = [{(line.name, line.follows, line.slots) for line in view} for view in self._views()]
        return all(words == said[0] and len(words) == len(self.nodes) for words in said)

    def _agreed_owner(self, slot: int) -> Server | None:
        """Return the owner of a slot if all awake nodes, including the owner, agree; else None."""
        owners = {self._owners([view])[slot] for view in self._views()}
        owner = owners.pop()
        return owner if not owners and owner is not None and owner.awake else None

    # ---------------------------------------------------------------- what nodes say

    def _views(self) -> list[list[_Line]]:
        """Return the view of each awake node."""
        return [_read(node.ask("CLUSTER", "NODES")) for node in awake(self.nodes)]

    def _owners(self, views: list[list[_Line]]) -> list[Server | None]:
        """Return the owner of each slot: the claimant with the highest epoch."""
        owners: list[Server | None] = [None] * SLOTS
        for line in sorted((line for view in views for line in view), key=lambda line: line.epoch):
            for first, last in line.slots:
                owners[first : last + 1] = [self._names[line.name]] * (last + 1 - first)
        return owners

    def _following(self, views: list[list[_Line]]) -> dict[Server, Server]:
        """Return the primary of each replica, by its own view or else by that of other nodes."""
        lines = sorted((line for view in views for line in view), key=lambda line: line.is_self)
        followed = {line.name: line.follows for line in lines}
        return {self._names[name]: self._names[primary] for name, primary in followed.items() if primary != "-"}

    def _name_of(self, node: Server) -> str:
        return next(name for name, named in self._names.items() if named is node)

    # ---------------------------------------------------------------- joining

    def _join(self) -> None:
        self._names = {node.ask("CLUSTER", "MYID").decode(): node for node in self.nodes}
        self._set_node_timeout(min(self._node_timeout, _HASTE))
        for epoch, node in enumerate(self.nodes, start=1):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        bounds = [SLOTS * number // self._size for number in range(self._size + 1)]
        primaries, replicas = self.nodes[: self._size], self.nodes[self._size :]
        for number, primary in enumerate(primaries):
            primary.ask("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
        for one, other in combinations(self.nodes, 2):  # each meets each: gossip would take seconds
            one.ask("CLUSTER", "MEET", *other.address)
        come_to_terms(self._all_met, "nodes that know one another")
        for number, replica in enumerate(replicas):
            replica.ask("CLUSTER", "REPLICATE", self._name_of(primaries[number % self._size]))
        self.wait_until_ok()
        self._set_node_timeout(self._node_timeout)

    def _set_node_timeout(self, millis: int) -> None:
        for node in self.nodes:
            node.ask("CONFIG", "SET", "cluster-node-timeout", millis)

    def _all_met(self) -> bool:
        return all({line.name for line in view} == set(self._names) for view in self._views())


@dataclass(frozen=True, slots=True)
class SlotMove:
    """One slot on its way from a primary to another. Between the steps, requests for it are redirected by `ASK`.

    Valkey's primaries refuse each step (NOREPLICAS) while a replica of theirs is frozen; Redis's do not ask replicas.
    """

    slot: int
    source: Server
    target: Server
    primaries: tuple[Server, ...]
    names: Mapping[str, Server]

    def begin(self) -> None:
        """Begin the move: new keys go to the target, existing ones stay at the source."""
        self._set(self.target, "IMPORTING", self.source)
        self._set(self.source, "MIGRATING", self.target)

    def move_keys(self, keys: Sequence[bytes] | None = None) -> int:
        """Move these keys, or all; returns how many were moved."""
        if keys is None:
            keys = self.source.ask("CLUSTER", "GETKEYSINSLOT", self.slot, 1_000_000)
        login: tuple[Word, ...] = () if self.target.password is None else ("AUTH", self.target.password)
        if keys:
            patience = int(DEADLINE * 1_000)
            self.source.ask("MIGRATE", *self.target.address, "", 0, patience, *login, "KEYS", *keys)
        return len(keys)

    def finish(self) -> None:
        """Assign the slot to the target, which learns it first; else the two might redirect to each other."""
        others = set(awake(self.primaries)) - {self.target, self.source}
        for node in (self.target, self.source, *others):
            self._set(node, "NODE", self.target)

    def _set(self, node: Server, state: str, other: Server) -> None:
        name = next(name for name, named in self.names.items() if named is other)
        node.ask("CLUSTER", "SETSLOT", self.slot, state, name)


class _Line(NamedTuple):
    """One node's view of another node, or of itself."""

    name: str
    flags: frozenset[str]
    follows: str
    epoch: int
    slots: tuple[tuple[int, int], ...]

    @property
    def is_self(self) -> bool:
        return "myself" in self.flags

    @property
    def failed(self) -> bool:
        return "fail" in self.flags

    @property
    def suspected(self) -> bool:
        return self.failed or "fail?" in self.flags


def _read(reply: bytes) -> list[_Line]:
    """Parse the reply to CLUSTER NODES, without migrating slots."""
    lines = []
    for text in reply.decode().splitlines():
        name, _, flags, follows, _, _, epoch, _, *slots = text.split()
        ranges = (slot.partition("-") for slot in slots if not slot.startswith("["))
        owned = tuple((int(first), int(last or first)) for first, _, last in ranges)
        lines.append(_Line(name, frozenset(flags.split(",")), follows, int(epoch), owned))
    return lines
