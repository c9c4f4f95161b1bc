"""Real requests to an ASGI application in this process, by httpx."""

from __future__ import annotations

from typing import Any

import httpx


def client(app: Any, **options: Any) -> httpx.AsyncClient:
    """Return a client of the application; exceptions become responses with 500, as with servers."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("192.0.2.7", 50_000))
    return httpx.AsyncClient(transport=transport, base_url="http://testserver", **options)


async def statuses(app: Any, *paths: str, method: str = "GET", **options: Any) -> list[int]:
    """Return the status of the response to each path in turn."""
    async with client(app) as http:
        return [(await http.request(method, path, **options)).status_code for path in paths]
