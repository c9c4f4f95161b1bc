"""All settings in one table: the fields of `Settings`.

The flags of `penstock serve`, the variables `PENSTOCK_...`, the names in the file, the output of `--print-config` and
the table in docs/operations.md follow from it.
"""

# ruff: noqa: RUF009  `_setting` is dataclasses.field by a shorter name

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.model import OnFailure
from penstock.service.settings import values
from penstock.service.settings.values import Proxies, Reader, hidden_url
from penstock.service.sockets import ListenAddress
from penstock.service.wire.limits import ServerLimits

PREFIX = "PENSTOCK_"
DEFAULT = "default"
HIDDEN = "***"

_LIMITS = ServerLimits()
_BYTES = values.whole(256, 2**30)
_COUNT = values.whole(1, 10**6)
_SECONDS = values.number(0.1, 86_400, "seconds")


class Setting(NamedTuple):
    """One setting.

    - `read`: converts the written value.
    - `secret`: never shown, and without a flag, because all users of a machine see the flags of its processes.
    - `many`: the flag may be repeated.
    """

    name: str
    read: Reader[Any]
    default: Any
    help: str
    secret: bool
    many: bool

    @property
    def variable(self) -> str:
        return f"{PREFIX}{self.name.upper()}"

    @property
    def flag(self) -> str:
        """The flag; empty for a secret."""
        return "" if self.secret else f"--{self.name.replace('_', '-')}"

    def shown(self, value: Any) -> str:
        """Return a value as it may be printed."""
        if value is None or value == ():
            return "none"
        if self.secret:
            return HIDDEN
        if self.name == "store":
            return hidden_url(value)
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, tuple) and not isinstance(value, ListenAddress):
            return ", ".join(str(one) for one in value)
        return f"{value:g}" if isinstance(value, float) else str(value)


