"""`make demo`, as a user meets it."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from tools import demo

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "tools.demo")
UTF8 = {"PYTHONIOENCODING": "utf-8"}


def _in_a_pipe() -> str:
    done = subprocess.run(COMMAND, env=os.environ | UTF8, capture_output=True, timeout=60, check=True)
    assert done.stderr == b""
    return done.stdout.decode()


def _in_a_terminal(**variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= UTF8 | {"TERM": "xterm"} | variables
    ours, its = pty.openpty()
    with subprocess.Popen(COMMAND, env=environment, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        chunks = []
        try:
            while chunk := os.read(ours, 65_536):
                chunks.append(chunk)
        except OSError:  # how Linux says that the other end was closed
            pass
        finally:
            os.close(ours)
        assert process.wait(timeout=60) == 0
    return b"".join(chunks).decode().replace("\r\n", "\n")


def test_a_pipe_gets_the_whole_tour_as_plain_text() -> None:
    output = _in_a_pipe()
    assert "\x1b" not in output
    assert "●●●●●●●●●●○○○○" in output
    assert "Try this next" in output


def test_a_terminal_gets_the_same_in_colour() -> None:
    output = _in_a_terminal()
    assert "\x1b[32m●●●●●●●●●●\x1b[0m\x1b[31m○○○○\x1b[0m" in output
    lines = re.sub(r"\x1b\[[0-9;]*m", "", output).splitlines()
    assert [line.rstrip() for line in lines] == _in_a_pipe().splitlines()


def test_a_terminal_with_no_color_set_gets_plain_text() -> None:
    assert _in_a_terminal(NO_COLOR="1") == _in_a_pipe()


def test_the_code_it_suggests_runs_and_prints_what_it_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemClock, "time_ns", staticmethod(lambda: demo.NOON * 10**9))
    exec(compile(demo.NEXT, "demo.NEXT", "exec"), {})
    comments = re.findall(r"print\(.*\)  # (.+)$", demo.NEXT, re.MULTILINE)
    assert comments
    assert capsys.readouterr().out.splitlines() == comments


def test_the_picture_in_the_documentation_is_the_tour_of_today() -> None:
    picture = (ROOT / "docs" / "images" / "demo.svg").read_text(encoding="utf-8")
    assert picture == demo.svg(list(demo.lines())), "run: python -m tools.demo --svg docs/images/demo.svg"
