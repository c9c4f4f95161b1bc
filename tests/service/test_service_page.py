"""docs/service.md is true: its rules are in force, its commands are run, and what it shows is what is answered."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.service.wire.calls import Call, Head
from tests.rig.processes import DEADLINE, wait_until
from tests.service.apis import over_memory
from tests.service.harness import Running, serving

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
PLACE = "localhost:8080"
END = "\x1e"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def steps(block: str) -> list[tuple[str, str]]:
    """Commands, and what is printed after each."""
    return [
        (command, shown)
        for command, _, shown in (step.partition("\n") for step in re.split(r"^\$ ", block, flags=re.M)[1:])
    ]


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    (rules,) = blocks("yaml")
    with over_memory(rules) as running:
        yield running


def ran(commands: list[str], service: Running) -> list[str]:
    """What each printed, in one shell."""
    place = f"127.0.0.1:{service.port}"
    script = "\n".join(f"{command.replace(PLACE, place)}\nprintf '{END}'" for command in commands)
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, timeout=DEADLINE)
    return done.stdout.decode().split(END)[:-1]


def alike(text: str) -> Any:
    """What is shown, without what differs from time to time."""
    try:
        return without_times(json.loads(text))
    except ValueError:
        return text.strip()


def without_times(shown: Any) -> Any:
    if isinstance(shown, list):
        return [without_times(each) for each in shown]
    if not isinstance(shown, dict):
        return shown
    plain = {name: without_times(value) for name, value in shown.items()}
    for name, kind in {"version": str, "reset_after": float}.items():
        if name in plain:
            assert isinstance(plain[name], kind)
            plain[name] = "..."
    if "RateLimit" in plain:
        plain["RateLimit"] = re.sub(r"t=\d+", "t=...", plain["RateLimit"])
    return plain


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.split("\n")[0][:60])
def test_commands_print_what_the_page_shows(block: str, service: Running) -> None:
    expected = steps(block)
    printed = ran([command for command, _ in expected], service)
    assert [alike(text) for text in printed] == [alike(shown) for _, shown in expected]


def test_the_page_names_every_call_and_every_code(service: Running) -> None:
    described = httpx.get(f"{service.url}/v1/openapi.json").json()
    for path in described["paths"]:
        assert path.replace("{path}", "*").removeprefix("/v1/") in PAGE, path
    source = "".join(path.read_text() for path in (Path(__file__).parents[2] / "src/penstock/service").rglob("*.py"))
    codes = set(re.findall(r"Unacceptable\(\d+, \"(\w+)\"", source)) | set(re.findall(r"\"(invalid_\w+)\"", source))
    assert codes
    assert {code for code in codes if f"`{code}`" not in PAGE} <= {"invalid_input"}


class Application:
    """What stands behind nginx."""

    HEAD = Head(200)

    def handle(self, calls: list[Call]) -> None:
        for call in calls:
            call.answer(self.HEAD, b"served")


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_works_as_the_page_shows(tmp_path: Path) -> None:
    rules = "rules: [{id: pages, match: {path: {prefix: /api}}, key: ip, quota: 2/day}]"
    (locations,) = blocks("nginx")
    with over_memory(rules) as service, serving(Application()) as application:
        locations = locations.replace("127.0.0.1:8080", f"127.0.0.1:{service.port}")
        locations = locations.replace("http://application", application.url)
        socket = tmp_path / "nginx.sock"
        folders = "".join(
            f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (tmp_path / "nginx.conf").write_text(
            f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/errors; events {{}}\n"
            f"http {{ access_log off; {folders} server {{ listen unix:{socket}; {locations} }} }}"
        )
        nginx = subprocess.Popen(["nginx", "-e", f"{tmp_path}/errors", "-c", f"{tmp_path}/nginx.conf"])
        try:
            wait_until(socket.exists, "nginx to listen")
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), timeout=DEADLINE) as client:
                answers = [client.get("http://shop.example/api/x") for _ in range(3)]
        finally:
            nginx.terminate()
            nginx.wait(DEADLINE)
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].text == "served"
