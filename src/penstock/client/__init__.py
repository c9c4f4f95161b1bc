"""Calls of a running service from Python: `Client` for blocking code, `AsyncClient` for asyncio.

They need the standard library alone.
"""

from penstock.client.address import DEFAULT_URL, Tls
from penstock.client.client import AsyncClient, Client
from penstock.client.codec import ServiceRuling

__all__ = ["DEFAULT_URL", "AsyncClient", "Client", "ServiceRuling", "Tls"]
