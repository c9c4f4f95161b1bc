"""The facts of `penstock doctor`: it queries servers and reads files and packages. It changes nothing."""

from __future__ import annotations

import json
import platform
import re
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from penstock.cli.findings import Finding, Owned, ServerAnswers, of_files, of_packages, of_server, of_service, parted
from penstock.client.http import ApiRequest, Lost
from penstock.client.store import ServiceCalls
from penstock.clock import SECOND, Micros, SystemClock, monotonic
from penstock.errors import InvalidOption, InvalidRules, StoreError
from penstock.limiter import Limiter
from penstock.rules.parser import content, parse
from penstock.rules.ruleset import RuleSet

WITHIN = 5.0
PACKAGES = ("redis", "hiredis", "pydantic", "PyYAML", "httptools", "msgspec", "uvloop", "prometheus-client")


def packages() -> list[Finding]:
    """Check the packages that Penstock uses."""
    installed = {name: _installed(name) for name in ("penstock", *PACKAGES)}
    installed["penstock"] = installed["penstock"] or "not installed as a package"
    python = {"python": platform.python_version()}
    return of_packages(python | installed, {"python": "3.11"} | _required())


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _required() -> dict[str, str]:
    """Return the oldest supported versions, from the metadata of Penstock's package."""
    try:
        lines = metadata.requires("penstock") or []
    except metadata.PackageNotFoundError:
        return {}
    named = [re.match(r"([\w.-]+?)(?:\[.*?\])?>=([\d.]+)", line) for line in lines]
    return {found[1]: found[2] for found in named if found}


def rules(file: Path) -> list[Finding]:
    """Check a rules file: each fault is a finding."""
    about = f"rules {file.name}"
    try:
        read = parse(content(file), file.name)
    except InvalidRules as error:
        return [Finding(about, "problem", str(fault), "see docs/rules.md") for fault in error.faults]
    return [Finding(about, "fine", f"sound, {len(read.rules)} rules, version {RuleSet(read).version}")]


def files(paths: Sequence[Path], secrets: Sequence[Path]) -> list[Finding]:
    """Check the modes of files."""
    found: list[Finding] = []
    owned: list[Owned] = []
    for path in [*paths, *secrets]:
        try:
            owned.append(Owned(str(path), path.stat().st_mode, path in secrets))
        except OSError as error:
            found.append(Finding(f"file {path}", "problem", str(error.strerror), "name an existing file"))
    return found + of_files(owned)


def service(target: ServiceCalls, *, expected: bool) -> list[Finding]:
    """Check a running service. Unless it is `expected`, it may be absent."""
    about = f"service {target.address.place}"
    heard = target.ask([ApiRequest(b"/readyz", None, True)])[0]
    if isinstance(heard, Lost):
        level: Any = "problem" if expected else "note"
        return [Finding(about, level, heard.why, "start it: penstock serve; or name another one: --url")]
    try:
        status = json.loads(heard.body)
    except ValueError:
        status = None
    return of_service(target.address.place, heard.status, status if isinstance(status, dict) else {})


def store(url: str) -> list[Finding]:
    """Check whether the store decides, and each of its servers."""
    if url.startswith("memory:"):
        says = "counters are in the process: a restart forgets them, and each process has its own"
        return [Finding("store memory", "note", says, "name a Redis: --store redis://HOST:6379")]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            limiter = Limiter(url, on_failure="raise")
        except InvalidOption as error:
            return [Finding("store", "problem", str(error), "see docs/redis.md")]
    own = [said for one in warned if (said := str(one.message)).startswith("penstock: ")]
    found = [Finding("store", "warning", *parted(said.removeprefix("penstock: "))) for said in own]
    with limiter:
        return found + (_decides(limiter) or _servers(limiter.store))


def _decides(limiter: Limiter) -> list[Finding]:
    """Return what keeps the store from deciding. A first failure is retried, because it may have loaded the script."""
    try:
        limiter.peek("penstock doctor", "1/second")
    except StoreError:
        try:
            limiter.peek("penstock doctor", "1/second")
        except StoreError as error:
            return [Finding("store", "problem", str(error), "start the server, or correct the URL and its password")]
    return []


def _servers(store: Any) -> list[Finding]:
    from penstock.stores.redis.connection import BlockingConnection

    found: list[Finding] = []
    settings = store.settings
    for node in sorted(store.topology.nodes):
        wire = None
        try:
            wire = BlockingConnection(settings.kind, settings.connect, node, settings.connecting)
            found += of_server(node.place, _answers(wire))
        except Exception as error:  # redis-py raises errors of many types
            why = f"does not answer ({type(error).__name__})"
            found.append(Finding(f"redis {node.place}", "problem", why, "check that it runs, and its password"))
        finally:
            if wire is not None:
                wire.close()
    return found


def _answers(wire: Any) -> ServerAnswers:
    from penstock.stores.redis.connection import packed
    from penstock.stores.redis.server_checks import CHECKS

    until = monotonic() + WITHIN
    checks = [wire.ask(packed(*question), until) for question in CHECKS]
    before = _now()
    time = wire.ask(packed(b"TIME"), until)
    after = _now()
    stats = wire.ask(packed(b"INFO", b"commandstats"), until)
    seconds, micros = (int(part) for part in time) if isinstance(time, list) else (before // SECOND, before % SECOND)
    commands = stats.decode(errors="replace") if isinstance(stats, bytes) else ""
    return ServerAnswers(checks, before, seconds * SECOND + micros, after, commands)


def _now() -> Micros:
    return SystemClock().time_ns() // 1_000
