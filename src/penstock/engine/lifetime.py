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


# ---------------------------------------------------------------- token


# Whether a thread or timer is alive, known by a token that is gone with its holder, however that ended.
#
# An interrupt (Ctrl-C) may end a caller between any two steps: also between noting that a thread is at work, and
# starting it.


class Token:
    """An object that lives as long as the thread or timer that holds it. Everything else holds a weak reference."""

    __slots__ = ("__weakref__",)


def no_token() -> None:
    """Return None, as a weak reference to a token that is gone does."""
