"""Warn if several workers count in memory: each would grant the full limit, without any sign of it.

A worker does not know how many there are. It sees the variables and command lines from which servers take the number,
and what uWSGI tells its applications. It does not see configuration files, calls in programs, or other machines.
"""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from penstock.stores import InProcess

VARIABLES = ("WEB_CONCURRENCY", "UVICORN_WORKERS", "GRANIAN_WORKERS")
SERVERS = ("uvicorn", "gunicorn", "hypercorn", "granian", "fastapi", "daphne", "litestar", "quart")
FLAGS = ("--workers", "-w", "--wc", "--web-concurrency")


def warn_if_several(store: object) -> None:
    """Warn if `store` counts in this process while other processes serve the same application."""
    if isinstance(store, InProcess):
        count = workers(os.environ, sys.argv)
        if count > 1:
            warnings.warn(
                f"memory store with {count} workers: each grants the full limit, together {count} times as much"
                " (expected one worker, or a store that they share, such as redis://...)",
                RuntimeWarning,
                stacklevel=2,
            )


def workers(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    """Return how many processes serve the application, as far as can be seen; at least 1."""
    numbers = [environ.get(name, "") for name in VARIABLES]
    if argv and _is_server(argv[0]):
        numbers += _after_flags(argv[1:])
    try:
        numbers += _after_flags(shlex.split(environ.get("GUNICORN_CMD_ARGS", "")))
    except ValueError:  # an unclosed quote
        pass
    numbers.append(str(getattr(sys.modules.get("uwsgi"), "numproc", "")))
    return max([int(number) for number in numbers if number.isascii() and number.isdigit()], default=1)


def _is_server(program: str) -> bool:
    path = PurePath(program)
    return path.stem in SERVERS or (path.name == "__main__.py" and path.parent.name in SERVERS)


def _after_flags(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the numbers of workers in arguments: `-w 4`, `-w4`, `--workers 4`, `--workers=4`."""
    expected = False
    for argument in arguments:
        if expected:
            yield argument
        expected = argument in FLAGS
        flag, _, number = argument.partition("=")
        if number and flag in FLAGS:
            yield number
        elif argument.startswith("-w") and argument[2:].isdigit():
            yield argument[2:]
