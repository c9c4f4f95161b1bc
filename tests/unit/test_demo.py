"""The tour in the terminal: the same lines as plain text, in colour, and as a picture."""

import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from penstock.quota import RATES
from tools import demo

ANSI_CODES = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class AsciiPipe(io.StringIO):
    """A stream that can carry nothing but ASCII."""

    encoding = "ascii"


def _plain() -> str:
    return "\n".join(demo.plain(line) for line in demo.lines()) + "\n"


@pytest.fixture
def colours_wanted(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return monkeypatch


def test_no_line_is_wider_than_the_page() -> None:
    assert max(len(demo.plain(line)) for line in demo.lines()) <= demo.COLUMNS


def test_it_always_says_the_same() -> None:
    assert list(demo.lines()) == list(demo.lines())


def test_every_algorithm_is_shown_in_every_scene_and_explained() -> None:
    lines = _plain().splitlines()
    for algorithm in RATES:
        assert sum(line.startswith(f"  {algorithm} ") for line in lines) == len(demo.SCENES) + 1


@pytest.mark.parametrize("scene", demo.SCENES, ids=lambda scene: scene.title)
def test_every_algorithm_keeps_its_promise_in_every_scene(scene: demo.Scene) -> None:
    most = {algorithm: demo.run(scene, algorithm).most for algorithm in RATES}
    assert most["rolling_window"] <= demo.LIMIT
    assert most["sliding_window"] < 2 * demo.LIMIT
    assert most["fixed_window"] <= 2 * demo.LIMIT
    assert most["token_bucket"] == most["gcra"] <= 2 * demo.LIMIT


def test_the_scene_at_the_edge_shows_what_its_caption_says() -> None:
    edge = demo.SCENES[2]
    assert all(demo.run(edge, "fixed_window").answers)
    assert demo.run(edge, "rolling_window").answers == (True,) * 10 + (False,) * 10


def test_the_times_above_the_marks_are_the_times_of_the_requests() -> None:
    for scene in demo.SCENES:
        for group in scene.groups:
            hours, minutes, seconds = (int(part) for part in group.label.split(":"))
            assert group.times[0] == (hours - 12) * 3_600 + minutes * 60 + seconds


def test_the_most_in_any_period_is_counted_over_spans_that_leave_their_start_out() -> None:
    assert demo.Run((True,) * 3, (0.0, 5.0, 10.0)).most == 2
    assert demo.Run((True,) * 3, (0.0, 5.0, 9.9)).most == 3


def test_a_terminal_gets_colours_around_the_same_text(colours_wanted: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    demo.write(demo.lines(), terminal)
    assert ANSI_CODES.search(terminal.getvalue())
    lines = ANSI_CODES.sub("", terminal.getvalue()).splitlines()
    assert [line.rstrip() for line in lines] == _plain().splitlines()


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_no_colours_gets_none(
    colours_wanted: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    colours_wanted.setenv(variable, value)
    terminal = Terminal()
    demo.write(demo.lines(), terminal)
    assert terminal.getvalue() == _plain()


def test_a_stream_without_unicode_gets_ascii_of_the_same_width() -> None:
    pipe = AsciiPipe()
    demo.write(demo.lines(), pipe)
    assert pipe.getvalue().isascii()
    assert "  fixed_window     ##########....  ......    ######" in pipe.getvalue()


def test_the_picture_holds_every_word_at_its_column() -> None:
    page = list(demo.lines())
    picture = ElementTree.fromstring(demo.svg(page))
    texts = picture.findall("{http://www.w3.org/2000/svg}text")
    words = [word for line in page for word in demo.plain(line).split()]
    drawn = "".join(text.text or "" for text in texts)
    assert drawn == "".join(words)
    assert all(len((text.get("x") or "").split()) == len(text.text or "") for text in texts)


def test_the_picture_is_written_where_it_is_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "demo.svg"
    demo.main(["--svg", str(target)])
    assert target.read_text(encoding="utf-8") == demo.svg(list(demo.lines()))
    assert capsys.readouterr().out == ""
