"""The environment variables of envoyproxy/ratelimit that mean something here, so that a deployment keeps them.

    RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY    the folder of the configuration
    REDIS_TYPE, REDIS_URL, REDIS_AUTH, REDIS_TLS, ...         the store

They are read only where the service was asked to behave like that one, and yield to flags, `PENSTOCK_...` variables and
the file of settings. `VARIABLES` are all of them; others mean nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

from penstock.errors import InvalidOption, shown
from penstock.service.envoy.config_files import Options
from penstock.service.envoy.plans import Conduct
from penstock.stores.redis.keys import MAX_PREFIX

DEFAULT_ROOT = "/srv/runtime_data/current"
DEFAULT_PORTS = {"PORT": "8080", "GRPC_PORT": "8081"}
HEADERS = ("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset")
_STORE_TLS = {
    "REDIS_TLS_CACERT": "ssl_ca_certs",
    "REDIS_TLS_CLIENT_CERT": "ssl_certfile",
    "REDIS_TLS_CLIENT_KEY": "ssl_keyfile",
}
_FIT = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_PREFIX}}}")
_UNFIT = re.compile(r"[^A-Za-z0-9_.:-]")
_LEVELS = {"trace": "debug", "warn": "warning", "fatal": "error", "panic": "error"}
TRUE, FALSE = ("1", "t", "true"), ("0", "f", "false", "")


class Deployment(NamedTuple):
    """The values of the variables; None where they are not set.

    - `folder`: where the configuration is.
    - `store`: the URL of the store. It may hold a password.
    - `http`, `grpc`: addresses to listen at, such as `0.0.0.0:8080` or `unix:/run/ratelimit.sock`.
    - `log_level`, `log_format`: such as `warning` and `json`.
    - `tls_certificate`, `tls_key`, `tls_clients`, `client_names`: the settings of those names.
    """

    folder: Path | None
    store: str | None
    http: str | None
    grpc: str | None
    log_level: str | None
    options: Options
    conduct: Conduct
    log_format: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_clients: str | None = None
    client_names: str | None = None


VARIABLES = {
    "RUNTIME_ROOT": "the folder above RUNTIME_SUBDIRECTORY",
    "RUNTIME_SUBDIRECTORY": "the folder that holds RUNTIME_APPDIRECTORY",
    "RUNTIME_APPDIRECTORY": "the folder with the files; config by default",
    "MERGE_DOMAIN_CONFIG": "several files may have the same domain",
    "HOST": "the address to listen at for HTTP, with PORT",
    "PORT": "the port for HTTP",
    "GRPC_HOST": "the address to listen at for gRPC, with GRPC_PORT",
    "GRPC_PORT": "the port for gRPC",
    "GRPC_UDS": "a Unix socket for gRPC in place of GRPC_HOST and GRPC_PORT",
    "GRPC_SERVER_USE_TLS": "TLS on all addresses, for HTTP too",
    "GRPC_SERVER_TLS_CERT": "the certificate",
    "GRPC_SERVER_TLS_KEY": "its key",
    "GRPC_CLIENT_TLS_CACERT": "authorities that must have signed client certificates",
    "GRPC_CLIENT_TLS_SAN": "the name that client certificates must have",
    "LOG_LEVEL": "the lowest level that is logged",
    "LOG_FORMAT": "text or json",
    "CONFIG_TYPE": "must be FILE",
    "BACKEND_TYPE": "must be redis",
    "REDIS_SOCKET_TYPE": "tcp or unix",
    "REDIS_TYPE": "single, sentinel or cluster, in any case",
    "REDIS_URL": "host:port or a socket; sentinels: the service's name and their addresses; cluster: its nodes",
    "REDIS_AUTH": "the password, or user:password",
    "REDIS_SENTINEL_AUTH": "the sentinels' password, or user:password",
    "REDIS_TLS": "TLS to the store",
    "REDIS_TLS_CACERT": "authorities that must have signed the store's certificate",
    "REDIS_TLS_CLIENT_CERT": "the client certificate for the store",
    "REDIS_TLS_CLIENT_KEY": "its key",
    "CACHE_KEY_PREFIX": "the start of keys in the store: 13 characters of it; all of it keeps keys apart",
    "NEAR_LIMIT_RATIO": "the share of a limit from which on hits are counted as near_limit",
    "SHADOW_MODE": "nothing is refused",
    "QUOTA_MODE": "every limit is in quota mode",
    "RESPONSE_DYNAMIC_METADATA": "the metadata of limits is sent to Envoy",
    "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": "true is what Penstock does; false is not honoured",
    "LIMIT_RESPONSE_HEADERS_ENABLED": "replies carry headers with limit, remaining and reset",
    "LIMIT_LIMIT_HEADER": "the name of the header for the limit",
    "LIMIT_REMAINING_HEADER": "the name of the header for what remains",
    "LIMIT_RESET_HEADER": "the name of the header for the reset",
}
"""The variables that are used, with their meaning."""


def read_environment(environment: Mapping[str, str], *, standing_in: bool = False) -> Deployment:
    """Return the values of the variables; with `standing_in`, unset ports are those of that service.

    Raises `InvalidOption` for one that cannot be honoured.
    """
    said = {name: value for name, value in environment.items() if name in VARIABLES and value}
    if standing_in:
        said = DEFAULT_PORTS | said
    if said.get("CONFIG_TYPE", "FILE").upper() != "FILE":
        raise InvalidOption(f"CONFIG_TYPE {shown(said['CONFIG_TYPE'])}: expected FILE")
    secure = said if _truth(said, "GRPC_SERVER_USE_TLS") else {}
    socket = said.get("GRPC_UDS")
    headers = None
    if _truth(said, "LIMIT_RESPONSE_HEADERS_ENABLED"):
        names = ("LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER", "LIMIT_RESET_HEADER")
        limit, remaining, reset = [said.get(n) or default for n, default in zip(names, HEADERS, strict=True)]
        headers = limit.lower(), remaining.lower(), reset.lower()
    return Deployment(
        _folder(said),
        store_url(said),
        _address(said, "HOST", "PORT"),
        f"unix:{socket}" if socket else _address(said, "GRPC_HOST", "GRPC_PORT"),
        _LEVELS.get(level, level) if (level := said.get("LOG_LEVEL", "").lower()) else None,
        Options(merge_domains=_truth(said, "MERGE_DOMAIN_CONFIG")),
        Conduct(
            shadow_mode=_truth(said, "SHADOW_MODE"),
            quota_mode=_truth(said, "QUOTA_MODE"),
            headers=headers,
            dynamic_metadata=_truth(said, "RESPONSE_DYNAMIC_METADATA"),
            near_limit_ratio=_ratio(said, "NEAR_LIMIT_RATIO"),
        ),
        said["LOG_FORMAT"].lower() if "LOG_FORMAT" in said else None,
        secure.get("GRPC_SERVER_TLS_CERT"),
        secure.get("GRPC_SERVER_TLS_KEY"),
        secure.get("GRPC_CLIENT_TLS_CACERT"),
        secure.get("GRPC_CLIENT_TLS_SAN"),
    )


def store_url(said: Mapping[str, str]) -> str | None:
    """The URL of the store that the variables name, in the form that Penstock's stores are named in."""
    if said.get("BACKEND_TYPE", "redis").lower() != "redis":
        raise InvalidOption(f"BACKEND_TYPE {shown(said['BACKEND_TYPE'])}: expected redis")
    target = said.get("REDIS_URL", "")
    if not target:
        return None
    secure = "s" if _truth(said, "REDIS_TLS") else ""
    options: dict[str, str] = {}
    if said.get("CACHE_KEY_PREFIX"):
        options |= _prefix(said["CACHE_KEY_PREFIX"])
    if secure:
        options |= {option: said[name] for name, option in _STORE_TLS.items() if said.get(name)}
    user = _credentials(said.get("REDIS_AUTH", ""))
    match said.get("REDIS_TYPE", "single").lower():
        case "single" if said.get("REDIS_SOCKET_TYPE", "unix" if target[0] == "/" else "tcp").lower() == "unix":
            url = f"redis+unix://{user}{quote(target)}"
        case "single":
            url = f"redis{secure}://{user}{target}"
        case "cluster":
            url = f"redis{secure}+cluster://{user}{target}"
        case "sentinel":
            service, _, nodes = target.partition(",")
            name, password = _user(said.get("REDIS_SENTINEL_AUTH", ""))
            options |= {"sentinel_username": name} if name else {}
            options |= {"sentinel_password": password} if password else {}
            url = f"redis{secure}+sentinel://{user}{nodes}/{quote(service)}"
        case other:
            raise InvalidOption(f"REDIS_TYPE {shown(other)}: expected single, sentinel or cluster")
    return f"{url}?{urlencode(options)}" if options else url


