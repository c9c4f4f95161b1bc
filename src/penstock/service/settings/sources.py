"""The sources of settings: flags take precedence over the environment, then a file, then the defaults.

The file is TOML, because its values have types and the standard library reads it. `--config` or `PENSTOCK_CONFIG` names
it; there is no default path.

All faults are reported at once, a line each: the setting, its origin, its value unless it may be a secret, and what was
expected. An unknown name in the file is a fault. An unknown variable is not: Kubernetes sets `PENSTOCK_PORT` for a
service of that name.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.errors import InvalidOption, shown
from penstock.service.settings.model import PREFIX, SETTINGS, Setting, Settings
from penstock.service.settings.values import InvalidValue

CONFIG = f"{PREFIX}CONFIG"
MAX_BYTES = 1 << 20
ENVOY = next(setting for setting in SETTINGS if setting.name == "envoy_config")
FROM_ENVIRONMENT = "env"


class _Written(NamedTuple):
    """A value as it was written, and its origin."""

    value: object
    origin: str


def load(
    flags: Mapping[str, object] | None = None, environment: Mapping[str, str] | None = None, file: Path | None = None
) -> Settings:
    """Return checked settings. Flags that are None or empty count as not given. Raises `InvalidOption`."""
    flags, environment = flags or {}, environment or {}
    if file is None and environment.get(CONFIG):
        file = Path(environment[CONFIG])
    faults: list[str] = []
    written = {} if file is None else _read(file, faults)
    deployed = _deployed(_find(ENVOY, flags, environment, written), environment, faults)
    read: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for setting in SETTINGS:
        given = _find(setting, flags, environment, written) or deployed.get(setting.name)
        if setting is ENVOY and given is not None and given.value == FROM_ENVIRONMENT:
            given = deployed.get(setting.name)
        if given is None:
            continue
        origins[setting.name] = given.origin
        try:
            read[setting.name] = setting.read(given.value)
        except InvalidValue as unreadable:
            faults.append(_fault(setting, given, str(unreadable)))
    settings = Settings(**read, origins=MappingProxyType(origins))
    if not faults:  # invalid values cannot be compared
        faults = _contradictions(settings)
    if faults:
        raise InvalidOption("\n".join(faults))
    return settings


def _deployed(envoy: _Written | None, environment: Mapping[str, str], faults: list[str]) -> dict[str, _Written]:
    """Read the variables of envoyproxy/ratelimit, if the service replaces it."""
    if envoy is None:
        return {}
    from penstock.service.envoy.environment import read_environment

    try:
        found = read_environment(environment, standing_in=envoy.value == FROM_ENVIRONMENT)
    except InvalidOption as error:
        faults.append(str(error))
        return {}
    if envoy.value == FROM_ENVIRONMENT and found.folder is None:
        faults.append(
            f"envoy_config env (from {envoy.origin}): expected RUNTIME_ROOT or RUNTIME_SUBDIRECTORY beside it"
        )
    listen = list(dict.fromkeys(address for address in (found.http, found.grpc) if address is not None))
    given: dict[str, tuple[object, str]] = {
        "envoy_config": (None if found.folder is None else str(found.folder), "RUNTIME_ROOT"),
        "store": (found.store, "REDIS_URL"),
        "listen": (listen or None, "PORT and GRPC_PORT"),
        "log_level": (found.log_level, "LOG_LEVEL"),
        "log_format": (found.log_format, "LOG_FORMAT"),
        "tls_certificate": (found.tls_certificate, "GRPC_SERVER_TLS_CERT"),
        "tls_key": (found.tls_key, "GRPC_SERVER_TLS_KEY"),
        "tls_clients": (found.tls_clients, "GRPC_CLIENT_TLS_CACERT"),
        "client_names": (found.client_names, "GRPC_CLIENT_TLS_SAN"),
    }
    return {name: _Written(value, origin) for name, (value, origin) in given.items() if value is not None}


def _find(
    setting: Setting, flags: Mapping[str, object], environment: Mapping[str, str], written: Mapping[str, _Written]
) -> _Written | None:
    flagged = flags.get(setting.name)
    if flagged is not None and flagged != []:
        return _Written(flagged, setting.flag)
    if environment.get(setting.variable):
        return _Written(environment[setting.variable], setting.variable)
    return written.get(setting.name)


def _read(file: Path, faults: list[str]) -> dict[str, _Written]:
    """Read a file. Its syntax errors are never quoted, because a line may hold a secret."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError
        table = tomllib.loads(content.decode())
    except OSError as error:
        faults.append(f"config {shown(str(file))}: cannot be read: {error.strerror} (expected a TOML file)")
        return {}
    except tomllib.TOMLDecodeError as error:
        where = str(error)[str(error).rfind("(at") :] if "(at" in str(error) else ""
        faults.append(f"config {shown(str(file))}: not TOML {where}".rstrip())
        return {}
    except (UnicodeDecodeError, ValueError):
        faults.append(f"config {shown(str(file))}: expected a TOML file in UTF-8, of at most {MAX_BYTES} bytes")
        return {}
    known = [setting.name for setting in SETTINGS]
    for name in table:
        if name not in known:
            near = get_close_matches(name[:64], known, n=1)
            hint = f", did you mean {near[0]}?" if near else ""
            faults.append(
                f"{shown(name)} (from {file.name}): unknown setting{hint} (expected one of {', '.join(known)})"
            )
    return {name: _Written(value, file.name) for name, value in table.items() if name in known}


def _fault(setting: Setting, given: _Written, expected: str) -> str:
    hide = setting.secret or setting.name == "store"
    value = "(not shown)" if hide else shown(given.value)
    return f"{setting.name} {value} (from {given.origin}): expected {expected}"


def _contradictions(settings: Settings) -> list[str]:
    """Return the conflicts between settings that are valid by themselves."""
    faults = []
    if settings.workers > 1 and not settings.shared:
        faults.append(
            f"workers {settings.workers} (from {settings.origin('workers')}): processes cannot share the counts of "
            f"store memory:// (expected workers 1, or a Redis store such as --store redis://localhost:6379/0)"
        )
    for name, needed in (
        ("tls_certificate", "tls_key"),
        ("tls_key", "tls_certificate"),
        ("tls_clients", "tls_certificate"),
        ("client_names", "tls_clients"),
        ("keys", "keys_secret"),
    ):
        if getattr(settings, name) not in (None, ()) and getattr(settings, needed) is None:
            faults.append(f"{name} (from {settings.origin(name)}): expected {needed} beside it")
    return faults
