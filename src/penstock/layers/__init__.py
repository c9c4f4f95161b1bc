"""Layers stand between a limiter and its store: they may answer, change or watch operations, without I/O."""

from penstock.engine.protocols import Due, Entered, ForOne, Layer
from penstock.layers.deny_cache import DenyCache
from penstock.layers.fallback import Fallback

__all__ = ["DenyCache", "Due", "Entered", "Fallback", "ForOne", "Layer"]
