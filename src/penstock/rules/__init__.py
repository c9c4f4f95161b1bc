"""Limits declared in a file: what it may say, and which rules apply to a request.

The names are imported when first used: reading a file needs `penstock[rules]`, applying a `RuleSet` does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.rules.api_keys import AsyncKeyDirectory, KeyDirectory, KeyRecord, KeyTable, hash_key
    from penstock.rules.client_ip import TrustedProxies
    from penstock.rules.model import RuleFile
    from penstock.rules.parser import load, parse
    from penstock.rules.ruleset import RuleSet
    from penstock.rules.ruling import Ruling
    from penstock.rules.source import RuleSource

__all__ = [
    "AsyncKeyDirectory",
    "KeyDirectory",
    "KeyRecord",
    "KeyTable",
    "RuleFile",
    "RuleSet",
    "RuleSource",
    "Ruling",
    "TrustedProxies",
    "hash_key",
    "load",
    "parse",
]

_HOMES = {
    "api_keys": ("AsyncKeyDirectory", "KeyDirectory", "KeyRecord", "KeyTable", "hash_key"),
    "client_ip": ("TrustedProxies",),
    "model": ("RuleFile",),
    "parser": ("load", "parse"),
    "ruleset": ("RuleSet",),
    "ruling": ("Ruling",),
    "source": ("RuleSource",),
}


def __getattr__(name: str) -> object:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
