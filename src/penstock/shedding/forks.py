"""What a forked child begins anew: requests and event loops of the parent are not the child's, nor are held locks."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """Something that holds what a child must not inherit."""

    def _renew(self) -> None:
        """Begin anew."""


def renew_in_children(one: Renewable) -> None:
    """Have `one` begin anew in every child, as long as it lives."""
    _alive.add(one)


def _after_fork_in_child() -> None:
    for one in list(_alive):
        one._renew()


_alive: WeakSet[Renewable] = WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
