"""The findings of `penstock doctor`: each fact with its severity and a remedy. Pure."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from penstock.clock import SECOND, Micros
from penstock.stores.redis.server_checks import findings as findings_of_checks

Level: TypeAlias = Literal["fine", "note", "warning", "problem"]
"""The severity: correct; good to know; something may fail; something is wrong."""

SKEW: Micros = SECOND // 2
"""How much the clocks of host and server may differ."""

ROUND_TRIP: Micros = 3_000
"""How long a decision of the service waits for the store by default."""

SCRIPT: Micros = 1_000
FULL = 0.9
OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Finding(NamedTuple):
    """The result of one check. `advice` is empty if there is nothing to do."""

    about: str
    level: Level
    says: str
    advice: str = ""


class ServerAnswers(NamedTuple):
    """The replies of a server of the store.

    - `checks`: its replies to `penstock.stores.redis.server_checks.QUESTIONS`.
    - `before`, `time`, `after`: our clock, its clock, our clock.
    - `commands`: INFO commandstats.
    """

    checks: Sequence[object]
    before: Micros
    time: Micros
    after: Micros
    commands: str = ""


class Owned(NamedTuple):
    """A file with its mode, and whether it holds a secret."""

    path: str
    mode: int
    secret: bool


def worst(findings: Iterable[Finding]) -> Level:
    """Return the highest level, which decides the exit code."""
    levels: tuple[Level, ...] = ("fine", "note", "warning", "problem")
    return max((finding.level for finding in findings), key=levels.index, default="fine")


def of_server(place: str, answers: ServerAnswers) -> list[Finding]:
    """Check a server of the store."""
    about = f"redis {place}"
    found = [_of_check(about, said) for said in findings_of_checks(answers.checks)]
    info = answers.checks[0]
    if not isinstance(info, bytes):
        return [one._replace(level="warning") for one in found] + _times(about, answers)
    facts = dict(re.findall(r"^(\w+):(.*?)\r?$", info.decode(errors="replace"), re.MULTILINE))
    found += (
        _memory(about, facts) + _persistence(about, facts) + _times(about, answers) + _script(about, answers.commands)
    )
    if worst(found) in ("fine", "note"):
        found.insert(
            0, Finding(about, "fine", f"{_version(facts)}, {facts.get('role', 'master')}, all settings are good")
        )
    return found


def parted(said: str) -> tuple[str, str]:
    """Split a message into fact and advice, which follows the last semicolon or stands in brackets at the end."""
    says, _, advice = said.rpartition("; ")
    if not says and said.endswith(")"):
        says, _, advice = said[:-1].rpartition(" (")
    return (says, advice) if says else (said, "")


def _of_check(about: str, said: str) -> Finding:
    """Return the finding of a check at connect. A CVE is a warning, because distributions patch old versions."""
    return Finding(about, "warning" if "CVE-" in said else "problem", *parted(said))


def _version(facts: Mapping[str, str]) -> str:
    name = "valkey" if "valkey_version" in facts else "redis"
    return f"{name} {facts.get(f'{name}_version', 'of unknown version')}"


def _memory(about: str, facts: Mapping[str, str]) -> list[Finding]:
    found = []
    most, used = int(facts.get("maxmemory", "0")), int(facts.get("used_memory", "0"))
    evicted = int(facts.get("evicted_keys", "0"))
    if evicted:
        says = f"{evicted} keys were evicted since it started: their limits started again from zero"
        found.append(Finding(about, "problem", says, "give it more memory, and set maxmemory-policy noeviction"))
    if most == 0:
        advice = "set maxmemory below the memory of the machine, so that the system does not kill the server"
        found.append(Finding(about, "note", "maxmemory is not set", advice))
    elif used > FULL * most:
        says = f"{100 * used // most} % of maxmemory is in use: writes will be refused when it is full"
        found.append(Finding(about, "warning", says, "raise maxmemory, or spread the keys over a cluster"))
    return found


def _persistence(about: str, facts: Mapping[str, str]) -> list[Finding]:
    for what in ("rdb_last_bgsave_status", "aof_last_write_status"):
        if facts.get(what, "ok") != "ok":
            says = f"{what} is {facts[what]}: by default the server refuses all writes until saving works again"
            return [Finding(about, "problem", says, "free disk space and see the server's log")]
    if facts.get("aof_enabled", "0") == "0":
        says = "no append-only file: a restart forgets what was counted since the last snapshot"
        return [Finding(about, "note", says, "set appendonly yes if day and month quotas must survive a restart")]
    return []


def _times(about: str, answers: ServerAnswers) -> list[Finding]:
    found = []
    trip = answers.after - answers.before
    skew = answers.time - (answers.before + answers.after) // 2
    if abs(skew) > SKEW + trip:
        says = f"its clock is {abs(skew) / SECOND:.3g} s {'ahead of' if skew > 0 else 'behind'} this host's"
        found.append(Finding(about, "warning", says, "let NTP set both clocks; counters go by the server's"))
    if trip > ROUND_TRIP:
        says = f"a round trip takes {trip / 1_000:.3g} ms, and a decision waits {ROUND_TRIP // 1_000} ms at most"
        found.append(Finding(about, "warning", says, "move them closer together, or raise store_budget_ms"))
    return found


def _script(about: str, commands: str) -> list[Finding]:
    took = re.search(r"^cmdstat_evalsha:.*?usec_per_call=([\d.]+)", commands, re.MULTILINE)
    if took is None or float(took[1]) <= SCRIPT:
        return []
    says = f"scripts take {float(took[1]) / 1_000:.3g} ms on average, and block the server meanwhile"
    return [Finding(about, "warning", says, "see SLOWLOG for other scripts, and spread the keys over a cluster")]


def of_files(files: Iterable[Owned]) -> list[Finding]:
    """Check who may read secrets and change rules."""
    found = []
    for path, mode, secret in files:
        about = f"file {path}"
        if secret and mode & OTHERS:
            says = f"holds secrets, and its mode {stat.S_IMODE(mode):o} lets other users access it"
            found.append(Finding(about, "problem", says, f"chmod 600 {path}"))
        elif mode & stat.S_IWOTH:
            found.append(Finding(about, "problem", "every user of this machine may change it", f"chmod o-w {path}"))
        else:
            found.append(Finding(about, "fine", f"mode {stat.S_IMODE(mode):o}"))
    return found


def of_packages(installed: Mapping[str, str | None], required: Mapping[str, str]) -> list[Finding]:
    """Check installed versions (None: not installed) against the oldest supported ones."""
    found = []
    for name, version in installed.items():
        oldest = required.get(name, "")
        if version is None:
            advice = "pip install 'penstock[all]', if it is needed here"
            found.append(Finding("packages", "note", f"{name} is not installed", advice))
        elif oldest and _numbers(version) < _numbers(oldest):
            says = f"{name} {version} is too old: expected {oldest} or newer"
            found.append(Finding("packages", "problem", says, f"pip install -U {name}"))
    if worst(found) != "problem":
        there = ", ".join(f"{name} {version}" for name, version in installed.items() if version)
        found.insert(0, Finding("packages", "fine", there))
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def of_service(place: str, status: int, status_of: Mapping[str, object]) -> list[Finding]:
    """Check the reply of `/readyz`."""
    about = f"service {place}"
    degraded = status_of.get("degraded")
    reasons = [str(one) for one in degraded] if isinstance(degraded, list) else []
    if status == 200 and not reasons and status_of.get("status") == "ready":
        return [Finding(about, "fine", "ready")]
    if reasons:
        advice = "see the findings on store and rules; name both to check them"
        return [Finding(about, "warning", f"degraded: {reason}", advice) for reason in reasons]
    if status_of.get("status") == "draining":
        return [Finding(about, "warning", "is draining, and takes no more requests", "use another one")]
    says = f"answers {status}" if status != 200 else "the reply is not that of a service"
    return [Finding(about, "problem", says, "check whether another program listens there")]
