"""The settings of a Redis store: from a URL, from keywords, or from an existing client of redis-py.

    redis://user:password@host:6379/0                      rediss:// with TLS, whose host name is checked
    redis+unix:///run/redis.sock?db=0
    redis+sentinel://h1:26379,h2:26379,h3:26379/service    the primary of a service, found by its Sentinels
    redis+cluster://h1:6379,h2:6379,h3:6379                all nodes of a cluster, found by any of these
                                                           rediss+sentinel:// and rediss+cluster:// with TLS

The same with valkey in place of redis. Behind a "?" may stand `deadline` (seconds), `connections`, `waiting`,
`breaker_...` (see `breaker.Limits`), `prefix`, `namespace`, `secret`, `partitions`, `sentinel_username`,
`sentinel_password`, and the options of redis-py for connections, such as `ssl_ca_certs`. Errors never quote a
URL, because it may hold a password.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from penstock.clock import SECOND, Micros
from penstock.engine.breaker import Limits, check_limits
from penstock.errors import InvalidOption, shown
from penstock.stores.redis.keys import DEFAULT_PARTITIONS, DEFAULT_PREFIX, MAX_PARTITIONS, Keys

if TYPE_CHECKING:
    import redis

WAYS = {
    "": ("single", "tcp"),
    "s": ("single", "tls"),
    "+unix": ("single", "unix"),
    "+sentinel": ("sentinel", "tcp"),
    "s+sentinel": ("sentinel", "tls"),
    "+cluster": ("cluster", "tcp"),
    "s+cluster": ("cluster", "tls"),
}
SCHEMES = {f"{name}{way}": meaning for name in ("redis", "valkey") for way, meaning in WAYS.items()}
"""The topology and the kind of connection of each scheme of a URL."""

PLAIN = {"tcp": "redis", "tls": "rediss", "unix": "unix"}
"""The scheme of redis-py for each kind of connection."""

PORT = 6379
SENTINEL_PORT = 26379
DEFAULT_DEADLINE = 0.05
MAX_DEADLINE = 300.0
CONNECTING_TIME = 2.0
DEFAULT_CONNECTIONS = 32
MAX_CONNECTIONS = 10_000
DEFAULT_WAITING = 1_024
MAX_WAITING = 1_000_000
SLOW = 0.8
WHOLE = ("failures", "calls", "probes", "passes")
DEFAULT_SECRET = b"penstock"


class Node(NamedTuple):
    """Where one server is: host and port, or the path of a Unix socket, which has no port."""

    host: str
    port: int = 0

    @property
    def place(self) -> str:
        """Return the address as messages have it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else self.host


class RedisSettings(NamedTuple):
    """The settings of one store.

    - `topology`: single, sentinel or cluster.
    - `nodes`: the server; or the Sentinels; or some nodes of the cluster.
    - `service`: the name of the primary at its Sentinels.
    - `kind`: the kind of connection: tcp, tls or unix.
    - `connect`: the options of redis-py to connect, beside a node.
    - `sentinel`: the same, to connect to a Sentinel.
    - `deadline_us`: how long a decision may take.
    - `connections`: how many connections blocking callers may have open at once.
    - `waiting`: how many calls may wait for a server at once.
    - `breaker`: the limits of the breaker of a server.
    - `keys`: the names of counters.
    """

    topology: str
    nodes: tuple[Node, ...]
    service: str
    kind: str
    connect: Mapping[str, Any]
    sentinel: Mapping[str, Any]
    deadline_us: Micros
    connections: int
    waiting: int
    breaker: Limits
    keys: Keys

    @property
    def connecting(self) -> float:
        """Return the seconds after which a server that cannot be connected to counts as unreachable."""
        return max(CONNECTING_TIME, self.deadline_us / SECOND)

    @property
    def place(self) -> str:
        """Return the address for messages: without credentials."""
        return ",".join([node.place for node in self.nodes]) + (f"/{self.service}" if self.service else "")

    def __repr__(self) -> str:
        """Return a text without credentials, because it may end up in logs."""
        return f"<Settings {self.topology} {self.kind} {self.place}>"


BREAKER = {f"breaker_{name}": name for name in Limits._fields}
OURS = ("deadline", "connections", "waiting", *BREAKER, "prefix", "namespace", "secret", "partitions")
OF_SENTINELS = {"sentinel_username": "username", "sentinel_password": "password"}
CONNECTING = ("host", "port", "path", "db", "username", "password", "credential_provider", "client_name")


def read_url(url: str, **options: Any) -> RedisSettings:
    """Return the settings of a URL; keywords win."""
    try:
        parts = urlsplit(url)
        topology, kind = SCHEMES[parts.scheme]
        login, _, hosts = parts.netloc.rpartition("@")
        path, service = parts.path, ""
        if topology == "single" and "," in hosts:
            raise ValueError  # +sentinel or +cluster was forgotten
        if topology == "sentinel":
            _, service, *rest = path.split("/")
            path = "/".join(["", *rest])
            if not service:
                raise ValueError
        if parts.fragment or (kind != "unix" and path.strip("/") and not path.strip("/").isdecimal()):
            raise ValueError  # a special character in a password, most likely
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        ours = {name: query.pop(name) for name in (*OURS, *OF_SENTINELS) if name in query}
        several = (
            [_node(host, SENTINEL_PORT if service else PORT) for host in hosts.split(",")]
            if topology != "single"
            else []
        )
        at = f"{login}@" if login else ""
        connect = _parsed(f"{PLAIN[kind]}://{at}{hosts.split(',')[0]}{path}?{urlencode(query)}")
    except (AttributeError, KeyError, TypeError, ValueError):  # their texts may quote a password
        raise InvalidOption(
            "store URL: unreadable (expected e.g. redis://user:password@host:6379/0, "
            "redis+sentinel://host:26379,host:26379/service or redis+cluster://host:6379,host:6379, with special "
            "characters in user and password percent-encoded)"
        ) from None
    return _settings(topology, kind, connect, ours | options, tuple(several), service)


