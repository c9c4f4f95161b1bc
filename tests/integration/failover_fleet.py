"""A fleet of four processes that goes on asking while its servers fail, and what must be true of it whatever happens.

    with Fleet(cluster, folder) as fleet:
        with fleet.trial("kill -9 of a primary") as trial:      # all four ask; some limits are reached
            cluster.kill_primary(primary)
            trial.redis_is_back()                               # until all four enforce a fresh limit together, exactly
        trial.check(lambda key: 1)                              # so many failovers that may have lost writes of the key

Times are measured and told, in the table at the end of a run, and never asserted: machines stand still.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from penstock.clock import SECOND
from penstock.stores.redis.cluster import WITNESSES
from penstock.testing.history import CallHistory, ObservedCall
from tests.integration.failover_load import DEADLINE as DEADLINE_OF_CALLS
from tests.integration.failover_load import POOL, quota_of
from tests.integration.redis_support import count
from tests.rig.clusters import Cluster
from tests.rig.processes import DEADLINE, wait_until
from tests.rig.sentinels import SentinelSet
from tests.rig.servers import Server
from tests.rig.topologies import come_to_terms

ROOT = Path(__file__).parents[2]
KINDS = ("threads", "tasks", "threads", "tasks")

CONNECTIONS = {"threads": POOL, "tasks": 1}
"""How many connections a node keeps to each server at most, by kind."""

MOST_CONNECTIONS = {"threads": POOL, "tasks": 2}
"""The same at any moment: event loops close a connection in their next turn, when another one may have been begun."""


def evalshas(server: Server) -> int:
    """How many decisions a server was asked for since it started, even if it refused to make them."""
    text = _says(server, "INFO", "commandstats")
    fields = [line.partition(":")[2] for line in text.splitlines() if line.startswith("cmdstat_evalsha:")]
    numbers = dict(pair.split("=") for line in fields for pair in line.split(","))
    return int(numbers.get("calls", 0)) + int(numbers.get("rejected_calls", 0))


class Spending(NamedTuple):
    """What nodes were admitted of some counters until each was refused: for each counter at least, at most."""

    units: dict[str, tuple[int, int]]

    @classmethod
    def of(cls, answers: Sequence[dict[str, tuple[int, int]]]) -> Spending:
        least, most = Counter[str](), Counter[str]()
        for answer in answers:
            for key, (admitted, unknown) in answer.items():
                least[key] += admitted
                most[key] += admitted + unknown
        return cls({key: (least[key], most[key]) for key in answers[0]})

    def check(self) -> None:
        """Raise AssertionError unless all nodes together were admitted exactly the limits, as far as is known."""
        for key, (least, most) in self.units.items():
            limit = quota_of(key).limit
            assert least <= limit <= most, f"{key}: {least} to {most} units admitted, expected exactly {limit}"

    @property
    def is_exact(self) -> bool:
        try:
            self.check()
        except AssertionError:
            return False
        return True


class Fleet:
    """Four processes, half of them with blocking threads and half with asyncio, on one topology."""

    def __init__(self, topology: SentinelSet | Cluster, folder: Path) -> None:
        self.topology = topology
        self.report: Callable[[str, object], None] = lambda name, value: None
        self._folder = folder
        self._trials = 0
        program = (sys.executable, "-m", "tests.integration.failover_load")
        self._nodes = [
            subprocess.Popen(
                (*program, kind, topology.url, f"node{number}"), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for number, kind in enumerate(KINDS)
        ]

    def __enter__(self) -> Self:
        try:
            for node in self._nodes:
                assert self._hear(node) == b"ready\n"
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for node in self._nodes:
            node.kill()
            node.communicate()

    def tell(self, *lines: str) -> list[Any]:
        """What all nodes answer to a line, or each to its own."""
        for node, line in zip(self._nodes, lines * (len(self._nodes) // len(lines)), strict=True):
            assert node.stdin is not None
            node.stdin.write(line.encode() + b"\n")
            node.stdin.flush()
        return [json.loads(self._hear(node)) for node in self._nodes]

    def _hear(self, node: subprocess.Popen[bytes]) -> bytes:
        assert node.stdout is not None
        if not select.select([node.stdout], [], [], DEADLINE)[0]:
            raise TimeoutError(f"waited {DEADLINE:g} s in vain for an answer of a node")
        return node.stdout.readline()

    def spend(self, generation: str, kind: str) -> Spending:
        """What all nodes together are admitted of some counters."""
        return Spending.of(self.tell(f"spend {generation} {kind}"))

    def servers(self) -> tuple[Server, ...]:
        return self.topology.nodes if isinstance(self.topology, Cluster) else self.topology.servers

    def _is_replicated(self) -> bool:
        """Whether replicas have said what they have. Until they do, a second after they came online, they are sent
        nothing: a failover would lose more than one that comes at any other time.
        """
        told = [_says(primary, "INFO", "replication") for primary in self.topology.primaries]
        return not any(",state=online,offset=0," in text for text in told)

    @contextmanager
    def trial(self, fault: str, deadline: float = DEADLINE_OF_CALLS) -> Iterator[Trial]:
        """All nodes ask in this block. In the beginning all is well, and every node was refused beyond the limits."""
        self.topology.wait_until_ok()
        self._trials += 1
        trial = Trial(self, fault, f"g{self._trials}")
        wait_until(trial.enforces, "a fleet that decides together")
        self.tell(f"work {trial.generation} {deadline}")
        self.spend(trial.generation, "spent")
        come_to_terms(self._is_replicated, "replicas that are sent what is written")
        trial.began = CallHistory().now()
        yield trial
        self.spend(trial.generation, "spent")
        trial.check_connections()
        files = [self._folder / f"{trial.generation}-{number}.jsonl" for number in range(len(self._nodes))]
        trial.told = self.tell(*(f"rest {file}" for file in files))
        trial.history = CallHistory.read(*files)


class Trial:
    """What a fleet saw of one fault."""

    def __init__(self, fleet: Fleet, fault: str, generation: str) -> None:
        self._fleet, self._fault, self.generation = fleet, fault, generation
        self._proofs = 0
        self.began = self.back = self.enforced = 0
        self.told: list[dict[str, Any]] = []
        self.history = CallHistory()
        self.notes = ""

    # ---------------------------------------------------------------- while it lasts

    def redis_is_back(self) -> None:
        """Redis itself is: wait until the fleet is, too. Fresh limits are reached exactly, by all together."""
        self.back = CallHistory().now()
        wait_until(self.enforces, "a fleet that enforces again")
        self.enforced = CallHistory().now()

    def enforces(self) -> bool:
        return self.prove().is_exact

    def prove(self) -> Spending:
        """All nodes ask for the units of fresh counters until they are refused."""
        self._proofs += 1
        return self._fleet.spend(self.generation, f"proof-{self._proofs}")

    def go_on(self, calls: int | None = None) -> None:
        """Return when each node has made some more calls."""
        more = count(25, 500) if calls is None else calls
        enough = [made + more for made in self._fleet.tell("count")]
        wait_until(
            lambda: all(made >= goal for made, goal in zip(self._fleet.tell("count"), enough, strict=True)),
            "calls of all nodes",
            pause=0.02,
        )

    @contextmanager
    def leaving_alone(self, server: Server) -> Iterator[None]:
        """Raise AssertionError if anybody asks a server in this block that no longer decides.

        What it was sent before is over when its connections are: it carries out what waits in them, and hangs up.
        """
        wait_until(lambda: not _connections(server), "the end of all connections to the old primary")
        asked = evalshas(server)
        yield
        self.prove().check()
        more = evalshas(server) - asked
        assert more == 0, f"{more} decisions were asked of a server that no longer decides"

    def check_connections(self) -> None:
        """Raise AssertionError if nodes keep more connections to a server than they should."""
        for server in self._fleet.servers():
            if server.awake:
                wait_until(lambda server=server: _are_few(server), "connections that are no more than agreed")  # type: ignore[misc]

    # ---------------------------------------------------------------- afterwards

    def check(self, failovers: Callable[[str], int] = lambda _: 0) -> None:
        """Raise AssertionError if an answer was wrong, too many connections were open, or more was admitted than the
        limit and, for each of so many `failovers` that may have lost what was written of a key, the budget once more.
        """
        self.check_answers()
        self.check_bounds(failovers)
        self.check_refusals()
        self._report()

    def check_answers(self) -> None:
        """Each node has connections to the primaries, to one that is being replaced, and to those that name them.

        A look at a cluster asks several nodes at once, and one that hangs may still be waited for at the next look.
        """
        servers = len(self._fleet.topology.primaries) + 1
        topology = self._fleet.topology
        tellers = 2 * WITNESSES if isinstance(topology, Cluster) else len(topology.sentinels) + 2
        for told, kind in zip(self.told, KINDS, strict=True):
            assert told["wrong"] == []
            most = MOST_CONNECTIONS[kind] * servers + tellers
            assert 0 < told["connections"] <= most, f"{kind}: {told['connections']} connections, at most {most} agreed"

    def check_bounds(self, failovers: Callable[[str], int]) -> None:
        left: dict[str, Counter[str]] = {}
        for told in self.told:
            for key, counts in told["left"].items():
                left.setdefault(key, Counter()).update(counts)
        for key, calls in self.history.by_key().items():
            assert isinstance(key, str)
            quota, times = quota_of(key), failovers(key)
            CallHistory(calls).check(quota, extra=times * quota.limit)
            if quota.algorithm == "fixed_window" and key in left:  # each charge leaves less, so no two leave the same
                remaining, often = left[key].most_common(1)[0]
                assert often <= 1 + times, f"{key}: {often} admissions each left {remaining} units"

    def check_refusals(self) -> None:
        """Every node was refused before the fault and after it."""
        refused = [call for call in self.history.calls if call.outcome == "refused"]
        for number in range(len(KINDS)):
            mine = [call for call in refused if call.node == f"node{number}"]
            assert any(call.returned < self.began for call in mine)
            assert any(call.invoked > self.back for call in mine)

    def admitted(self, key: str) -> int:
        return sum(call.at_least for call in self.history.calls if call.key == key)

    @property
    def excess(self) -> dict[str, int]:
        """Units above the limit, by key."""
        spans = {}
        for key, calls in self.history.by_key().items():
            assert isinstance(key, str)
            worst = CallHistory(calls).worst(quota_of(key))
            spans[key] = max((span.excess for span in worst.values()), default=0)
        return spans

    def _report(self) -> None:
        excess = self.excess
        worst = max(excess, key=lambda key: excess[key] / quota_of(key).limit)
        over = max(excess[worst], 0)
        outcomes = Counter(call.outcome for call in self.history.calls)
        figures = {
            "fault": self._fault,
            "flavour": self._fleet.servers()[0].flavour,
            "outage s": f"{(self.back - self.began) / SECOND:.2f}",
            "enforced after s": f"{(self.enforced - self.back) / SECOND:.2f}",
            "silent s": f"{_longest_silence(self.history.calls, self.began) / SECOND:.2f}",
            "over-admitted": f"{over} of {quota_of(worst).limit}",
            "admitted, refused, failed, unknown": " ".join(
                str(outcomes[kind]) for kind in ("admitted", "refused", "failed", "unknown")
            ),
            "connections": " ".join(str(told["connections"]) for told in self.told),
            "notes": self.notes,
        }
        self._fleet.report("failover", json.dumps(figures))


def _longest_silence(calls: Sequence[ObservedCall], since: int) -> int:
    """The longest time in which some node had no decision on a counter that it kept asking for."""
    longest = 0
    seen: dict[tuple[str, Any], int] = {}
    decided = (call for call in calls if call.outcome in ("admitted", "refused") and call.returned > since)
    for call in sorted(decided, key=lambda call: call.returned):
        if " spent " in str(call.key):
            longest = max(longest, call.returned - seen.get((call.node, call.key), since))
            seen[call.node, call.key] = call.returned
    return longest


def _says(server: Server, *words: str) -> str:
    """What a server tells of itself, even if it is just being given another role, and cuts off who asks."""
    told: list[bytes] = []

    def tells() -> bool:
        told.append(server.ask(*words))
        return True

    come_to_terms(tells, f"what the server on port {server.port} tells of itself")
    return told[-1].decode()


def _connections(server: Server) -> Counter[str]:
    """How many connections each node has to a server."""
    clients = _says(server, "CLIENT", "LIST").splitlines()
    names = (word.removeprefix("name=") for line in clients for word in line.split() if word.startswith("name="))
    return Counter(name for name in names if name.startswith("node"))


def _are_few(server: Server) -> bool:
    """One more than those that decide may be there, to look who decides."""
    counts = _connections(server)
    return all(counts[f"node{number}"] <= CONNECTIONS[kind] + 1 for number, kind in enumerate(KINDS))
