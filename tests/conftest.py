"""What all tiers share: real servers, how many examples Hypothesis generates, and how many it really did.

A profile is chosen by `--hypothesis-profile=NAME`, else by the variable HYPOTHESIS_PROFILE, else it is `ci`.
"""

import _thread
import gc
import os
import re
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.rig.fixtures"]

# Whatever is slow here is slow because the machine is: no deadline, no complaint about slow generation.
# Random is said aloud, because Hypothesis changes its default where the variable CI is set.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=False)

settings.register_profile("fast", _PATIENT, max_examples=50, stateful_step_count=30)
settings.register_profile("brief", _PATIENT, max_examples=75, stateful_step_count=30, derandomize=True)
settings.register_profile("ci", _PATIENT, max_examples=500, stateful_step_count=30, derandomize=True)
settings.register_profile("full", _PATIENT, max_examples=10_000, stateful_step_count=50, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


_start_new_thread = _thread.start_new_thread


def _start_traced(function: Callable[..., object], args: tuple[Any, ...], *rest: Any) -> int:
    """Threads below the level of `threading`, as connectors and watchers are, are measured like all others."""

    def traced(*own: Any) -> None:
        sys.settrace(threading.gettrace())
        function(*own)

    return _start_new_thread(traced, args, *rest)


_thread.start_new_thread = _start_traced


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Runs generated examples, and what is marked so, without coverage's tracer: in a third of the time.

    Which lines are run, the other tests show. (The marker of pytest-cov pauses nothing in a worker of xdist, where
    coverage is started twice.)
    """
    generated = getattr(getattr(item, "function", None), "is_hypothesis_test", False)
    if not generated and item.get_closest_marker("untraced") is None:
        return (yield)
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Leaves in the JUnit report how many generated examples a property held for; docs/results/proof.md shows it."""
    statistics: str = getattr(item, "hypothesis_statistics", "")
    examples = sum(int(count) for count in re.findall(r"(\d+) passing", statistics))
    if examples:
        item.user_properties.append(("examples", examples))


def pytest_collection_finish() -> None:
    """What is here now stays: nobody needs to walk over it for garbage again and again."""
    gc.collect()
    gc.freeze()
