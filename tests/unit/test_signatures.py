"""Parameters are named alike: in the classes for blocking code and for asyncio, and wherever they mean the same."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import AsyncLimiter, Limiter
from penstock.client import AsyncClient, Client
from penstock.enforcer import AsyncEnforcer, Enforcer

TWINS = ((Limiter, AsyncLimiter), (Enforcer, AsyncEnforcer), (Client, AsyncClient))
KINDS = [kind for pair in TWINS for kind in pair]


def _methods(kind: type) -> Iterator[tuple[str, inspect.Signature]]:
    for name, method in inspect.getmembers(kind, callable):
        if not name.startswith("_") or name == "__init__":
            yield name, inspect.signature(method)


def _named(signature: inspect.Signature) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in signature.parameters.values()]


@pytest.mark.parametrize("pair", TWINS, ids=lambda pair: pair[0].__name__)
def test_twins_have_the_same_methods_and_parameters(pair: tuple[type, type]) -> None:
    blocking, waiting = (dict(_methods(kind)) for kind in pair)
    assert blocking.keys() == waiting.keys()
    assert {name: _named(one) for name, one in blocking.items()} == {name: _named(one) for name, one in waiting.items()}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_key_is_never_a_descriptor_and_a_descriptor_never_a_key(kind: type) -> None:
    for name, signature in _methods(kind):
        for parameter in signature.parameters.values():
            written = str(parameter.annotation)
            assert (parameter.name == "descriptor") == written.startswith("Descriptor"), f"{name}: {parameter}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_parameters_of_one_name_are_of_one_type(kind: type) -> None:
    types = {"id": {"Id | None"}, "hook": {"Hook"}, "clock": {"Clock | None"}, "units": {"int", "int | None"}}
    for name, signature in _methods(kind):
        for parameter in signature.parameters.values():
            if parameter.name in types:
                assert parameter.annotation in types[parameter.name], f"{name}: {parameter}"
