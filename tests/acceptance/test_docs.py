"""What the README and the documentation say is true: examples run, timelines replay, figures are measured."""

from __future__ import annotations

import ast
import asyncio
import inspect
import math
import random
import re
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock import Limiter, ManualClock, Quota, Verdict
from penstock.clock import SECOND, SystemClock
from penstock.quota import ALGORITHMS, CALENDAR, CONCURRENCY, RATES
from tests.rig.servers import Server
from tests.service.client_support import service
from tests.service.harness import serving
from tests.unit.middleware import django_shop  # noqa: F401  Django wants settings before its parts are imported

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", ROOT / "tests/README.md", *sorted(DOCS.rglob("*.md")))
NOON = 1_767_268_800  # 2026-01-01 12:00:00 UTC
MINUTE = 60
OWN_SERVER = "redis://localhost:6379"
OWN_SERVICE = 'Client("http://localhost:8080"'


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _tables(text: str, header: str) -> list[list[list[str]]]:
    """The cells of every table under exactly this header row."""
    tables = re.findall(rf"^{re.escape(header)}\n\|[-:| ]+\|\n((?:\|.*\|\n?)+)", text, re.MULTILINE)
    return [[[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()] for rows in tables]


def _percent(cell: str) -> float:
    return float(cell.removesuffix(" %").replace("−", "-")) / 100


# ---------------------------------------------------------------- examples


class Example(NamedTuple):
    """One fenced block of Python, and the line of the page on which it starts."""

    line: int
    code: str


def _examples(page: Path) -> list[Example]:
    text = _text(page)
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Example(text.count("\n", 0, block.start(1)) + 1, block.group(1)) for block in found]


@contextmanager
def _service(page: Path) -> Iterator[str]:
    """A service with the rules that the page shows."""
    (rules,) = re.findall(r"^```yaml\n(.*?)^```$", _text(page), re.MULTILINE | re.DOTALL)
    with serving(service(rules=rules)) as running:
        yield running.url


