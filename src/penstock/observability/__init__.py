"""Watching a running Penstock: metrics, accuracy, logs and traces. Nothing here takes part in a decision."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.observability.metrics import Metrics

__all__ = ["Metrics"]


def __getattr__(name: str) -> object:
    if name == "Metrics":  # imported when first used, because it needs penstock[server]
        return import_module(f"{__name__}.metrics").Metrics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
