"""What a suite reports: tables, targets and warnings; and how they look as text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title; the notes say what must be known to read them rightly."""

    title: str
    columns: Row
    rows: Sequence[Row]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """What is wanted of all figures of one kind, such as "at least 3 x"."""

    name: str
    bar: float
    goal: float | None = None
    unit: str = "x"
    at_least: bool = True

    def met_by(self, value: float) -> bool:
        return value >= self.bar if self.at_least else value <= self.bar

    def goal_met_by(self, value: float) -> bool:
        if self.goal is None:
            return self.met_by(value)
        return value >= self.goal if self.at_least else value <= self.goal

    def verdict(self, value: float) -> str:
        """The figure, and a word on it."""
        if self.goal is not None and self.goal_met_by(value):
            return f"{self.write(value)} (goal)"
        return f"{self.write(value)} ({'met' if self.met_by(value) else 'NOT met'})"

    def write(self, value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:.2f} x" if self.unit == "x" else f"{value:.0f} {self.unit}".rstrip()

    @property
    def wanted(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.write(self.bar)}"


@dataclass(frozen=True, slots=True)
class Figure:
    """What came out for a target at one place, such as "gcra, one key, denied"."""

    target: Target
    place: str
    value: float


@dataclass(slots=True)
class Report:
    """All that one suite found out."""

    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def summary(reports: Sequence[Report]) -> Table:
    """Each target with its worst figure, and every figure that misses."""
    figures = [figure for report in reports for figure in report.figures]
    warnings = [warning for report in reports for warning in report.warnings]
    rows = []
    missed = []
    for target in dict.fromkeys(figure.target for figure in figures):
        of_target = [figure for figure in figures if figure.target == target]
        worst = (min if target.at_least else max)(of_target, key=lambda figure: figure.value)
        met = [figure for figure in of_target if target.met_by(figure.value)]
        at_goal = [figure for figure in of_target if target.goal_met_by(figure.value)]
        rows.append(
            [
                target.name,
                target.wanted,
                target.write(target.goal),
                f"{target.write(worst.value)}: {worst.place}",
                f"{len(met)} of {len(of_target)}",
                "-" if target.goal is None else f"{len(at_goal)} of {len(of_target)}",
            ]
        )
        below = [f"{figure.place} {target.write(figure.value)}" for figure in of_target if figure not in met]
        if below:
            missed.append(f"NOT met: {target.name} {target.wanted}: {'; '.join(below)}")
    columns = ["target", "wanted", "goal", "worst figure", "met", "goal met"]
    return Table("Summary", columns, rows, [*(missed or ["All targets are met."]), *warnings])


def as_text(table: Table) -> str:
    """A table for the terminal: first column to the left, figures to the right."""
    cells = [list(table.columns), *map(list, table.rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.columns))]
    numeric = [_is_numeric(row[column] for row in table.rows) for column in range(len(table.columns))]

    def line(row: Row) -> str:
        texts = zip(row, widths, numeric, strict=True)
        return "  ".join(text.rjust(width) if right else text.ljust(width) for text, width, right in texts).rstrip()

    ruler = "  ".join("-" * width for width in widths)
    lines = [table.title, "=" * len(table.title), line(table.columns), ruler, *map(line, table.rows)]
    return "\n".join([*lines, *(f"  * {note}" for note in table.notes)])


def as_markdown(table: Table) -> str:
    """A table for docs/results/performance.md."""
    numeric = [_is_numeric(row[column] for row in table.rows) for column in range(len(table.columns))]
    lines = [
        f"### {table.title}",
        "",
        _markdown_row(table.columns),
        _markdown_row("--:" if right else "---" for right in numeric),
        *map(_markdown_row, table.rows),
    ]
    return "\n".join([*lines, *([""] if table.notes else []), *(f"- {note}" for note in table.notes)])


def _markdown_row(row: Iterable[str]) -> str:
    return f"| {' | '.join(row)} |"


def _is_numeric(texts: Iterable[str]) -> bool:
    return all(text[:1].isdigit() or text in {"", "-"} for text in texts)
