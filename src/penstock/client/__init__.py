"""Asking a running service from Python: `Client` for blocking code, `AsyncClient` for asyncio.

They need the standard library alone.
"""

from penstock.client.address import DEFAULT_URL, Tls
from penstock.client.client import AsyncClient, Client
from penstock.client.codec import Ruling

__all__ = ["DEFAULT_URL", "AsyncClient", "Client", "Ruling", "Tls"]
