"""The owners of the slots of a cluster, as its nodes list them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import closing
from threading import Lock
from typing import NamedTuple

from penstock.clock import monotonic
from penstock.model import Failed
from penstock.stores.redis.config import Node, RedisSettings
from penstock.stores.redis.connection import packed, refusal
from penstock.stores.redis.topology import CONFIRMED, Watch, all_failed, query_all, unexpected_reply

WITNESSES = 3
"""How many nodes are queried in one look."""


class Claim(NamedTuple):
    """What a node lists of a primary: since which epoch it owns which ranges of slots."""

    epoch: int
    node: Node
    ranges: list[tuple[int, int]]


class ClusterTopology:
    """The owners of the slots of a cluster."""

    partitioned = True

    def __init__(self, settings: RedisSettings) -> None:
        self._settings, self._slots = settings, settings.keys.slots
        self.clear()
        self.watch = Watch(settings, self)
        self.trouble, self.doubt = self.watch.trouble, self.watch.doubt
        self.when_looked, self.close = self.watch.when_looked, self.watch.close

    def clear(self) -> None:
        self._lock = Lock()
        self.nodes: frozenset[Node] = frozenset()
        self._owners: list[Node | None] = [None] * len(self._slots)
        self._epochs: list[tuple[int, float]] = [(-1, 0.0)] * len(self._slots)
        self._members: set[Node] = set()
        self._names: dict[Node, Node] = {}  # of nodes that have one, by address

    def node(self, partition: int) -> Node | None:
        return self._owners[partition]

    def known_as(self, node: Node) -> Node:
        return self._names.get(node, node)

    def moved(self, partition: int, node: Node, teller: Node) -> None:
        """Believe the known owner of the slot at once; the next look shows the epoch. Other nodes may be outdated."""
        with self._lock:
            if self._owners[partition] == teller:
                owners = list(self._owners)
                owners[partition] = node
                self._take_over(owners, self._epochs)
        self.doubt()

    def _take_over(self, owners: list[Node | None], epochs: list[tuple[int, float]]) -> None:
        self._owners, self._epochs = owners, epochs
        nodes = frozenset(owner for owner in owners if owner is not None)
        if nodes != self.nodes:
            self.nodes = nodes

    def look(self) -> Failed | None:
        """Query a few nodes; for each slot the newest epoch wins."""
        told, reasons = self._query_some()
        if not told:
            return all_failed(reasons, self._settings)
        now = monotonic()
        with self._lock:
            owners, epochs = list(self._owners), list(self._epochs)
            for claim in (claim for text, witness in told for claim in claims(text, witness)):
                self._believe(claim, owners, epochs, now)
            self._take_over(owners, epochs)
        self._members = {node for text, witness in told for node in members(text, witness)}
        self._names = {at: node for text, witness in told for at, node in names(text, witness).items()}
        return None

    def _believe(self, claim: Claim, owners: list[Node | None], epochs: list[tuple[int, float]], now: float) -> None:
        for partition, slot in enumerate(self._slots):
            if any(first <= slot <= last for first, last in claim.ranges):
                epoch, confirmed = epochs[partition]
                if claim.epoch >= epoch or now > confirmed + CONFIRMED:
                    owners[partition], epochs[partition] = claim.node, (claim.epoch, now)

    def _query_some(self) -> tuple[list[tuple[str, Witness]], list[Failed]]:
        """Return what some nodes list, and why others did not; those that are suspected come last."""
        known = list(self._members | set(self._settings.nodes))
        random.shuffle(known)
        known.sort(key=self.watch.suspected.__contains__)
        told: list[tuple[str, Witness]] = []
        reasons: list[Failed] = []
        while known and not told:
            some, known = known[:WITNESSES], known[WITNESSES:]
            for node, reply in query_all(self._query, some, self.watch.patience).items():
                if isinstance(reply, Failed):
                    reasons.append(reply)
                else:
                    told.append((reply, Witness(node.host, self._settings.kind == "tls")))
        return told, reasons

    def _query(self, node: Node) -> str | Failed:
        try:
            with closing(self.watch.dial(node, self._settings.connect)) as connection:
                reply = connection.ask(packed(b"CLUSTER", b"NODES"), monotonic() + self.watch.patience)
        except Exception as error:  # a credential provider may raise anything
            return refusal(error, node.place)
        return reply.decode() if isinstance(reply, bytes) else unexpected_reply(reply, "a node of a cluster", node)

    def listened(self) -> Iterable[int]:
        return ()

    def received(self) -> None:
        """Nodes announce nothing."""

    def hang_up(self) -> None:
        """No connection is kept open."""


class Witness(NamedTuple):
    """The node that was queried: it may list itself without an address. `by_name`: nodes go by their names (TLS)."""

    host: str
    by_name: bool = False


def claims(text: str, witness: Witness) -> list[Claim]:
    """Return the primaries, and their slots, that `CLUSTER NODES` lists."""
    found = []
    for words in map(str.split, text.splitlines()):
        node = _address(words, witness)
        ranges = [slots.partition("-") for slots in words[8:] if not slots.startswith("[")]
        if node is not None and ranges and "master" in words[2].split(","):
            found.append(Claim(int(words[6]), node, [(int(first), int(last or first)) for first, _, last in ranges]))
    return found


def members(text: str, witness: Witness) -> set[Node]:
    """Return all nodes that `CLUSTER NODES` lists, and that have not failed."""
    lines = [line.split() for line in text.splitlines()]
    nodes = [_address(words, witness) for words in lines if "fail" not in words[2].split(",")]
    return {node for node in nodes if node is not None}


def names(text: str, witness: Witness) -> dict[Node, Node]:
    """Return the nodes that are known by name, by their addresses, which redirects name."""
    lines = [line.split() for line in text.splitlines()]
    nodes = [(_address(words, witness._replace(by_name=False)), _address(words, witness)) for words in lines]
    return {at: node for at, node in nodes if at is not None and node is not None and at != node}


def _address(words: Sequence[str], witness: Witness) -> Node | None:
    """host:port@bus[,name][,more]: with TLS by name if there is one, because a certificate is checked against it."""
    where, _, rest = words[1].partition("@")
    ip, _, port = where.rpartition(":")
    _, name, *_ = [*rest.split(","), ""]
    known_as = name if witness.by_name and name and "=" not in name else ip.strip("[]") or witness.host
    return Node(known_as, int(port)) if port.isdecimal() and int(port) else None
