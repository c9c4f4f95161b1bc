"""What it costs to ask a shedder, against what a plain decision of the memory store costs."""

from __future__ import annotations

from collections.abc import Iterable

from bench.measure import Effort, Visit, cpu_ns_of_each, interleaved
from bench.report import Figure, Report, Table, Target
from penstock import Limiter, ManualClock, Quota
from penstock.shedding import InFlight, LoopLag, Scaled, Shedder, Signal, Utilisation

CHEAP = Target("asking a shedder, in flight and out again", bar=1_500, unit="ns", at_least=False)
NOT_DEARER = Target("the same, against acquire in memory", bar=1.5, at_least=False)


def measure(effort: Effort) -> Report:
    ways = _ways()
    turns = [["key"] * effort.calls] * effort.rounds
    spreads = interleaved([cpu_ns_of_each(visit, turns) for visit in ways.values()], effort.rounds)
    decision = spreads[0].median
    measured = dict(zip(ways, spreads, strict=True))
    rows = [[name, str(spread), f"{spread.median / decision:.2f} x"] for name, spread in measured.items()]
    report = Report()
    for name, spread in list(measured.items())[1:4]:
        report.figures.append(Figure(CHEAP, name, spread.median))
        report.figures.append(Figure(NOT_DEARER, name, spread.median / decision))
    notes = ["`with shedder.admit(...)` around nothing. Signals are looked at ten times a second; that is in it."]
    report.tables.append(Table("Shedding", ["CPU ns per request", "ns", "÷ acquire"], rows, notes))
    return report


def _ways() -> dict[str, Visit]:
    lone: list[Signal] = [InFlight(100)]
    every: list[Signal] = [InFlight(100), Utilisation(100), LoopLag()]
    return {
        "limiter.acquire(key, quota)": _asking(),
        "InFlight, critical": _passing(Shedder(lone), "critical"),
        "InFlight and reserve, low": _passing(Shedder(lone, reserve=0.2), "low"),
        "all signals and reserve, low": _passing(Shedder(every, reserve=0.2), "low"),
        "all of low is shed": _passing(_shedding(), "low"),
        "scaled()": _scaling(),
    }


def _asking() -> Visit:
    acquire, quota = Limiter().acquire, Quota.parse("1000000/day")

    def visit(turns: Iterable[str]) -> None:
        for key in turns:
            acquire(key, quota)

    return visit


def _passing(shedder: Shedder, priority: str) -> Visit:
    admit = shedder.admit

    def visit(turns: Iterable[str]) -> None:
        for _ in turns:
            with admit(priority):
                pass

    return visit


def _shedding() -> Shedder:
    """A shedder at a level that refuses all of `low`."""
    clock = ManualClock()
    shedder = Shedder(lambda: 2.0, clock=clock)
    while shedder.level < 10:
        clock.advance(0.1)
    return shedder


def _scaling() -> Visit:
    scaled = Scaled("100/minute", "20/minute", InFlight(100))

    def visit(turns: Iterable[str]) -> None:
        for _ in turns:
            scaled()

    return visit
