"""One Redis, Sentinel and Cluster on one machine: decisions per second, and how many of them a script call carries.

A script call must keep to one slot, so a cluster gets a call per partition where one server gets a call per turn. Few
partitions make long calls; many spread over more servers. All servers and whoever asks share the machine's cores.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench.measure import Effort, Spread, interleaved
from bench.redis_rig import Contender, Cores, a_server, described, penstock
from bench.report import Figure, Report, Table, Target
from penstock.stores.redis.keys import DEFAULT_PARTITIONS
from tests.rig.clusters import Cluster
from tests.rig.sentinels import SentinelSet
from tests.rig.servers import Server

TASKS = 512
ALGORITHM = "sliding_window"
NODES = (3, 6, 12)
PARTITIONS = (16, DEFAULT_PARTITIONS, 64, 256, 1_024)

OF_ONE = Target(f"share of one Redis' decisions/s at {TASKS} tasks, on a cluster of 3", bar=80, unit="%")
FLAT = Target("cost of a decision on 12 nodes, against 3", bar=1.3, at_least=False)
SENTINEL = Target("share of one Redis' decisions/s, behind Sentinels", bar=90, unit="%")


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere to ask."""

    name: str
    url: str
    servers: Sequence[Server]

    def calls(self) -> int:
        """Script calls so far."""
        told = [server.ask("INFO", "commandstats").decode() for server in self.servers]
        return sum(int(calls) for text in told for calls in re.findall(r"cmdstat_evalsha:calls=(\d+)", text))


def measure(effort: Effort) -> Report:
    with ExitStack() as stack:
        one = stack.enter_context(a_server(Cores()))
        watched = stack.enter_context(SentinelSet(one.flavour, replicas=0))
        clusters = {
            nodes: stack.enter_context(Cluster(one.flavour, primaries=nodes, replicas=0, node_timeout=15_000))
            for nodes in NODES
        }
        places = [Place(described(one), one.url, [one]), Place("behind Sentinels", watched.url, watched.servers)]
        places += [Place(f"cluster of {nodes}", cluster.url, cluster.nodes) for nodes, cluster in clusters.items()]
        three = clusters[NODES[0]]
        places += [
            Place(f"cluster of {NODES[0]}, {number:,} partitions", f"{three.url}?partitions={number}", three.nodes)
            for number in PARTITIONS
            if number != DEFAULT_PARTITIONS
        ]
        workers = [stack.enter_context(penstock("asyncio", place, [ALGORITHM])) for place in places]
        asked = [worker.contenders[0] for worker in workers]
        rates = interleaved([each.rate(TASKS, effort.seconds, Cores()) for each in asked], effort.rounds)
        calls = [_calls(place, contender, effort) for place, contender in zip(places, asked, strict=True)]
    return _report(places, rates, calls)


def _calls(place: Place, contender: Contender, effort: Effort) -> float:
    """Script calls per 1,000 decisions."""
    before = place.calls()
    decisions = contender.rate(TASKS, effort.seconds, Cores())(0) * effort.seconds
    return 1_000 * (place.calls() - before) / decisions


def _report(places: Sequence[Place], rates: Sequence[Spread], calls: Sequence[float]) -> Report:
    one = rates[0].median
    rows = [
        [place.name, str(rate), f"{100 * rate.median / one:.0f} %", f"{call:.0f}"]
        for place, rate, call in zip(places, rates, calls, strict=True)
    ]
    flat = rates[2].median / rates[2 + len(NODES) - 1].median
    figures = [
        Figure(SENTINEL, ALGORITHM, 100 * rates[1].median / one),
        Figure(OF_ONE, ALGORITHM, 100 * rates[2].median / one),
        Figure(FLAT, ALGORITHM, flat),
    ]
    notes = [
        f"{ALGORITHM}, allowed, 1,000 users in turn, {DEFAULT_PARTITIONS} partitions unless said otherwise.",
        "No replicas. Servers and the process that asks are not pinned: with few cores, more nodes are not more power.",
        f"A decision on {NODES[-1]} nodes costs {flat:.2f} x what it costs on {NODES[0]}.",
    ]
    columns = ["asyncio", "decisions/s", "of one", "script calls per 1,000 decisions"]
    return Report([Table(f"Redis, topologies at {TASKS} tasks", columns, rows, notes)], figures)
