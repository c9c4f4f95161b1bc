"""Behind a real server of ASGI, over real HTTP: what the README says to paste, and whose address it is."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.acceptance.test_docs import ROOT
from tests.acceptance.test_docs import _examples as examples_of
from tests.rig.processes import Workplace, wait_until

(PASTED,) = [example.code for example in examples_of(ROOT / "README.md") if "FastAPI()" in example.code]
RUNNING = re.compile(r"running on (http://127\.0\.0\.1:\d+)")


@contextmanager
def served(*flags: str) -> Iterator[str]:
    """The address of the README's application, served as it says, on a port that is free."""
    place = Workplace("penstock-uvicorn-")
    (place.folder / "shop.py").write_text(PASTED, encoding="utf-8")
    # WEB_CONCURRENCY and FORWARDED_ALLOW_IPS would change what is shown here.
    environment = {
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}.",
        "WEB_CONCURRENCY": "1",
        "FORWARDED_ALLOW_IPS": "127.0.0.1",
    }
    place.run((sys.executable, "-m", "uvicorn", "shop:app", "--port", "0", *flags), environment)

    def address() -> str | None:
        found = RUNNING.search(place.log.read_text(encoding="utf-8"))
        assert place.running, place.log.read_text(encoding="utf-8")
        return found and found[1]

    try:
        wait_until(lambda: address() is not None, "uvicorn to serve")
        yield str(address())
    finally:
        place.close()


def refused_at_last(ask: Callable[[int], httpx.Response]) -> httpx.Response | None:
    """The first refusal, if there is any; a machine that stands still for long may let a window turn meanwhile."""
    return next((answer for number in range(12) if (answer := ask(number)).status_code == 429), None)


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    with served("--no-proxy-headers") as url:
        yield url


def test_the_application_of_the_readme_limits(shop: str) -> None:
    with httpx.Client(base_url=shop, trust_env=False) as http:
        passed = http.get("/search?q=gates")
        assert (passed.status_code, passed.json()) == (200, {"found": "gates"})
        assert passed.headers["ratelimit"].startswith('"3-per-minute";r=2;t=')
        refused = refused_at_last(lambda _: http.get("/search"))
        assert refused is not None
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["reason"] == "rate"
        assert int(refused.headers["retry-after"]) > 0
        assert http.get("/nowhere").status_code == 404


def test_client_address_is_not_chosen_without_proxy_headers(shop: str) -> None:
    assert refused_at_last(lambda number: claiming(shop, number)) is not None


def test_local_clients_choose_their_address_by_default() -> None:
    """Which is why the page says to turn it off; should uvicorn think better of it, the page can say less."""
    with served() as url:
        assert refused_at_last(lambda number: claiming(url, number)) is None


def claiming(url: str, number: int) -> httpx.Response:
    return httpx.get(f"{url}/search", headers={"X-Forwarded-For": f"198.51.100.{number}"}, trust_env=False)
