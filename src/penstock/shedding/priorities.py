"""The classes of traffic, from what must not be lost to what nobody would miss. Four: more cannot be told apart."""

from __future__ import annotations

from penstock.errors import InvalidOption, shown

CRITICAL = "critical"
PRIORITIES = (CRITICAL, "high", "normal", "low")
"""The most important first."""

RANKS = {priority: rank for rank, priority in enumerate(PRIORITIES)}


def unknown_priority(priority: object) -> InvalidOption:
    """The error for what is not one of them."""
    return InvalidOption(f"priority {shown(priority)}: expected {', '.join(PRIORITIES[:-1])} or {PRIORITIES[-1]}")
