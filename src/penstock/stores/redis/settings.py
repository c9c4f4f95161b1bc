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
from urllib.parse import parse_qsl, urlencode, urlsplit

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

    def __repr__(self) -> str:
        """Without credentials, because what is printed ends up in logs."""
        return f"<Settings {self.kind} {self.place}>"


OURS = ("deadline", "connections", "prefix", "namespace", "secret")
CONNECTING = ("host", "port", "path", "db", "username", "password", "credential_provider", "client_name")


def read_url(url: str, **options: Any) -> Settings:
    """The settings that a URL says; keywords say more, and win."""
    import redis.connection

    try:
        parts = urlsplit(url)
        if parts.fragment or (parts.path.strip("/") and parts.hostname and not parts.path.strip("/").isdecimal()):
            raise ValueError  # a special character in a password, most likely
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        ours = {name: query.pop(name) for name in OURS if name in query}
        scheme = SCHEMES[parts.scheme]
        plain = f"{scheme}://{parts.netloc}{parts.path}?{urlencode(query)}"
        connect: dict[str, Any] = redis.connection.parse_url(plain)  # type: ignore[no-untyped-call]
    except (AttributeError, KeyError, TypeError, ValueError):  # what they say may quote a password
        raise InvalidOption(
            "store URL: unreadable (expected e.g. redis://user:password@host:6379/0, with special characters in user "
            "and password percent-encoded)"
        ) from None
    kind = {"rediss": "tls", "unix": "unix"}.get(scheme, "tcp")
    connect.pop("connection_class", None)
    return _settings(kind, connect, ours | options)


def read_client(client: redis.Redis | redis.asyncio.Redis, **options: Any) -> Settings:
    """The settings of an existing client: its address, credentials and TLS, but none of its connections."""
    pool = getattr(client, "connection_pool", None)
    if pool is None or type(pool).__name__ not in ("ConnectionPool", "BlockingConnectionPool"):
        raise InvalidOption(f"client {type(client).__name__}: expected a redis-py client of a single server")
    connect = {
        name: value for name, value in pool.connection_kwargs.items() if name in CONNECTING or name[:4] == "ssl_"
    }
    kind = "unix" if "path" in connect else "tls" if "SSL" in pool.connection_class.__name__ else "tcp"
    return _settings(kind, connect, options)


def _settings(kind: str, connect: dict[str, Any], options: dict[str, Any]) -> Settings:
    """Checked settings; options that are not ours are redis-py's."""
    ours = {name: options.pop(name) for name in OURS if name in options}
    connect = connect | options
    host = connect.get("host", "localhost")
    place = connect.get("path") or f"{f'[{host}]' if ':' in str(host) else host}:{connect.get('port', 6379)}"
    deadline = _deadline(ours.get("deadline", DEFAULT_DEADLINE))
    connections = _connections(ours.get("connections", DEFAULT_CONNECTIONS))
    prefix = _text("prefix", ours.get("prefix", DEFAULT_PREFIX))
    keys = Keys(_secret(ours.get("secret")), namespace=_text("namespace", ours.get("namespace", "")), prefix=prefix)
    return Settings(place, kind, connect, deadline, connections, keys)


def _text(what: str, text: str) -> str:
    if not isinstance(text, str) or not text.isprintable():
        raise InvalidOption(f"{what}: expected printable text")
    return text


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
            stacklevel=2,
        )
        return DEFAULT_SECRET
    try:
        raw = secret.encode() if isinstance(secret, str) else secret
    except UnicodeEncodeError:
        raw = b""
    if not isinstance(raw, bytes) or not raw:
        raise InvalidOption("secret: expected text or bytes, not empty")
    return raw
