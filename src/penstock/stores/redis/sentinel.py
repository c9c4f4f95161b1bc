"""The primary of a service, as its Sentinels name it.

One Sentinel is subscribed to: when it announces a new primary, it is queried at once. The announcement itself is not
believed: it has no epoch, and may be outdated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.clock import monotonic
from penstock.errors import shown
from penstock.model import Failed
from penstock.stores.redis.config import Node, RedisSettings
from penstock.stores.redis.connection import BlockingConnection, packed, refusal
from penstock.stores.redis.errors import not_sent
from penstock.stores.redis.topology import CONFIRMED, Watch, all_failed, query_all, unexpected_reply

ANNOUNCEMENTS = (b"+switch-master", b"+promoted-slave")
"""What Sentinels publish when there is a new primary: the one that led the failover publishes the latter, and first."""

LISTENING = 60.0
"""Seconds after which a subscription is renewed: a silent connection may have been cut without notice."""


class NamedPrimary(NamedTuple):
    """The primary that a Sentinel names, and since which epoch."""

    epoch: int
    primary: Node


class SentinelTopology:
    """The primary that Sentinels name."""

    partitioned = False

    def __init__(self, settings: RedisSettings) -> None:
        self._settings, self._service = settings, settings.service.encode()
        self._lookup = packed(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._service)
        self._lookup += packed(b"SENTINEL", b"MASTER", self._service)
        self.clear()
        self.watch = Watch(settings, self)
        self.trouble, self.doubt = self.watch.trouble, self.watch.doubt
        self.when_looked, self.close = self.watch.when_looked, self.watch.close

    def clear(self) -> None:
        self.nodes: frozenset[Node] = frozenset()
        self._primary: Node | None = None
        self._epoch, self._confirmed = -1, 0.0
        self._sentinels: dict[Node, BlockingConnection] = {}
        self._announcer: tuple[Node, BlockingConnection] | None = None
        self._listening_since = 0.0

    def node(self, partition: int) -> Node | None:
        return self._primary

    def moved(self, partition: int, node: Node, teller: Node) -> None:
        """Redirects are not followed: a service of Sentinels is no cluster."""

    def known_as(self, node: Node) -> Node:
        return node

    def look(self) -> Failed | None:
        """Query all Sentinels; the newest epoch wins."""
        answers = self._query(self._settings.nodes)
        told = [answer for answer in answers.values() if isinstance(answer, NamedPrimary)]
        self._listen([node for node, answer in answers.items() if isinstance(answer, NamedPrimary)])
        if not told:
            return all_failed([answer for answer in answers.values() if isinstance(answer, Failed)], self._settings)
        self._believe(max(told))
        return None

    def _believe(self, told: NamedPrimary) -> None:
        now = monotonic()
        if told.epoch >= self._epoch or now > self._confirmed + CONFIRMED:
            known = self._primary if told.epoch == self._epoch else None
            self._epoch, self._confirmed = told.epoch, now
            self._follow(self._handed_over(told.primary, known))

    def _handed_over(self, named: Node, known: Node | None) -> Node:
        """Return the primary if `named` has handed over (`FAILOVER`), which Sentinels notice after half a minute."""
        if named == known and named not in self.watch.suspected:
            return named
        role = self._role_of(named)
        if role is None:
            return known or named
        if role[0] == b"slave":
            other = Node(role[1].decode(), int(role[2]))
            its_role = self._role_of(other)
            if its_role is not None and its_role[0] == b"master":
                return other
        return named

    def _role_of(self, node: Node) -> list[Any] | None:
        with suppress(Exception):  # not reachable; or a credential provider raised
            connection = self.watch.dial(node, self._settings.connect)
            role = connection.ask(packed(b"ROLE"), monotonic() + self.watch.patience)
            return role if isinstance(role, list) else None
        return None

    def _follow(self, primary: Node) -> None:
        if primary != self._primary:
            self._primary, self.nodes = primary, frozenset((primary,))

    # Queries

    def _query(self, nodes: Sequence[Node]) -> dict[Node, NamedPrimary | Failed]:
        return query_all(self._query_one, nodes, self.watch.patience)

    def _query_one(self, node: Node) -> NamedPrimary | Failed:
        try:
            connection = self._sentinels.pop(node, None) or self.watch.dial(node, self._settings.sentinel)
            until = monotonic() + self.watch.patience
            connection.send(self._lookup, until)
            where, facts = connection.receive(until), connection.receive(until)
        except Exception as error:  # a credential provider may raise anything
            return refusal(error, node.place)
        if self.watch.closed is None:
            self._sentinels[node] = connection
        if where is None:
            return not_sent(f"it knows no service {shown(self._settings.service)}", node.place, transient=False)
        if not isinstance(where, list) or not isinstance(facts, list):
            return unexpected_reply(where, "a Sentinel", node)
        pairs = dict(zip(facts[::2], facts[1::2], strict=False))
        return NamedPrimary(int(pairs.get(b"config-epoch", b"0")), Node(where[0].decode(), int(where[1])))

    # Announcements

    def _listen(self, sentinels: Sequence[Node]) -> None:
        """Subscribe to one of the Sentinels that replied; to another one if it has fallen silent.

        The one that leads a failover publishes `+switch-master` only when all replicas follow, which can take minutes.
        """
        fresh = monotonic() < self._listening_since + LISTENING
        if fresh and self._announcer is not None and self._announcer[0] in sentinels:
            return
        self._announcer = None
        for node in sentinels:
            with suppress(Exception):
                connection = self.watch.dial(node, self._settings.sentinel)
                connection.send(packed(b"SUBSCRIBE", *ANNOUNCEMENTS), monotonic() + self.watch.patience)
                if all(isinstance(connection.receive(monotonic() + self.watch.patience), list) for _ in ANNOUNCEMENTS):
                    self._announcer, self._listening_since = (node, connection), monotonic()
                    self.watch.in_doubt = True  # something may have been announced since it replied
                    return

    def listened(self) -> Iterable[int]:
        return () if self._announcer is None else (self._announcer[1].fileno(),)

    def received(self) -> None:
        """Read an announcement, which is worth a query at once and a look soon; or the connection has ended."""
        if self._announcer is None:
            return
        sentinel, connection = self._announcer
        try:
            said = []
            while not connection.is_quiet():
                said.append(connection.receive(monotonic() + self.watch.patience))
            if not any(self._is_about_us(message) for message in said):
                return
            self.watch.in_doubt = True
            told = self._query([sentinel])[sentinel]
            if isinstance(told, NamedPrimary):
                self._believe(told)
        except Exception:  # the connection has ended, or its data is unparsable
            self._announcer, self.watch.in_doubt = None, True

    def _is_about_us(self, message: Any) -> bool:
        """Return whether a message is about this service: Sentinels watch several, and confirm subscriptions."""
        _, _, text = message
        return isinstance(text, bytes) and self._service in text.split(b" ")

    def hang_up(self) -> None:
        self._sentinels, self._announcer = {}, None