class Reader:
    """Runs the examples of one page from top to bottom, as one would type them in, and notes what each line prints."""

    def __init__(self, page: Path, server: str = "", service: str = "") -> None:
        self.page = page
        self.server, self.service = server, service  # the URLs of those that stand in for the reader's own
        self.printed: dict[int, str] = {}
        self.namespace: dict[str, object] = {"__name__": "__docs__", "print": self._print}

    def run(self, example: Example) -> None:
        code = re.sub(r"\bdeadline=[\d.]+", "deadline=30", example.code)
        code = code.replace(f"{OWN_SERVER}/0?", f"{self.server}/0?deadline=30&").replace(OWN_SERVER, self.server)
        code = code.replace(OWN_SERVICE, f'Client("{self.service}", timeout=30')
        source = "\n" * (example.line - 1) + code  # so that a traceback names the page's own line
        compiled = compile(source, str(self.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        awaited = eval(compiled, self.namespace)
        if inspect.iscoroutine(awaited):
            asyncio.run(awaited)

    def _print(self, *values: object) -> None:
        line = sys._getframe(1).f_lineno
        text = " ".join(str(value) for value in values)
        self.printed[line] = f"{self.printed[line]}, then {text}" if line in self.printed else text


def _said(example: Example) -> Iterator[tuple[int, str]]:
    """Each line that prints, and what the comment at its end says it prints."""
    for number, line in enumerate(example.code.splitlines(), start=example.line):
        if comment := re.match(r"\s*print\(.*\)  # (.+)$", line):
            yield number, comment.group(1)


@pytest.mark.parametrize("page", [page for page in PAGES if _examples(page)], ids=lambda page: page.name)
def test_examples_run_and_print_what_their_comments_say(
    page: Path, monkeypatch: pytest.MonkeyPatch, running_servers: dict[str, Server]
) -> None:
    clock = ManualClock(NOON)
    monkeypatch.setattr(SystemClock, "time_ns", staticmethod(clock.time_ns))  # no window may turn while we read
    said: dict[int, str] = {}
    with ExitStack() as standing_in:
        server = running_servers["valkey"].url if OWN_SERVER in _text(page) else ""
        url = standing_in.enter_context(_service(page)) if OWN_SERVICE in _text(page) else ""
        reader = Reader(page, server, url)
        for example in _examples(page):
            reader.run(example)
            said.update(_said(example))
    assert {line: reader.printed.get(line) for line in said} == said


def test_the_readme_shows_an_example() -> None:
    assert any("acquire(" in example.code for example in _examples(ROOT / "README.md"))


def test_a_wrong_comment_in_an_example_is_noticed() -> None:
    example = Example(1, "print(1 + 1)  # 3\n")
    reader = Reader(ROOT / "README.md")
    reader.run(example)
    assert dict(_said(example)) == {1: "3"}
    assert reader.printed == {1: "2"}


# ---------------------------------------------------------------- timelines

TIMELINE_HEADER = "| time | cost | answer | remaining | retry after | why |"


class Timeline(NamedTuple):
    """A quota, and the rows of its table."""

    quota: str
    rows: list[list[str]]

    def replayed(self) -> Iterator[tuple[list[str], Verdict]]:
        clock = ManualClock()
        limiter = Limiter(clock=clock)
        for row in self.rows:
            hours, minutes, seconds = (int(part) for part in row[0].split(":"))
            clock.set(NOON + (hours - 12) * 3_600 + minutes * MINUTE + seconds)
            yield row, limiter.acquire("reader", self.quota, cost=int(row[1]))


def _timelines() -> list[Timeline]:
    text = _text(DOCS / "choosing.md")
    quotas = re.findall(rf"^Timeline of `(.+)`(?: \(.+\))?:\n\n{re.escape(TIMELINE_HEADER)}$", text, re.MULTILINE)
    return [Timeline(quota, rows) for quota, rows in zip(quotas, _tables(text, TIMELINE_HEADER), strict=True)]


def _cells(verdict: Verdict) -> list[str]:
    wait = f"{math.ceil(verdict.retry_after_us / 1_000) / 1_000:g} s"
    return ["yes" if verdict else "no", str(verdict.remaining), "–" if verdict else wait]


def _most_in_a_minute(timeline: Timeline) -> int:
    admitted = [(verdict.at_us, verdict.cost) for _, verdict in timeline.replayed() if verdict]
    return max(sum(cost for at, cost in admitted if end - MINUTE * SECOND < at <= end) for end, _ in admitted)


@pytest.mark.parametrize("timeline", _timelines(), ids=lambda timeline: timeline.quota)
def test_every_row_of_a_timeline_is_what_the_code_answers(timeline: Timeline) -> None:
    for row, verdict in timeline.replayed():
        assert row[2:5] == _cells(verdict), row[0]


def test_every_algorithm_has_a_timeline() -> None:
    assert {Quota.parse(timeline.quota).algorithm for timeline in _timelines()} == {*ALGORITHMS, CALENDAR, CONCURRENCY}


def test_a_timeline_says_when_a_delayed_request_starts() -> None:
    rows = [(row, verdict) for timeline in _timelines() for row, verdict in timeline.replayed() if verdict.delay_us]
    assert len(rows) >= 5
    for row, verdict in rows:
        start = datetime.fromtimestamp((verdict.at_us + verdict.delay_us) / SECOND, UTC)
        assert f"starts at {start:%H:%M:%S}" in row[5], row[0]


def test_the_worst_cases_shown_are_the_worst_cases_stated() -> None:
    most = {timeline.quota: 0 for timeline in _timelines()}
    for timeline in _timelines():
        most[timeline.quota] = max(most[timeline.quota], _most_in_a_minute(timeline))
    assert most["4/minute fixed_window"] == 2 * 4
    assert most["4/minute sliding_window"] == 2 * 4 - 1
    assert most["4/minute rolling_window"] == 4
    assert most["4/minute token_bucket"] <= 4 + 4
    assert most["4/minute burst 8"] <= 8 + 4


def test_every_quota_the_pages_quote_can_be_read() -> None:
    quoted = [text for page in PAGES for text in re.findall(r'`"(\d[^"`]*/[^"`]*)"`', _text(page))]
    assert len(quoted) > 10
    for text in quoted:
        Quota.parse_all(text)


# ---------------------------------------------------------------- figures


def _sustained(quota: Quota) -> float:
    """The share of its rate that a quota admits under a perfectly steady load of twice that rate."""
    clock = ManualClock(NOON)
    limiter = Limiter(clock=clock)
    periods, left_out = 60, 20
    admitted = 0
    for number in range(2 * quota.limit * periods):
        clock.set(NOON + number * quota.period / (2 * quota.limit))
        verdict = limiter.acquire("steady", quota)
        if verdict and number >= 2 * quota.limit * left_out:
            admitted += 1
    return admitted / (quota.limit * (periods - left_out))


@pytest.mark.untraced
def test_the_sustained_rates_are_what_is_measured() -> None:
    (rows,) = _tables(_text(DOCS / "choosing.md"), "| limit | sliding_window | rolling_window | gcra |")
    for limit, *cells in rows:
        for algorithm, cell in zip(("sliding_window", "rolling_window", "gcra"), cells, strict=True):
            measured = _sustained(Quota(int(limit), MINUTE, algorithm))
            assert measured == pytest.approx(_percent(cell), abs=0.0005), f"{limit}/minute {algorithm}"


class Accuracy(NamedTuple):
    """How `sliding_window` compares with the exact log."""

    admitted: float
    mean_error: float
    most: float


def _accuracy(limit: int, load: float, *, requests: int = 50_000, seed: int = 1) -> Accuracy:
    """`sliding_window` and `rolling_window` on the same Poisson traffic of `load` times the limit."""
    arrivals = random.Random(seed)
    clock = ManualClock(NOON)
    limiter = Limiter(clock=clock)
    sliding, rolling = Quota(limit, MINUTE), Quota(limit, MINUTE, "rolling_window")
    log: deque[int] = deque()  # what sliding_window admitted in the last period
    admitted = admitted_by_log = error = most = 0
    for _ in range(requests):
        clock.advance(arrivals.expovariate(limit * load / MINUTE))
        verdict = limiter.acquire("random", sliding)
        admitted_by_log += bool(limiter.acquire("random", rolling))
        while log and log[0] <= verdict.at_us - sliding.period_us:
            log.popleft()
        if verdict:
            admitted += 1
            log.append(verdict.at_us)
        most = max(most, len(log))
        error += abs(limit - verdict.remaining - len(log))
    return Accuracy(admitted / admitted_by_log - 1, error / requests / limit, most / limit)


@pytest.mark.untraced
def test_the_accuracy_of_sliding_window_is_what_is_measured() -> None:
    header = "| limit | load | admitted, compared with the log | mean error of the estimate | most in any period |"
    (rows,) = _tables(_text(DOCS / "choosing.md"), header)
    assert len(rows) == 9
    for limit, load, *cells in rows:
        measured = _accuracy(int(limit), _percent(load))
        said = Accuracy(*(_percent(cell) for cell in cells))
        assert measured.admitted == pytest.approx(said.admitted, abs=0.001), (limit, load)
        assert measured.mean_error == pytest.approx(said.mean_error, abs=0.001), (limit, load)
        assert measured.most == pytest.approx(said.most, abs=0.01), (limit, load)


def test_counting_what_is_denied_refuses_a_steady_overload_entirely_except_in_fixed_windows() -> None:
    for algorithm in RATES:
        clock = ManualClock(NOON)
        limiter = Limiter(clock=clock)
        quota = Quota(10, MINUTE, algorithm, count_denied=True)
        answers = []
        for number in range(11 * 40):
            clock.set(NOON + number * MINUTE / 11)
            answers.append(bool(limiter.acquire("steady", quota)))
        assert any(answers[11 * 20 :]) == (algorithm == "fixed_window"), algorithm


# ---------------------------------------------------------------- the pages themselves


def test_the_readme_is_short() -> None:
    assert len(_text(ROOT / "README.md").splitlines()) <= 150


def test_links_to_files_lead_somewhere() -> None:
    for page in (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", _text(page)):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_commands_that_the_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", _text(ROOT / "Makefile"), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z-]+)", _text(page)))
        assert named <= targets, f"{page.name}: {named - targets}"


def test_the_architecture_page_names_every_module() -> None:
    text = _text(DOCS / "architecture.md")
    package = ROOT / "src" / "penstock"
    modules = {f"{path.name}/" for path in package.iterdir() if (path / "__init__.py").exists()}
    modules |= {path.name for path in package.glob("*.py")}
    assert {module for module in modules if f"`{module}`" not in text} == set()


def test_modules_that_the_architecture_page_names_exist() -> None:
    patterns = ("src/penstock/**/*.py", "src/penstock/**/*.lua", "tests/**/*.py", "tools/*.py")
    files = [f"/{path.relative_to(ROOT).as_posix()}" for pattern in patterns for path in ROOT.glob(pattern)]
    named = re.findall(r"`([\w/]+(?:\.py|\.lua|/))`", _text(DOCS / "architecture.md"))
    assert len(named) > 100
    for name in named:
        assert any(f"/{name}" in file if name.endswith("/") else file.endswith(f"/{name}") for file in files), name
