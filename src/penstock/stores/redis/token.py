"""Who is at work, as others know it: by a token that is gone with whoever holds it, however that ended.

An interrupt (Ctrl-C) may end a caller between any two steps: also between noting that a thread is at work, and starting
it.
"""

from __future__ import annotations


class Token:
    """Whoever holds it is at work; when he is gone, for whatever reason, so is it. Others hold a weak reference."""

    __slots__ = ("__weakref__",)


def nobody() -> None:
    """What a reference to somebody who is gone says."""
