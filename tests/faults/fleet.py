"""A fleet of processes on one store: half of them with blocking threads, half with asyncio."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.faults.load import BEHAVIOURS, Answer, read
from tests.faults.node import PATIENCE
from tests.rig.processes import DEADLINE, wait_until

ROOT = Path(__file__).parents[2]
KINDS = ("threads", "tasks")
POOL = 3
CONNECTIONS = {"threads": POOL, "tasks": 2}
"""How many connections a limiter has to a server at most, by kind: an event loop has one, and closes it in its next
turn, when another may have been begun."""

RATE = 60.0
"""Calls a second of each node, so that the machine has time for the servers."""


class Told(NamedTuple):
    """The answers of a fleet for one generation of counters."""

    answers: list[Answer]
    sent: int
    not_sent: int
    hung: int
    faults: list[str]


class Fleet:
    """Nodes on the store at `url`, under load from the beginning to the end."""

    def __init__(self, url: str, folder: Path, nodes: int = 4, rate: float = RATE) -> None:
        self.url, self._folder = url, folder
        self.kinds = [KINDS[number % len(KINDS)] for number in range(nodes)]
        self.names = folder / "names"
        self.resolve(True)
        self._numbers = count(1)
        self.generation = "g0"
        program = (sys.executable, "-m", "tests.faults.node")
        self._nodes = [
            subprocess.Popen(
                (*program, kind, f"node{number}", str(rate), str(self.names)),
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for number, kind in enumerate(self.kinds)
        ]

    def __enter__(self) -> Self:
        try:
            for node in self._nodes:
                self._hear(node)
            self.open()
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

    # ---------------------------------------------------------------- telling nodes

    def tell(self, *lines: str) -> list[Any]:
        """Send a line to all nodes, or one to each, and return the replies."""
        for node, line in zip(self._nodes, lines * (len(self._nodes) // len(lines)), strict=True):
            self._say(node, line)
        return [self._hear(node) for node in self._nodes]

    def tell_one(self, number: int, line: str) -> Any:
        self._say(self._nodes[number], line)
        return self._hear(self._nodes[number])

    def _say(self, node: subprocess.Popen[bytes], line: str) -> None:
        assert node.stdin is not None
        node.stdin.write(line.encode() + b"\n")
        node.stdin.flush()

    def _hear(self, node: subprocess.Popen[bytes]) -> Any:
        assert node.stdout is not None
        patience = DEADLINE + PATIENCE
        if not select.select([node.stdout], [], [], patience)[0]:
            raise TimeoutError(f"waited {patience:g} s in vain for an answer of a node")
        line = node.stdout.readline()
        if not line:
            raise ChildProcessError("a node has ended")
        return json.loads(line)

    # ---------------------------------------------------------------- what they do

    def url_for(self, behaviour: str) -> str:
        """Each behaviour has a namespace of its own: limiters that fall back differently share no limits."""
        return f"{self.url}?secret=of-these-faults&connections={POOL}&namespace={behaviour}"

    def open(self, broken: str | None = None) -> None:
        """Make all limiters anew."""
        urls: dict[str, str | None] = {behaviour: self.url_for(behaviour) for behaviour in BEHAVIOURS}
        self.tell("open " + json.dumps(urls | {"broken": broken}).replace(" ", ""))

    def turn(self) -> Told:
        """Switch to the next generation of counters; return the answers of the previous one."""
        self.generation = f"g{next(self._numbers)}"
        files = [self._folder / f"{self.generation}-{number}" for number in range(len(self._nodes))]
        told = self.tell(*(f"turn {self.generation} {file}" for file in files))
        answers = read(*files)
        for file in files:
            file.unlink()
        sent, not_sent, hung = [sum(each[what] for each in told) for what in ("sent", "not_sent", "hung")]
        return Told(answers, sent, not_sent, hung, [name for each in told for name in each["faults"]])

    def used(self, generation: str) -> dict[str, int]:
        """Return the store's counts of the wide counters."""
        used: dict[str, int] = self.tell_one(0, f"used {generation}")
        return used

    def resolve(self, resolves: bool) -> None:
        """Whether the nodes can resolve the name of the host."""
        if resolves:
            self.names.write_text("127.0.0.1")
        else:
            self.names.unlink()

    # ---------------------------------------------------------------- how they are

    def look(self) -> list[dict[str, Any]]:
        """All limiters of all nodes."""
        return [desk for node in self.tell("look") for desk in node.values()]

    @property
    def is_steady(self) -> bool:
        """Return whether every limiter has had answers of the store only for a while, with closed breakers."""
        return all(
            desk["steady"] and desk["since"] > 0.3 and set(desk["breakers"].values()) <= {"closed"}
            for desk in self.look()
        )

    def refusals(self) -> list[int]:
        """Of the store, to those limiters of each node that enforce limits whatever happens."""
        return [node["local"]["refusals"] for node in self.tell("look")]

    def wait_until_ready(self) -> None:
        """Return when the fleet is steady, and every limiter knows of all others."""
        wait_until(lambda: self.is_steady, "a fleet that the store answers", pause=0.05)
        wait_until(self._knows_itself, "hosts that know of one another", pause=0.1)

    def _knows_itself(self) -> bool:
        known = [node["local"]["hosts"] for node in self.tell("look")]
        return all(number is None or number >= len(self._nodes) for number in known)

    def wait_until_told(self, patience: float = 30.0) -> None:
        """Wait until local admissions have been reported to the store, with a deadline."""
        with suppress(TimeoutError):
            wait_until(lambda: not any(desk["untold"] for desk in self.look()), "reports", pause=0.05, within=patience)

    def most_connections(self) -> int:
        """To one server, at any moment."""
        return sum(CONNECTIONS[kind] for kind in self.kinds) * len(BEHAVIOURS)
