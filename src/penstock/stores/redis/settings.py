"""How to reach a server, and how to use it: from a URL, from keywords, or from an existing client of redis-py.

    redis://user:password@host:6379/0        rediss:// with TLS, whose host name is checked
    redis+unix:///run/redis.sock?db=0        the same with valkey in place of redis

Behind a "?" may stand `deadline` (seconds), `connections`, `prefix`, `namespace`, `secret`, and whatever redis-py
understands of connections, such as `ssl_ca_certs`. Errors never quote a URL, because it may hold a password.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from penstock.clock import SECOND, Micros
from penstock.errors import InvalidOption, shown
from penstock.stores.redis.keys import DEFAULT_PREFIX, Keys

if TYPE_CHECKING:
    import redis

SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "redis+unix": "unix",
    "valkey": "redis",
    "valkeys": "rediss",
    "valkey+unix": "unix",
}
"""What we call a way to connect, and what redis-py calls it."""

DEFAULT_DEADLINE = 0.05
MAX_DEADLINE = 300.0
DEFAULT_CONNECTIONS = 32
MAX_CONNECTIONS = 10_000
DEFAULT_SECRET = b"penstock"


class Settings(NamedTuple):
    """Everything that is chosen once.

    - `place`: where the server is, for messages: no credentials.
    - `kind`: redis-py's name for the kind of connection: tcp, tls or unix.
    - `connect`: what redis-py needs to connect.
    - `deadline_us`: how long a decision may take.
    - `connections`: how many connections blocking callers may have open at once.
    - `keys`: the names of counters.
    """

    place: str
    kind: str
    connect: Mapping[str, Any]
    deadline_us: Micros
    connections: int
    keys: Keys


def read_url(url: str, **options: Any) -> Settings:
    """The settings that a URL says; keywords say more, and win."""
    import redis.connection

    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise InvalidOption(f"store scheme {shown(parts.scheme)}: expected one of {', '.join(SCHEMES)}")
    query = dict(parse_qsl(parts.query))
    ours = {
        name: query.pop(name) for name in ("deadline", "connections", "prefix", "namespace", "secret") & query.keys()
    }
    plain = urlunsplit(parts._replace(scheme=SCHEMES[parts.scheme], query=urlencode(query)))
    try:
        connect: dict[str, Any] = redis.connection.parse_url(plain)  # type: ignore[no-untyped-call]
    except (ValueError, TypeError) as error:
        raise InvalidOption(f"store URL of scheme {parts.scheme}: {_reason(error)}") from None
    kind = {"rediss": "tls", "unix": "unix"}.get(SCHEMES[parts.scheme], "tcp")
    connect.pop("connection_class", None)
    return _settings(kind, connect, **(ours | options))


def read_client(client: redis.Redis | redis.asyncio.Redis, **options: Any) -> Settings:
    """The settings of an existing client: its address, credentials and TLS, but none of its connections."""
    pool = client.connection_pool
    connect = {
        name: value for name, value in pool.connection_kwargs.items() if name in CONNECTING or name[:4] == "ssl_"
    }
    kind = "unix" if "path" in connect else "tls" if "SSL" in pool.connection_class.__name__ else "tcp"
    return _settings(kind, connect, **options)


CONNECTING = ("host", "port", "path", "db", "username", "password", "credential_provider", "client_name")


def _settings(
    kind: str,
    connect: dict[str, Any],
    *,
    deadline: float | str = DEFAULT_DEADLINE,
    connections: int | str = DEFAULT_CONNECTIONS,
    prefix: str = DEFAULT_PREFIX,
    namespace: str = "",
    secret: str | bytes | None = None,
) -> Settings:
    place = connect.get("path") or f"{connect.get('host', 'localhost')}:{connect.get('port', 6379)}"
    return Settings(
        place,
        kind,
        connect,
        _deadline(deadline),
        _connections(connections),
        Keys(_secret(secret), namespace=namespace, prefix=prefix),
    )


def _deadline(deadline: float | str) -> Micros:
    try:
        seconds = float(deadline)
    except (TypeError, ValueError):
        seconds = 0.0
    if isinstance(deadline, bool) or not 0 < seconds <= MAX_DEADLINE:
        raise InvalidOption(f"deadline {shown(deadline)}: expected seconds, more than 0 and at most {MAX_DEADLINE:g}")
    return max(round(seconds * SECOND), 1)


def _connections(connections: int | str) -> int:
    try:
        number = int(connections)
    except (TypeError, ValueError):
        number = 0
    if isinstance(connections, bool | float) or not 1 <= number <= MAX_CONNECTIONS:
        raise InvalidOption(f"connections {shown(connections)}: expected a whole number, 1 to {MAX_CONNECTIONS}")
    return number


def _secret(secret: str | bytes | None) -> bytes:
    if secret is None:
        warnings.warn(
            "penstock: no hashing secret was given, so whoever reads the store can try out identities "
            "(set secret= to the same long random text on every server)",
            stacklevel=6,
        )
        return DEFAULT_SECRET
    return secret.encode() if isinstance(secret, str) else secret


def _reason(error: Exception) -> str:
    """What redis-py found wrong, without the value it quotes."""
    return str(error).partition(":")[0] or type(error).__name__