def _parsed(plain: str) -> dict[str, Any]:
    """Return the options that redis-py reads from the URL of a single server."""
    import redis.connection

    connect: dict[str, Any] = redis.connection.parse_url(plain)  # type: ignore[no-untyped-call]
    connect.pop("connection_class", None)
    return connect


def _node(host: str, port: int) -> Node:
    parts = urlsplit(f"//{host}")
    if not parts.hostname or parts.netloc != host:
        raise ValueError
    return Node(parts.hostname, parts.port or port)


def read_client(client: redis.Redis | redis.asyncio.Redis, **options: Any) -> RedisSettings:
    """Return the settings of an existing client: its address, credentials and TLS, but none of its connections."""
    pool = getattr(client, "connection_pool", None)
    if pool is None or type(pool).__name__ not in ("ConnectionPool", "BlockingConnectionPool"):
        raise InvalidOption(
            f"client {type(client).__name__}: expected a redis-py client of a single server (others by URL)"
        )
    connect = {
        name: value for name, value in pool.connection_kwargs.items() if name in CONNECTING or name[:4] == "ssl_"
    }
    kind = "unix" if "path" in connect else "tls" if "SSL" in pool.connection_class.__name__ else "tcp"
    return _settings("single", kind, connect, options)


def _settings(
    topology: str,
    kind: str,
    connect: dict[str, Any],
    options: dict[str, Any],
    nodes: tuple[Node, ...] = (),
    service: str = "",
) -> RedisSettings:
    """Return checked settings; all other options are those of redis-py."""
    ours = {name: options.pop(name) for name in OURS if name in options}
    to_sentinels = {theirs: options.pop(name) for name, theirs in OF_SENTINELS.items() if name in options}
    if to_sentinels and topology != "sentinel":
        raise InvalidOption("sentinel_username, sentinel_password: expected only with redis+sentinel://")
    connect = connect | options
    if topology == "cluster" and connect.get("db", 0) != 0:
        raise InvalidOption(f"database {shown(connect['db'])}: a cluster has only 0")
    if kind == "unix":
        nodes = (Node(connect["path"]),)
    elif not nodes:
        nodes = (Node(connect.get("host", "localhost"), int(connect.get("port", PORT))),)
    connect = {name: value for name, value in connect.items() if name not in ("host", "port", "path")}
    own = ("db", "username", "password", "credential_provider")
    sentinel = {name: value for name, value in connect.items() if name not in own} | to_sentinels
    deadline = _deadline(ours.get("deadline", DEFAULT_DEADLINE))
    connections = _count("connections", ours.get("connections", DEFAULT_CONNECTIONS), MAX_CONNECTIONS)
    waiting = _count("waiting", ours.get("waiting", DEFAULT_WAITING), MAX_WAITING)
    breaker = _breaker({BREAKER[name]: value for name, value in ours.items() if name in BREAKER}, deadline)
    prefix = _text("prefix", ours.get("prefix", DEFAULT_PREFIX))
    namespace = _text("namespace", ours.get("namespace", ""))
    partitions = _partitions(ours.get("partitions", DEFAULT_PARTITIONS))
    keys = Keys(_secret(ours.get("secret")), namespace=namespace, prefix=prefix, partitions=partitions)
    return RedisSettings(
        topology, nodes, service, kind, connect, sentinel, deadline, connections, waiting, breaker, keys
    )


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


def _count(what: str, value: int | str, most: int) -> int:
    number = _whole(value)
    if not 1 <= number <= most:
        raise InvalidOption(f"{what} {shown(value)}: expected a whole number, 1 to {most}")
    return number


def _breaker(said: dict[str, Any], deadline: Micros) -> Limits:
    """Return the limits of the breaker, from text or numbers; a reply is slow when it took most of the deadline."""
    limits: dict[str, Any] = {"slow": SLOW * deadline / SECOND}
    for name, value in said.items():
        kind = int if name in WHOLE else float
        try:
            limits[name] = kind(value) if isinstance(value, str) else value
        except ValueError:
            limits[name] = value
    return check_limits(Limits(**limits))


def _partitions(partitions: int | str) -> int:
    number = _whole(partitions)
    if not 1 <= number <= MAX_PARTITIONS or number.bit_count() != 1:
        raise InvalidOption(f"partitions {shown(partitions)}: expected a power of two, 1 to {MAX_PARTITIONS}")
    return number


def _whole(number: int | str) -> int:
    """Return the number; 0 if it is none."""
    try:
        return 0 if isinstance(number, bool | float) else int(number)
    except (TypeError, ValueError):
        return 0


def _secret(secret: str | bytes | None) -> bytes:
    if secret is None:
        warnings.warn(
            "penstock: no hashing secret was given, so identities can be tried out by reading the store "
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
