"""What `penstock doctor` makes of the facts: what is so, how bad that is, and what to do about it. Pure."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from penstock.clock import SECOND, Micros
from penstock.stores.redis.server_checks import findings as findings_of_checks

Level: TypeAlias = Literal["fine", "note", "warning", "problem"]
"""How bad it is: all is well; good to know; something may go wrong; something is wrong."""

SKEW: Micros = SECOND // 2
"""By how much the clocks of host and server may differ."""

ROUND_TRIP: Micros = 3_000
"""How long a decision of the service may wait for the store."""

SCRIPT: Micros = 1_000
FULL = 0.9
OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Finding(NamedTuple):
    """One thing that was looked at. `advice` is empty where there is nothing to do."""

    about: str
    level: Level
    says: str
    advice: str = ""


class ServerAnswers(NamedTuple):
    """What a server of the store said.

    - `checks`: its answers to `penstock.stores.redis.server_checks.QUESTIONS`.
    - `before`, `time`, `after`: our clock, its clock, our clock.
    - `commands`: INFO commandstats.
    """

    checks: Sequence[object]
    before: Micros
    time: Micros
    after: Micros
    commands: str = ""


class Owned(NamedTuple):
    """A file, who may do what with it, and whether it holds a secret."""

    path: str
    mode: int
    secret: bool


def worst(findings: Iterable[Finding]) -> Level:
    """The level that decides how the command ends."""
    levels: tuple[Level, ...] = ("fine", "note", "warning", "problem")
    return max((finding.level for finding in findings), key=levels.index, default="fine")


def of_server(place: str, asked: ServerAnswers) -> list[Finding]:
    """One server of the store."""
    about = f"redis {place}"
    found = [_of_check(about, said) for said in findings_of_checks(asked.checks)]
    info = asked.checks[0]
    if not isinstance(info, bytes):
        return [one._replace(level="warning") for one in found] + _times(about, asked)
    facts = dict(re.findall(r"^(\w+):(.*?)\r?$", info.decode(errors="replace"), re.MULTILINE))
    found += _memory(about, facts) + _persistence(about, facts) + _times(about, asked) + _script(about, asked.commands)
    if worst(found) in ("fine", "note"):
        found.insert(
            0, Finding(about, "fine", f"{_version(facts)}, {facts.get('role', 'master')}, all settings are good")
        )
    return found


def parted(said: str) -> tuple[str, str]:
    """What is so, and what to set: behind the last semicolon, or in the brackets at the end."""
    says, _, advice = said.rpartition("; ")
    if not says and said.endswith(")"):
        says, _, advice = said[:-1].rpartition(" (")
    return (says, advice) if says else (said, "")


def _of_check(about: str, said: str) -> Finding:
    """What the store says of a server when it connects. A version may have been mended by whoever packaged it."""
    return Finding(about, "warning" if "CVE-" in said else "problem", *parted(said))


def _version(facts: Mapping[str, str]) -> str:
    name = "valkey" if "valkey_version" in facts else "redis"
    return f"{name} {facts.get(f'{name}_version', 'of unknown version')}"


def _memory(about: str, facts: Mapping[str, str]) -> list[Finding]:
    found = []
    most, used = int(facts.get("maxmemory", "0")), int(facts.get("used_memory", "0"))
    evicted = int(facts.get("evicted_keys", "0"))
    if evicted:
        says = f"{evicted} keys were evicted since it started: their limits started over unnoticed"
        found.append(Finding(about, "problem", says, "give it more memory, and set maxmemory-policy noeviction"))
    if most == 0:
        advice = "set maxmemory below what the machine has, so that the system does not end the server instead"
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


def _times(about: str, asked: ServerAnswers) -> list[Finding]:
    found = []
    trip = asked.after - asked.before
    skew = asked.time - (asked.before + asked.after) // 2
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
    says = f"scripts take {float(took[1]) / 1_000:.3g} ms on average, and nothing else runs meanwhile"
    return [Finding(about, "warning", says, "see SLOWLOG for others' scripts, and spread the keys over a cluster")]


def of_files(files: Iterable[Owned]) -> list[Finding]:
    """Who may read secrets, and change what decides."""
    found = []
    for path, mode, secret in files:
        about = f"file {path}"
        if secret and mode & OTHERS:
            says = f"holds secrets, and its mode {stat.S_IMODE(mode):o} lets others at it"
            found.append(Finding(about, "problem", says, f"chmod 600 {path}"))
        elif mode & stat.S_IWOTH:
            found.append(Finding(about, "problem", "everybody on this machine may change it", f"chmod o-w {path}"))
        else:
            found.append(Finding(about, "fine", f"mode {stat.S_IMODE(mode):o}"))
    return found


def of_packages(installed: Mapping[str, str | None], required: Mapping[str, str]) -> list[Finding]:
    """Versions that are there, and the oldest that will do; None for what is not there."""
    found = []
    for name, version in installed.items():
        oldest = required.get(name, "")
        if version is None:
            advice = "pip install 'penstock[all]', if it is needed here"
            found.append(Finding("packages", "note", f"{name} is not installed", advice))
        elif oldest and _numbers(version) < _numbers(oldest):
            says = f"{name} {version} is older than what is tested: expected {oldest} or newer"
            found.append(Finding("packages", "problem", says, f"pip install -U {name}"))
    if worst(found) != "problem":
        there = ", ".join(f"{name} {version}" for name, version in installed.items() if version)
        found.insert(0, Finding("packages", "fine", there))
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def of_service(place: str, status: int, told: Mapping[str, object]) -> list[Finding]:
    """What `/readyz` said."""
    about = f"service {place}"
    degraded = told.get("degraded")
    reasons = [str(one) for one in degraded] if isinstance(degraded, list) else []
    if status == 200 and not reasons and told.get("status") == "ready":
        return [Finding(about, "fine", "ready")]
    if reasons:
        advice = "what it says of the store or of the rules has a line of its own here, if you name both"
        return [Finding(about, "warning", f"degraded: {reason}", advice) for reason in reasons]
    if told.get("status") == "draining":
        return [Finding(about, "warning", "is about to stop, and takes no more requests", "ask another one")]
    says = f"answers {status}" if status != 200 else "answers what no service says"
    return [Finding(about, "problem", says, "see whether something else listens there")]
