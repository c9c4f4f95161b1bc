"""A short tour in the terminal: the five algorithms side by side on the same traffic.

    python -m tools.demo                        print it; in colour if this is a terminal and NO_COLOR is not set
    python -m tools.demo --svg picture.svg      draw the same lines as a picture

The clock is a `ManualClock`, so the tour takes no time and always says the same. Lines are spans of styled text;
plain text, ANSI colours and SVG are three ways to write them down.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TextIO, TypeAlias
from xml.sax.saxutils import escape

from penstock.clock import ManualClock
from penstock.limiter import Limiter
from penstock.quota import RATES, Quota

COLUMNS = 100
LIMIT = 10
PERIOD = 10
NOON = 1_767_268_800  # 2026-01-01 12:00:00 UTC, the start of a window

ADMITTED, REFUSED, BAR = "●", "○", "■"
ASCII = str.maketrans({ADMITTED: "#", REFUSED: ".", BAR: "=", "─": "-", "·": "-", "≤": "<=", "×": "x"})

NAME_WIDTH = 17
TIMELINE_WIDTH = 41
TALLY_WIDTH = 11


class Group(NamedTuple):
    """Requests that come together, in seconds after noon, under the clock time that heads them."""

    label: str
    times: tuple[float, ...]

    @property
    def width(self) -> int:
        return max(len(self.label), len(self.times))


class Scene(NamedTuple):
    """One kind of traffic, and what to look for."""

    title: str
    moral: str
    groups: tuple[Group, ...]


def _together(label: str, start: float, count: int) -> Group:
    return Group(label, tuple(start + 0.01 * number for number in range(count)))


def _every(label: str, step: float, first: int, after: int) -> Group:
    return Group(label, tuple(step * number for number in range(first, after)))


SCENES = (
    Scene(
        "Bursts",
        "14 at once, 6, and 6. A bucket refills all the time; a window waits for old units to go.",
        (_together("12:00:04", 4, 14), _together("12:00:09", 9, 6), _together("12:00:12", 12, 6)),
    ),
    Scene(
        "A steady stream, twice too fast",
        "One request every half second. Counted in blocks, or let through one by one?",
        (_every("12:00:00", 0.5, 0, 20), _every("12:00:10", 0.5, 20, 36)),
    ),
    Scene(
        "A burst on both sides of a window's edge",
        "10 at the end of one window, 10 at the start of the next. A fixed window lets all 20 pass.",
        (_together("12:00:19", 19, 10), _together("12:00:21", 21, 10)),
    ),
)

EXPLANATIONS = {
    "fixed_window": "One counter per window. The cheapest; up to 2 × limit around an edge.",
    "sliding_window": "Two counters, the older one fading out. The default: small, and close to the log.",
    "rolling_window": "A log of admissions. Exact: ≤ limit in every span of one period.",
    "token_bucket": "Refills all the time, up to a burst. Over any time t: ≤ burst + rate × t.",
    "gcra": "A token bucket that remembers one instant. The same answers.",
}

NEXT = """\
from penstock import Limiter

