"""The primary of a service, as its Sentinels name it.

One of them is listened to: when it announces a new primary, it is asked at once. The announcement itself is not
believed: it does not say since when, and may be old news.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.clock import monotonic
from penstock.errors import shown
from penstock.model import Failed
from penstock.stores.redis.config import Node, Settings
from penstock.stores.redis.connection import Wire, packed, refusal
from penstock.stores.redis.errors import not_sent
from penstock.stores.redis.topology import CONFIRMED, Watched, in_vain, together, wrong_answer

ANNOUNCEMENTS = (b"+switch-master", b"+promoted-slave")
"""What Sentinels publish when there is a new primary: the one that led the failover says the latter, and first."""


LISTENING = 60.0
"""Seconds after which one is listened to anew: a connection on which nobody speaks may have been cut without a word."""


class Named(NamedTuple):
    """Whom a Sentinel names, and since which epoch."""

    epoch: int
    primary: Node


class OfSentinels(Watched):
    """The primary that Sentinels name."""

    partitioned = False

    def __init__(self, settings: Settings) -> None:
        service = settings.service.encode()
        self._questions = packed(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", service) + packed(
            b"SENTINEL", b"MASTER", service
        )
        super().__init__(settings)

    def _begin(self) -> None:
        super()._begin()
        self._primary: Node | None = None
        self._epoch, self._confirmed = -1, 0.0
        self._sentinels: dict[Node, Wire] = {}
        self._announcer: tuple[Node, Wire] | None = None
        self._listening_since = 0.0

    def node(self, partition: int) -> Node | None:
        return self._primary

    def moved(self, partition: int, node: Node, teller: Node) -> None:
        """It is not to be followed: a service of Sentinels is no cluster."""

    def _look(self) -> Failed | None:
        """Ask all Sentinels; the newest epoch wins."""
        answers = self._ask(self._settings.nodes)
        told = [answer for answer in answers.values() if isinstance(answer, Named)]
        self._listen([node for node, answer in answers.items() if isinstance(answer, Named)])
        if not told:
            return in_vain([answer for answer in answers.values() if isinstance(answer, Failed)], self._settings)
        self._believe(max(told))
        return None

    def _believe(self, told: Named) -> None:
        now = monotonic()
        if told.epoch >= self._epoch or now > self._confirmed + CONFIRMED:
            known = self._primary if told.epoch == self._epoch else None
            self._epoch, self._confirmed = told.epoch, now
            self._follow(self._handed_over(told.primary, known))

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
        with suppress(Exception):  # whoever cannot be reached says nothing; a credential provider may raise anything
            role = self._dial(node, self._settings.connect).ask(packed(b"ROLE"), monotonic() + self._patience)
            return role if isinstance(role, list) else None
        return None

    def _follow(self, primary: Node) -> None:
        if primary != self._primary:
            self._primary, self._nodes = primary, frozenset((primary,))

    # Asking

    def _ask(self, nodes: Sequence[Node]) -> dict[Node, Named | Failed]:
        """What Sentinels say, all of them asked at the same time."""
        return together(self._ask_one, nodes, self._patience)

    def _ask_one(self, node: Node) -> Named | Failed:
        try:
            wire = self._sentinels.pop(node, None) or self._dial(node, self._settings.sentinel)
            until = monotonic() + self._patience
            wire.send(self._questions, until)
            where, facts = wire.receive(until), wire.receive(until)
        except Exception as error:  # a credential provider may raise anything
            return refusal(error, node.place)
        if self._closed is None:
            self._sentinels[node] = wire
        if where is None:
            return not_sent(f"it knows no service {shown(self._settings.service)}", node.place, transient=False)
        if not isinstance(where, list) or not isinstance(facts, list):
            return wrong_answer(where, "a Sentinel", node)
        pairs = dict(zip(facts[::2], facts[1::2], strict=False))
        return Named(int(pairs.get(b"config-epoch", b"0")), Node(where[0].decode(), int(where[1])))

    # Announcements

    def _listen(self, sentinels: Sequence[Node]) -> None:
        """Have one of the Sentinels that answer tell of new primaries; another one if it has fallen silent.

        The one that leads a failover says `+switch-master` only when all replicas follow, which can take minutes.
        """
        fresh = monotonic() < self._listening_since + LISTENING
        if fresh and self._announcer is not None and self._announcer[0] in sentinels:
            return
        self._announcer = None
        for node in sentinels:
            with suppress(Exception):
                wire = self._dial(node, self._settings.sentinel)
                wire.send(packed(b"SUBSCRIBE", *ANNOUNCEMENTS), monotonic() + self._patience)
                if all(isinstance(wire.receive(monotonic() + self._patience), list) for _ in ANNOUNCEMENTS):
                    self._announcer, self._listening_since = (node, wire), monotonic()
                    self._in_doubt = True  # what was announced since it answered
                    return

    def _watched_too(self) -> Iterable[int]:
        return () if self._announcer is None else (self._announcer[1].fileno(),)

    def _heard(self) -> None:
        """Something was announced, which is worth a question at once and a look soon; or the connection has ended."""
        if self._announcer is None:
            return
        sentinel, wire = self._announcer
        try:
            said = []
            while not wire.is_quiet():
                said.append(wire.receive(monotonic() + self._patience))
            if not any(self._is_about_us(message) for message in said):
                return
            self._in_doubt = True
            told = self._ask([sentinel])[sentinel]
            if isinstance(told, Named):
                self._believe(told)
        except Exception:  # hung up, or said what makes no sense
            self._announcer, self._in_doubt = None, True

    def _is_about_us(self, message: Any) -> bool:
        """Sentinels watch over several services, and one that says `subscribe` says nothing."""
        _, _, text = message
        return isinstance(text, bytes) and self._settings.service.encode() in text.split(b" ")

    def _hang_up(self) -> None:
        self._sentinels, self._announcer = {}, None
