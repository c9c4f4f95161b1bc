"""Renewal in forked children, which inherit neither threads nor event loops; and tokens, by which threads are known."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """An object with state that a forked child must not inherit, such as locks and connections."""

    def _renew(self) -> None:
        """Replace that state; called in the child."""


def renew_in_children(one: Renewable) -> None:
    """Call `one._renew` in every forked child, as long as the object lives."""
    _alive.add(one)


def _after_fork_in_child() -> None:
    for one in list(_alive):
        one._renew()


_alive: WeakSet[Renewable] = WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# ---------------------------------------------------------------- token


# A token tells whether a thread or timer is alive: it is gone with its holder, however that ended. A flag would not do:
# an interrupt (Ctrl-C) may end a caller between setting it and starting the thread.


class Token:
    """An object that lives as long as the thread or timer that holds it. Everything else holds a weak reference."""

    __slots__ = ("__weakref__",)


def no_token() -> None:
    """Return None, as a weak reference to a token that is gone does."""