def _setting(read: Reader[Any], default: Any, help: str, *, secret: bool = False, many: bool = False) -> Any:
    return field(
        default=default, metadata={"read": read, "help": help, "secret": secret, "many": many}, repr=not secret
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a service, made by `penstock.service.settings.load`. Immutable.

    `origins`: where each value came from, by name: a flag, a variable, a file, or the default.
    """

    listen: tuple[ListenAddress, ...] = _setting(
        values.some(values.address),
        (ListenAddress("127.0.0.1", 8080),),
        "where to listen: host:port, [v6]:port or unix:path; may be repeated",
        many=True,
    )
    store: str = _setting(
        values.store,
        "memory://",
        "where the counters are: memory://, or redis://host:6379/0 for several workers or hosts",
    )
    rules: Path = _setting(values.path, Path("penstock.yaml"), "the rules file; changes take effect within a second")
    envoy_config: Path | None = _setting(
        values.path,
        None,
        "a folder with the configuration of envoyproxy/ratelimit, for Envoy; env: take it from RUNTIME_ROOT",
    )
    envoy_all_or_nothing: bool = _setting(
        values.switch, False, "whether an Envoy request that exceeds one limit is charged to none of its limits"
    )
    envoy_count_denied: bool = _setting(
        values.switch, False, "whether refused Envoy requests are counted, as in envoyproxy/ratelimit"
    )
    keys: Path | None = _setting(values.existing, None, "a file of API keys: hash,owner,tier,status")
    keys_secret: bytes | None = _setting(
        values.key_secret, None, "the secret that keys the hashes in that file, 16 to 64 bytes", secret=True
    )
    workers: int = _setting(values.whole(1, 256), 1, "worker processes; more than one needs a shared store")
    on_failure: OnFailure = _setting(
        values.one_of("local", "open", "closed"),
        "local",
        "the answer while the store is unavailable, unless a rule sets it: local, open or closed",
    )
    store_budget_ms: float = _setting(
        values.number(0.1, 60_000, "milliseconds"), 3.0, "how long a decision may wait for a shared store"
    )
    token_secret: bytes | None = _setting(
        values.secret, None, "the secret that seals receipts; the same on all hosts that share a store", secret=True
    )
    tokens: tuple[str, ...] = _setting(
        values.several(values.token), (), "bearer tokens for the API; without any, the API needs none", secret=True
    )
    tls_certificate: Path | None = _setting(
        values.existing, None, "certificate chain (PEM); enables TLS on all addresses"
    )
    tls_key: Path | None = _setting(values.existing, None, "its private key (PEM)")
    tls_clients: Path | None = _setting(
        values.existing, None, "authorities (PEM) that must have signed client certificates (mTLS)"
    )
    client_names: tuple[str, ...] = _setting(
        values.several(values.text),
        (),
        "names in client certificates that may use the API; * is any trusted certificate",
        many=True,
    )
    trusted_proxies: Proxies = _setting(
        values.proxies,
        1,
        "proxies before /v1/authz that are trusted for the client's address: their number, or their networks",
        many=True,
    )
    forwarded_header: str = _setting(
        values.one_of("x-forwarded-for", "forwarded"),
        "x-forwarded-for",
        "the header in which trusted proxies pass the client's address",
    )
    api_key_header: str = _setting(values.header, "x-api-key", "the header in which /v1/authz reads an API key")
    drain_seconds: float = _setting(
        values.number(0, 3_600, "seconds"), 10.0, "how long calls under way may take when the service stops"
    )
    metrics: bool = _setting(values.switch, True, "whether GET /metrics is served")
    accuracy_share: int = _setting(
        values.whole(0, 10**6), 256, "one key in so many is compared with an exact log; 0: none"
    )
    limit_head: int = _setting(_BYTES, _LIMITS.head, "bytes of a request's head")
    limit_headers: int = _setting(_COUNT, _LIMITS.headers, "headers of a request")
    limit_body: int = _setting(_BYTES, _LIMITS.body, "bytes of a request's body")
    limit_reading: float = _setting(_SECONDS, _LIMITS.reading, "seconds from a request's first byte to its last")
    limit_idle: float = _setting(_SECONDS, _LIMITS.idle, "seconds for which a connection may stay idle")
    limit_calls: int = _setting(_COUNT, _LIMITS.calls, "concurrent calls of one connection")
    limit_unsent: int = _setting(_BYTES, _LIMITS.unsent, "bytes of answers that a peer may leave unread")
    limit_stalled: float = _setting(_SECONDS, _LIMITS.stalled, "seconds for which a peer may read none of them")
    limit_connections: int = _setting(_COUNT, _LIMITS.connections, "connections of one worker")
    limit_held: int = _setting(_BYTES, _LIMITS.held, "bytes of all incomplete requests of one worker")
    log_format: str = _setting(values.one_of("text", "json"), "text", "the format of log lines: text or json")
    log_level: str = _setting(
        values.one_of("debug", "info", "warning", "error"),
        "info",
        "the lowest level that is logged: debug, info, warning or error",
    )
    log_denials: int = _setting(
        values.whole(0, 10_000), 1, "refusals that each worker logs per second, with hashed keys; 0: none"
    )

    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)

    @property
    def limits(self) -> ServerLimits:
        """The limits of the wire."""
        return ServerLimits(**{name: getattr(self, f"limit_{name}") for name in ServerLimits._fields})

    @property
    def shared(self) -> bool:
        """Whether the counters are outside this process."""
        return not self.store.startswith("memory:")

    @property
    def has_rules(self) -> bool:
        """Whether a rules file is read. Beside an Envoy configuration, only if it is named or exists."""
        return self.envoy_config is None or self.origin("rules") != DEFAULT or self.rules.exists()

    def origin(self, name: str) -> str:
        return self.origins.get(name, DEFAULT)

    def lines(self) -> Iterator[tuple[str, str, str]]:
        """Yield name, value and origin of each setting, as they may be printed."""
        for setting in SETTINGS:
            yield setting.name, setting.shown(getattr(self, setting.name)), self.origin(setting.name)


def _described(one: Field[Any]) -> Setting:
    about = one.metadata
    return Setting(one.name, about["read"], one.default, about["help"], about["secret"], about["many"])


SETTINGS = tuple(_described(one) for one in fields(Settings) if one.metadata)
"""All settings, in the order in which they are shown."""