def _prefix(text: str) -> dict[str, str]:
    """What keys begin with. Deployments that share a store may differ in what a prefix of ours cannot hold."""
    if _FIT.fullmatch(text):
        return {"prefix": text}
    return {"prefix": _UNFIT.sub("-", text)[:MAX_PREFIX], "namespace": text}


def _credentials(auth: str) -> str:
    if not auth:
        return ""
    return ":".join(quote(part, safe="") for part in _user(auth)) + "@"


def _user(auth: str) -> tuple[str, str]:
    """User, if there is one, and password. A password may have colons, a user has none."""
    user, colon, password = auth.partition(":")
    return (user, password) if colon else ("", auth)


def _folder(said: Mapping[str, str]) -> Path | None:
    if not said.get("RUNTIME_ROOT") and not said.get("RUNTIME_SUBDIRECTORY"):
        return None
    root = Path(said.get("RUNTIME_ROOT") or DEFAULT_ROOT)
    return root / said.get("RUNTIME_SUBDIRECTORY", "") / (said.get("RUNTIME_APPDIRECTORY") or "config")


def _address(said: Mapping[str, str], host: str, port: str) -> str | None:
    if not said.get(port):
        return None
    number = said[port]
    if not number.isdecimal() or not 0 < int(number) < 65_536:
        raise InvalidOption(f"{port} {shown(number)}: expected 1 to 65535")
    name = said.get(host) or "0.0.0.0"  # noqa: S104  as it does
    return f"[{name}]:{number}" if ":" in name else f"{name}:{number}"


def _truth(said: Mapping[str, str], name: str) -> bool:
    value = said.get(name, "").lower()
    if value not in (*TRUE, *FALSE):
        raise InvalidOption(f"{name} {shown(said[name])}: expected true or false")
    return value in TRUE


def _ratio(said: Mapping[str, str], name: str) -> float:
    value = said.get(name) or "0.8"
    try:
        ratio = float(value)
    except ValueError:
        ratio = -1.0
    if not 0 < ratio <= 1:  # also refuses NaN
        raise InvalidOption(f"{name} {shown(value)}: expected more than 0 and at most 1")
    return ratio
