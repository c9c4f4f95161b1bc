"""The checks of settings; what passes them needs no more thought."""

from __future__ import annotations

from penstock.clock import SECOND, Micros
from penstock.errors import InvalidOption, shown

LONGEST = 3_600


def whole(what: str, number: int, most: int = 2**32) -> int:
    """A count of something there is at least one of."""
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        raise InvalidOption(f"{what} {shown(number)}: expected a whole number, 1 to {most}")
    return number


def micros(what: str, seconds: float) -> Micros:
    """A span of time, from seconds."""
    if not is_number(seconds) or not 0.001 <= seconds <= LONGEST:
        raise InvalidOption(f"{what} {shown(seconds)}: expected seconds, 0.001 to {LONGEST}")
    return round(seconds * SECOND)


def rising(what: str, lower: float, upper: float) -> tuple[float, float]:
    """Two pressures with room between them: without it, whatever turns at them flaps."""
    if not is_number(lower) or not is_number(upper) or not 0 <= lower < upper <= 10:
        raise InvalidOption(f"{what} {shown(lower)}, {shown(upper)}: expected two pressures, the lower first, 0 to 10")
    return float(lower), float(upper)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
