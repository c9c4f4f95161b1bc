"""What can be set, in one table: the fields of `Settings`.

Everything else follows from it: the flags of `penstock serve`, the variables `PENSTOCK_...`, the names in the file,
what `--print-config` shows, and the table in docs/operations.md. A setting is listed here only once it works.
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
    """What there is to know about one of them.

    - `read`: makes of what was written what is used.
    - `secret`: never shown, and not taken from flags, because everybody on a machine sees those.
    - `many`: a flag may be repeated.
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
        """Empty if there is none."""
        return "" if self.secret else f"--{self.name.replace('_', '-')}"

    def shown(self, value: Any) -> str:
        """A value as it may be printed."""
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
    """How a service runs. Made by `penstock.service.settings.load`; it never changes.

    `origins` says where each value came from: a flag, a variable, a file, or the default.
    """

    listen: tuple[ListenAddress, ...] = _setting(
        values.some(values.address),
        (ListenAddress("127.0.0.1", 8080),),
        "where to listen: host:port, [v6]:port or unix:path; several are possible",
        many=True,
    )
    store: str = _setting(
        values.store,
        "memory://",
        "where the counters are: memory://, or redis://host:6379/0 for several workers or hosts",
    )
    rules: Path = _setting(values.path, Path("penstock.yaml"), "the file of rules; it is followed when it changes")
    envoy_config: Path | None = _setting(
        values.path,
        None,
        "a folder of envoyproxy/ratelimit's configuration, to answer Envoy by; env: the one that RUNTIME_ROOT names",
    )
    envoy_all_or_nothing: bool = _setting(
        values.switch, False, "whether a request of Envoy's that is over one limit is charged to none"
    )
    envoy_count_denied: bool = _setting(
        values.switch, False, "whether refused hits of Envoy's count, as they do in envoyproxy/ratelimit"
    )
    keys: Path | None = _setting(values.existing, None, "a file of API keys: hash,owner,tier,status")
    keys_secret: bytes | None = _setting(
        values.key_secret, None, "what the hashes in that file are keyed with, 16 to 64 bytes", secret=True
    )
    workers: int = _setting(values.whole(1, 256), 1, "how many processes answer; more than one needs a shared store")
    on_failure: OnFailure = _setting(
        values.one_of("local", "open", "closed"), "local", "who answers when the store cannot, unless a rule says so"
    )
    store_budget_ms: float = _setting(
        values.number(0.1, 60_000, "milliseconds"), 3.0, "how long a decision may wait for a shared store"
    )
    token_secret: bytes | None = _setting(
        values.secret, None, "what receipts are signed with; the same on every host that shares a store", secret=True
    )
    tokens: tuple[str, ...] = _setting(
        values.several(values.token), (), "bearer tokens, any of which opens the API; none: it is open", secret=True
    )
    tls_certificate: Path | None = _setting(values.existing, None, "certificate chain (PEM); with it, all is TLS")
    tls_key: Path | None = _setting(values.existing, None, "its private key (PEM)")
    tls_clients: Path | None = _setting(
        values.existing, None, "authorities (PEM) by which clients must be certified (mTLS)"
    )
    client_names: tuple[str, ...] = _setting(
        values.several(values.text),
        (),
        "names of certificates that open the API; * is any that is certified",
        many=True,
    )
    trusted_proxies: Proxies = _setting(
        values.proxies,
        1,
        "proxies before /v1/authz whose word on the client's address is believed: how many, or their networks",
        many=True,
    )
    forwarded_header: str = _setting(
        values.one_of("x-forwarded-for", "forwarded"), "x-forwarded-for", "the header in which they tell it"
    )
    api_key_header: str = _setting(values.header, "x-api-key", "the header in which /v1/authz finds an API key")
    drain_seconds: float = _setting(
        values.number(0, 3_600, "seconds"), 10.0, "how long calls under way may take to end when the service stops"
    )
    metrics: bool = _setting(values.switch, True, "whether GET /metrics is answered")
    accuracy_share: int = _setting(
        values.whole(0, 10**6), 256, "one key in so many is held against an exact log; 0: none"
    )
    limit_head: int = _setting(_BYTES, _LIMITS.head, "bytes of a request's head")
    limit_headers: int = _setting(_COUNT, _LIMITS.headers, "headers of a request")
    limit_body: int = _setting(_BYTES, _LIMITS.body, "bytes of a request's body")
    limit_reading: float = _setting(_SECONDS, _LIMITS.reading, "seconds from a request's first byte to its last")
    limit_idle: float = _setting(_SECONDS, _LIMITS.idle, "seconds for which a connection may stay silent")
    limit_calls: int = _setting(_COUNT, _LIMITS.calls, "calls of one connection under way")
    limit_unsent: int = _setting(_BYTES, _LIMITS.unsent, "bytes of answers that a peer may leave unread")
    limit_stalled: float = _setting(_SECONDS, _LIMITS.stalled, "seconds for which it may take none of them")
    limit_connections: int = _setting(_COUNT, _LIMITS.connections, "connections of one worker")
    limit_held: int = _setting(_BYTES, _LIMITS.held, "bytes of all requests that have come in part, in one worker")
    log_format: str = _setting(values.one_of("text", "json"), "text", "how lines of the log look: text or json")
    log_level: str = _setting(
        values.one_of("debug", "info", "warning", "error"), "info", "what is logged: debug, info, warning or error"
    )
    log_denials: int = _setting(
        values.whole(0, 10_000), 1, "refusals that each worker logs per second, keys hashed; 0: none"
    )

    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)

    @property
    def limits(self) -> ServerLimits:
        """What the wire puts up with."""
        return ServerLimits(**{name: getattr(self, f"limit_{name}") for name in ServerLimits._fields})

    @property
    def shared(self) -> bool:
        """Whether the counters are outside this process."""
        return not self.store.startswith("memory:")

    @property
    def has_rules(self) -> bool:
        """Whether a file of rules is read: where Envoy's own configuration is, only if it was named or is there."""
        return self.envoy_config is None or self.origin("rules") != DEFAULT or self.rules.exists()

    def origin(self, name: str) -> str:
        return self.origins.get(name, DEFAULT)

    def lines(self) -> Iterator[tuple[str, str, str]]:
        """Name, value and origin of each setting, as they may be printed."""
        for setting in SETTINGS:
            yield setting.name, setting.shown(getattr(self, setting.name)), self.origin(setting.name)


def _described(one: Field[Any]) -> Setting:
    about = one.metadata
    return Setting(one.name, about["read"], one.default, about["help"], about["secret"], about["many"])


SETTINGS = tuple(_described(one) for one in fields(Settings) if one.metadata)
"""All of them, in the order in which they are shown."""
