"""Checks of numeric options. Each returns the value that it accepts, and raises `InvalidOption` for any other."""

from __future__ import annotations

from penstock.clock import SECOND, Micros
from penstock.errors import InvalidOption, shown

LONGEST = 3_600
DAY = 86_400


def whole(what: str, number: int, most: int = 2**32) -> int:
    """Return a whole number from 1 to `most`."""
    if not _is_whole(number) or not 1 <= number <= most:
        raise InvalidOption(f"{what} {shown(number)}: expected a whole number, 1 to {most}")
    return number


def at_least(least: int, what: str, number: int) -> int:
    """Return a whole number that is at least `least`."""
    if not _is_whole(number) or number < least:
        raise InvalidOption(f"{what} {shown(number)}: expected a whole number, at least {least}")
    return number


def micros(what: str, seconds: float) -> Micros:
    """Return the microseconds in a span of at least a millisecond and at most an hour."""
    if not is_number(seconds) or not 0.001 <= seconds <= LONGEST:
        raise InvalidOption(f"{what} {shown(seconds)}: expected seconds, 0.001 to {LONGEST}")
    return round(seconds * SECOND)


def up_to_a_day(what: str, seconds: float) -> float:
    """Return a number of seconds that is more than 0 and at most a day."""
    if not is_number(seconds) or not 0 < seconds <= DAY:
        raise InvalidOption(f"{what} {shown(seconds)}: expected seconds, more than 0 and at most a day")
    return seconds


def rising(what: str, lower: float, upper: float) -> tuple[float, float]:
    """Return two pressures, the lower first. A gap between them keeps what they switch from flapping."""
    if not is_number(lower) or not is_number(upper) or not 0 <= lower < upper <= 10:
        raise InvalidOption(f"{what} {shown(lower)}, {shown(upper)}: expected two pressures, the lower first, 0 to 10")
    return float(lower), float(upper)


def is_number(value: object) -> bool:
    """Whether a value is a number, which True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
