"""The primary of a service, as its Sentinels name it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import hiredis

from penstock.clock import monotonic
from penstock.stores.redis.settings import Node, Settings
from penstock.stores.redis.topology import CONFIRMED, PATIENCE, Watched
from penstock.stores.redis.wire import Wire, packed

PROMOTED = b"+promoted-slave"
ANNOUNCEMENTS = (b"+switch-master", PROMOTED)
"""What Sentinels publish when there is a new primary: the one that led the failover says the latter, and first."""


class OfSentinels(Watched):
    """The primary that Sentinels name."""

    partitioned = False

    def __init__(self, settings: Settings) -> None:
        self._primary: Node | None = None
        self._epoch, self._confirmed = -1, 0.0
        self._questions = packed(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", settings.service.encode()) + packed(
            b"SENTINEL", b"MASTER", settings.service.encode()
        )
        super().__init__(settings)

    def _begin(self) -> None:
        super()._begin()
        self._sentinels: dict[Node, Wire] = {}
        self._announcer: Wire | None = None

    def node(self, partition: int) -> Node | None:
        return self._primary

    def moved(self, partition: int, node: Node) -> None:
        """It is not to be followed: a service of Sentinels is no cluster."""

    def _look(self) -> bool:
        """Ask all Sentinels; the newest epoch wins."""
        self._listen()
        told = [heard for heard in self._ask_all() if heard is not None]
        if not told:
            return False
        epoch, primary = max(told)
        now = monotonic()
        if epoch >= self._epoch or now > self._confirmed + CONFIRMED:
            known = self._primary if epoch == self._epoch else None
            self._epoch, self._confirmed = epoch, now
            self._follow(self._handed_over(primary, known))
        return True

    def _handed_over(self, named: Node, known: Node | None) -> Node:
        """Who decides if `named` has handed over (`FAILOVER`), which takes Sentinels half a minute to notice."""
        if named == known and named not in self._suspected:
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
        with suppress(Exception):
            role = self._dial(node, self._settings.connect).ask(packed(b"ROLE"), monotonic() + PATIENCE)
            return role if isinstance(role, list) else None
        return None

    def _follow(self, primary: Node) -> None:
        if primary != self._primary:
            self._primary, self._nodes = primary, frozenset((primary,))

    def _ask_all(self) -> list[tuple[int, Node] | None]:
        asked = []
        for node in self._settings.nodes:
            with suppress(
                Exception
            ):  # whoever cannot be reached says nothing; a credential provider may raise anything
                wire = self._sentinels.pop(node, None) or self._dial(node, self._settings.sentinel)
                wire.send(self._questions, monotonic() + PATIENCE)
                asked.append((node, wire))
        until = monotonic() + PATIENCE
        return [self._hear(node, wire, until) for node, wire in asked]

    def _hear(self, node: Node, wire: Wire, until: float) -> tuple[int, Node] | None:
        try:
            where, facts = wire.receive(until), wire.receive(until)
        except (OSError, hiredis.ProtocolError):
            wire.close()
            return None
        self._sentinels[node] = wire
        if not isinstance(where, list) or not isinstance(facts, list):
            return None  # it knows nobody of that name
        pairs = dict(zip(facts[::2], facts[1::2], strict=False))
        return int(pairs.get(b"config-epoch", b"0")), Node(where[0].decode(), int(where[1]))

    # Announcements

    def _listen(self) -> None:
        """Have one Sentinel tell of new primaries at once.

        The one that leads a failover says `+switch-master` only when all replicas follow, which can take minutes.
        """
        if self._announcer is not None:
            return
        for node in random.sample(self._settings.nodes, len(self._settings.nodes)):
            with suppress(Exception):
                wire = self._dial(node, self._settings.sentinel)
                wire.send(packed(b"SUBSCRIBE", *ANNOUNCEMENTS), monotonic() + PATIENCE)
                if all(isinstance(wire.receive(monotonic() + PATIENCE), list) for _ in ANNOUNCEMENTS):
                    self._announcer = wire
                    return

    def _watched_too(self) -> Iterable[int]:
        return () if self._announcer is None else (self._announcer.fileno(),)

    def _heard(self) -> None:
        """A new primary in place of the one known is followed at once; anything else is worth a look."""
        announcer, self._in_doubt = self._announcer, True
        try:
            while announcer is not None and not announcer.is_quiet():
                self._announced(announcer.receive(monotonic() + PATIENCE))
        except Exception:  # it hung up, or makes no sense: whatever it is, looking must go on
            self._announcer = None

    def _announced(self, message: Any) -> None:
        if not isinstance(message, list) or message[0] != b"message":
            return
        words = message[2].decode().split(" ")
        if message[1] == PROMOTED:  # slave NAME HOST PORT @ SERVICE OLD-HOST OLD-PORT
            _, _, host, port, _, service, old_host, old_port = words
        else:
            service, old_host, old_port, host, port = words
        if service == self._settings.service and Node(old_host, int(old_port)) == self._primary:
            self._follow(Node(host, int(port)))
