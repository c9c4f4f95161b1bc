"""Counting in memory under several workers is warned of when the application starts."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType

import pytest

from penstock import AsyncLimiter
from penstock.middleware.asgi import RateLimitMiddleware
from penstock.middleware.worker_count import workers
from tests.unit.middleware.asgi_support import DistantStore, answering


@pytest.mark.parametrize(
    ("argv", "environ", "count"),
    [
        ([], {}, 1),
        (["/usr/bin/uvicorn", "app:app"], {}, 1),
        (["/usr/bin/uvicorn", "app:app", "--workers", "4"], {}, 4),
        (["/usr/bin/uvicorn", "app:app", "--workers=4"], {}, 4),
        (["/site-packages/uvicorn/__main__.py", "app:app", "--workers", "3"], {}, 3),
        (["gunicorn", "-w", "2", "-k", "uvicorn.workers.UvicornWorker", "app:app"], {}, 2),
        (["gunicorn", "-w8", "app:app"], {}, 8),
        (["hypercorn.exe", "-w", "2"], {}, 2),
        (["granian", "--workers", "2"], {}, 2),
        (["fastapi", "run", "--workers", "2"], {}, 2),
        (["uvicorn", "--workers"], {}, 1),
        (["uvicorn", "--workers", "many"], {}, 1),
        (["pytest", "-w", "4", "--workers", "4"], {}, 1),
        (["uvicorn"], {"WEB_CONCURRENCY": "5"}, 5),
        (["app.py"], {"WEB_CONCURRENCY": "5"}, 5),
        (["uvicorn"], {"WEB_CONCURRENCY": "1"}, 1),
        (["uvicorn"], {"WEB_CONCURRENCY": "auto"}, 1),
        (["uvicorn"], {"UVICORN_WORKERS": "2"}, 2),
        (["granian"], {"GRANIAN_WORKERS": "2"}, 2),
        (["gunicorn"], {"GUNICORN_CMD_ARGS": "--bind=:80 --workers=3"}, 3),
        (["gunicorn"], {"GUNICORN_CMD_ARGS": "--bind='"}, 1),
    ],
)
def test_the_number_of_workers_is_read_as_servers_read_it(argv: list[str], environ: dict[str, str], count: int) -> None:
    assert workers(environ, argv) == count


def test_the_number_of_workers_is_read_from_uwsgi(monkeypatch: pytest.MonkeyPatch) -> None:
    uwsgi = ModuleType("uwsgi")
    uwsgi.numproc = 6  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "uwsgi", uwsgi)
    assert workers({}, ["uwsgi"]) == 6


def test_several_workers_that_count_in_memory_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    with pytest.warns(RuntimeWarning, match="memory store with 4 workers: each grants the full limit"):
        RateLimitMiddleware(answering(), limiter=AsyncLimiter(), quota="1/minute")


def test_one_worker_or_a_shared_store_is_not_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RateLimitMiddleware(answering(), limiter=AsyncLimiter(), quota="1/minute")
        monkeypatch.setenv("WEB_CONCURRENCY", "4")
        RateLimitMiddleware(answering(), limiter=AsyncLimiter(DistantStore()), quota="1/minute")