limiter = Limiter()
verdict = limiter.acquire("alice", "100/minute")
print(verdict.allowed, verdict.remaining)  # True 99
limiter.acquire("alice", ["10/second burst 20", "1000/hour"], cost=2)  # both or neither
"""


class Run(NamedTuple):
    """The answers of one algorithm in one scene, and the times of its admissions."""

    answers: tuple[bool, ...]
    admitted: tuple[float, ...]

    @property
    def most(self) -> int:
        """The most units admitted in any span of one period."""
        return max(sum(end - PERIOD < time <= end for time in self.admitted) for end in self.admitted)


def run(scene: Scene, algorithm: str) -> Run:
    clock = ManualClock()
    limiter = Limiter(clock=clock)
    quota = Quota(LIMIT, PERIOD, algorithm)
    times = tuple(time for group in scene.groups for time in group.times)
    answers = []
    for time in times:
        clock.set(NOON + time)
        answers.append(bool(limiter.acquire("demo", quota)))
    return Run(tuple(answers), tuple(time for time, answer in zip(times, answers, strict=True) if answer))


# ---------------------------------------------------------------- lines


class Span(NamedTuple):
    """A stretch of text in one style, which is a key of `ANSI` and of `SVG`."""

    text: str
    style: str = "plain"


Line: TypeAlias = tuple[Span, ...]


def lines() -> Iterator[Line]:
    """Return the whole tour."""
    heading = f"Penstock: five algorithms, {LIMIT} requests per {PERIOD} seconds, the same traffic"
    legend = Span(ADMITTED, "yes"), Span(" admitted  "), Span(REFUSED, "no"), Span(" refused")
    yield ()
    yield Span(f"  {heading:<{COLUMNS - 25}}", "title"), *legend
    for scene in SCENES:
        yield _rule()
        yield from _scene_lines(scene)
    yield _rule()
    for algorithm in RATES:
        yield Span(f"  {algorithm:<{NAME_WIDTH}}", "name"), Span(EXPLANATIONS[algorithm])
    yield _rule()
    yield (Span("  Try this next", "title"),)
    for code in NEXT.splitlines():
        statement, mark, comment = code.partition("  # ")
        yield Span(f"    {statement}", "code"), Span(mark + comment, "dim")
    yield ()


def _rule() -> Line:
    return (Span("  " + "─" * (COLUMNS - 4), "dim"),)


def _scene_lines(scene: Scene) -> Iterator[Line]:
    labels = "  ".join(f"{group.label:<{group.width}}" for group in scene.groups)
    yield (Span(f"  {scene.title}", "title"),)
    yield (Span(f"  {scene.moral}", "dim"),)
    columns = f"{'':<{NAME_WIDTH}}{labels:<{TIMELINE_WIDTH}}{'admitted':<{TALLY_WIDTH}}most in any {PERIOD} s"
    yield (Span(f"  {columns}", "dim"),)
    for algorithm in RATES:
        yield _run_line(scene, algorithm)


def _run_line(scene: Scene, algorithm: str) -> Line:
    result = run(scene, algorithm)
    spans = [Span(f"  {algorithm:<{NAME_WIDTH}}", "name")]
    width = 0
    answers = iter(result.answers)
    for group in scene.groups:
        marks = [next(answers) for _ in group.times]
        for answer, same in groupby(marks):
            spans.append(Span((ADMITTED if answer else REFUSED) * len(list(same)), "yes" if answer else "no"))
        spans.append(Span(" " * (group.width - len(marks) + 2)))
        width += group.width + 2
    tally = f"{len(result.admitted):>2} of {len(result.answers)}"
    spans.append(Span(f"{'':<{TIMELINE_WIDTH - width}}{tally:<{TALLY_WIDTH}}{result.most:>2} "))
    spans.append(Span(BAR * min(result.most, LIMIT), "yes"))
    spans.append(Span(BAR * max(result.most - LIMIT, 0), "over"))
    return tuple(spans)


# ---------------------------------------------------------------- three ways to write them down

ANSI = {
    "plain": "",
    "title": "\x1b[1m",
    "name": "\x1b[36m",
    "yes": "\x1b[32m",
    "no": "\x1b[31m",
    "over": "\x1b[33m",
    "dim": "\x1b[2m",
    "code": "\x1b[35m",
}

SVG = {
    "plain": "#c9d1d9",
    "title": "#f0f6fc",
    "name": "#79c0ff",
    "yes": "#56d364",
    "no": "#ff7b72",
    "over": "#e3b341",
    "dim": "#8b949e",
    "code": "#d2a8ff",
}


def plain(line: Line) -> str:
    return "".join(span.text for span in line).rstrip()


def ansi(line: Line) -> str:
    return "".join(f"{ANSI[s.style]}{s.text}\x1b[0m" if ANSI[s.style] else s.text for s in line).rstrip()


def svg(page: Sequence[Line]) -> str:
    """Return the page as SVG. Every character is placed by its column, so that any font fits."""
    column, row, margin = 8.4, 19, 14
    width, height = round(COLUMNS * column + 2 * margin), len(page) * row + 2 * margin
    texts = []
    for number, line in enumerate(page):
        y = margin + number * row + 14
        for at, word, style in _words(line):
            xs = " ".join(f"{margin + (at + index) * column:.1f}" for index in range(len(word)))
            weight = ' font-weight="bold"' if style == "title" else ""
            texts.append(f'<text x="{xs}" y="{y}" fill="{SVG[style]}"{weight}>{escape(word)}</text>')
    body = "\n".join(texts)
    fonts = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{fonts}" font-size="14">
<title>Five rate limiting algorithms side by side on the same traffic</title>
<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>
{body}
</svg>
"""


def _words(line: Line) -> Iterator[tuple[int, str, str]]:
    """Return the words of a line, each with its column and style."""
    column = 0
    for text, style in line:
        for gap, characters in groupby(text, key=str.isspace):
            word = "".join(characters)
            if not gap:
                yield column, word, style
            column += len(word)


def write(page: Iterable[Line], stream: TextIO) -> None:
    coloured = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    text = "\n".join((ansi if coloured else plain)(line) for line in page)
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        text = text.translate(ASCII)
    print(text, file=stream)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description="The algorithms side by side.")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the tour into FILE instead of printing it")
    target = parser.parse_args(arguments).svg
    if target is None:
        write(lines(), sys.stdout)
    else:
        target.write_text(svg(tuple(lines())), encoding="utf-8")


if __name__ == "__main__":
    main()
