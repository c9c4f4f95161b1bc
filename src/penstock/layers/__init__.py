"""Layers stand between a limiter and its store: they may answer, change or watch operations, without I/O."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.engine.protocols import Due, Entered, InProcess, Layer
from penstock.errors import InvalidOption
from penstock.events import Hook
from penstock.layers.deny_cache import DenyCache
from penstock.layers.fallback import Fallback, check_behaviour
from penstock.model import OnFailure


def layers_over(
    store: object, layers: Sequence[Layer] | None, on_failure: OnFailure | None, hook: Hook
) -> tuple[Sequence[Layer], OnFailure]:
    """Return the layers over a store, and the `on_failure` of an internal error.

    By default a shared store has a deny cache and a fallback; a store in this process, which does not fail, has none.
    """
    if on_failure is not None:
        check_behaviour(on_failure)
    if layers is not None:
        if on_failure is not None:
            raise InvalidOption("on_failure: the layers decide that (expected a Fallback among them, or none)")
        return layers, next((layer.behaviour for layer in layers if isinstance(layer, Fallback)), "raise")
    if isinstance(store, InProcess):
        return (), "raise"
    known = DenyCache()
    behaviour = on_failure or "local"
    return (known, Fallback(behaviour, known=known, hook=hook)), behaviour


__all__ = ["DenyCache", "Due", "Entered", "Fallback", "Layer", "layers_over"]
