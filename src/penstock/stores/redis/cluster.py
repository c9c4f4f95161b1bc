"""The owners of the slots of a cluster, as its nodes name them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from penstock.clock import monotonic
from penstock.model import Failed
from penstock.stores.redis.config import Node, Settings
from penstock.stores.redis.connection import packed, refusal
from penstock.stores.redis.topology import CONFIRMED, Watched, in_vain, together, wrong_answer

WITNESSES = 3
"""How many nodes are asked in one look."""


class Claim(NamedTuple):
    """What somebody says of a primary of a cluster: since which epoch it owns which ranges of slots."""

    epoch: int
    node: Node
    ranges: list[tuple[int, int]]


class OfCluster(Watched):
    """Whoever owns the slots of a cluster."""

    partitioned = True

    def __init__(self, settings: Settings) -> None:
        self._slots = settings.keys.slots
        super().__init__(settings)

    def _begin(self) -> None:
        super()._begin()
        self._owners: list[Node | None] = [None] * len(self._slots)
        self._epochs: list[tuple[int, float]] = [(-1, 0.0)] * len(self._slots)
        self._members: set[Node] = set()
        self._names: dict[Node, Node] = {}  # of those that have one, by address

    def node(self, partition: int) -> Node | None:
        return self._owners[partition]

    def known_as(self, node: Node) -> Node:
        return self._names.get(node, node)

    def moved(self, partition: int, node: Node, teller: Node) -> None:
        """Whoever owned the slot until then is believed at once; the next look tells the epoch. From others it is old
        news.
        """
        with self._lock:
            if self._owners[partition] == teller:
                owners = list(self._owners)
                owners[partition] = node
                self._take_over(owners, self._epochs)
        self.doubt()

    def _take_over(self, owners: list[Node | None], epochs: list[tuple[int, float]]) -> None:
        self._owners, self._epochs = owners, epochs
        nodes = frozenset(owner for owner in owners if owner is not None)
        if nodes != self._nodes:
            self._nodes = nodes

    def _look(self) -> Failed | None:
        """Ask a few nodes; for each slot the newest epoch wins."""
        told, reasons = self._ask_some()
        if not told:
            return in_vain(reasons, self._settings)
        now = monotonic()
        with self._lock:
            owners, epochs = list(self._owners), list(self._epochs)
            for claim in (claim for text, asked in told for claim in claims(text, asked)):
                self._believe(claim, owners, epochs, now)
            self._take_over(owners, epochs)
        self._members = {node for text, asked in told for node in members(text, asked)}
        self._names = {at: node for text, asked in told for at, node in names(text, asked).items()}
        return None

    def _believe(self, claim: Claim, owners: list[Node | None], epochs: list[tuple[int, float]], now: float) -> None:
        for partition, slot in enumerate(self._slots):
            if any(first <= slot <= last for first, last in claim.ranges):
                epoch, confirmed = epochs[partition]
                if claim.epoch >= epoch or now > confirmed + CONFIRMED:
                    owners[partition], epochs[partition] = claim.node, (claim.epoch, now)

    def _ask_some(self) -> tuple[list[tuple[str, Asked]], list[Failed]]:
        """What some nodes say, and why others did not; those that are under suspicion come last."""
        known = list(self._members | set(self._settings.nodes))
        random.shuffle(known)
        known.sort(key=self._suspected.__contains__)
        told: list[tuple[str, Asked]] = []
        reasons: list[Failed] = []
        while known and not told:
            some, known = known[:WITNESSES], known[WITNESSES:]
            for node, answer in together(self._ask, some, self._patience).items():
                if isinstance(answer, Failed):
                    reasons.append(answer)
                else:
                    told.append((answer, Asked(node.host, self._settings.kind == "tls")))
        return told, reasons

    def _ask(self, node: Node) -> str | Failed:
        try:
            with closing(self._dial(node, self._settings.connect)) as wire:
                answer = wire.ask(packed(b"CLUSTER", b"NODES"), monotonic() + self._patience)
        except Exception as error:  # a credential provider may raise anything
            return refusal(error, node.place)
        return answer.decode() if isinstance(answer, bytes) else wrong_answer(answer, "a node of a cluster", node)


class Asked(NamedTuple):
    """Who was asked: a node that knows no address of its own is there; and with TLS, names matter."""

    host: str
    by_name: bool = False


def claims(text: str, asked: Asked) -> list[Claim]:
    """The primaries, and their slots, that `CLUSTER NODES` lists."""
    found = []
    for words in map(str.split, text.splitlines()):
        node = _address(words, asked)
        ranges = [slots.partition("-") for slots in words[8:] if not slots.startswith("[")]
        if node is not None and ranges and "master" in words[2].split(","):
            found.append(Claim(int(words[6]), node, [(int(first), int(last or first)) for first, _, last in ranges]))
    return found


def members(text: str, asked: Asked) -> set[Node]:
    """All nodes that `CLUSTER NODES` lists, and that have not failed."""
    lines = [line.split() for line in text.splitlines()]
    nodes = [_address(words, asked) for words in lines if "fail" not in words[2].split(",")]
    return {node for node in nodes if node is not None}


def names(text: str, asked: Asked) -> dict[Node, Node]:
    """By their addresses, which servers name when they pass a question on, those nodes that are known by name."""
    lines = [line.split() for line in text.splitlines()]
    nodes = [(_address(words, asked._replace(by_name=False)), _address(words, asked)) for words in lines]
    return {at: node for at, node in nodes if at is not None and node is not None and at != node}


def _address(words: Sequence[str], asked: Asked) -> Node | None:
    """host:port@bus[,name][,more]: with TLS by name if there is one, because a certificate is checked against it."""
    where, _, rest = words[1].partition("@")
    ip, _, port = where.rpartition(":")
    _, name, *_ = [*rest.split(","), ""]
    known_as = name if asked.by_name and name and "=" not in name else ip.strip("[]") or asked.host
    return Node(known_as, int(port)) if port.isdecimal() and int(port) else None
