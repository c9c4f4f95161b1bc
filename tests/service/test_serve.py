"""`penstock serve`, as somebody meets it who has just installed it."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import select
import signal
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from penstock.cli.serve import EXAMPLE
from penstock.service.sockets import ListenAddress, ListeningSockets
from tests.rig.certificates import Certificate, can_make_certificates
from tests.rig.processes import DEADLINE, wait_until
from tests.rig.servers import Server
from tests.service.serving import CHECK, PATIENT, ROOT, Serving

TOKEN = "a token of some length".replace(" ", "-")


def _allowed(service: Serving, **descriptor: str) -> bool:
    with service.client() as client:
        return bool(client.post("/v1/check", json={"descriptor": descriptor}).json()["allowed"])


def test_serve_in_an_empty_folder_writes_example_rules_and_prints_a_call() -> None:
    with Serving(rules=None) as service:
        (line,) = service.wait_for(r"\n  (curl .*)\n")
        assert (service.place.folder / "penstock.yaml").read_text() == EXAMPLE
        answers = [subprocess.check_output(["/bin/sh", "-c", line], text=True, timeout=DEADLINE) for _ in range(6)]
        assert ['"allowed":true' in answer for answer in answers] == [True] * 5 + [False]
        service.signal(signal.SIGTERM)
        assert service.ended() == 0


def test_existing_rules_are_kept_and_followed() -> None:
    rules = "rules:\n  - {id: api, key: ip, quota: 1/hour}\n"
    with Serving(rules=rules) as service:
        assert [_allowed(service, ip="192.0.2.1") for _ in range(2)] == [True, False]
        assert (service.place.folder / "penstock.yaml").read_text() == rules
        (service.place.folder / "penstock.yaml").write_text(rules.replace("1/hour", "2/hour"))
        service.wait_for("rules are in force", 2)
        assert [_allowed(service, ip="192.0.2.1") for _ in range(2)] == [True, False], (
            "one more, and what was used stays"
        )


def test_service_connects_to_its_store_before_it_is_ready() -> None:
    """Who asked first would be answered without the store: there is no time to connect within a decision."""
    with Server() as store:
        with Serving("--store", f"{store.url}?secret=of-these-tests", *PATIENT) as service:
            service.wait_for("listening on")
            with store.talk() as conversation:
                assert b"cmdstat_eval" in conversation.ask("INFO", "commandstats")
        with Serving("--store", "redis://127.0.0.1:1/0?secret=of-these-tests") as service, service.client() as client:
            assert client.post("/v1/check", json=CHECK).json()["source"] == "local", "nor is it stopped by a dead one"


def test_reload_reads_a_file_without_a_second_look() -> None:
    with Serving() as service, service.client() as client:
        (service.place.folder / "penstock.yaml").write_text("rules: [")
        service.signal(signal.SIGHUP)
        service.wait_for("rules were refused")
        told = client.get("/readyz")
        assert (told.status_code, told.json()["status"]) == (200, "degraded")
        assert client.post("/v1/check", json=CHECK).json()["allowed"], "the rules before stay in force"


def test_early_reload_waits_for_its_handler(tmp_path: Path) -> None:
    """Without a handler SIGHUP ends a process, and whoever restarts services takes that for a clean end."""
    config = tmp_path / "service.toml"
    os.mkfifo(config)  # so it stands still while it starts
    with Serving("--config", str(config)) as service:
        opened: list[int] = []

        def is_read() -> bool:
            with suppress(OSError):
                opened.append(os.open(config, os.O_WRONLY | os.O_NONBLOCK))
            return bool(opened)

        wait_until(is_read, "somebody to read the settings", pause=0.01)
        service.signal(signal.SIGHUP)
        os.close(opened[0])
        service.wait_for("listening on")
        service.wait_for("rules are in force", 2)


def test_refused_keys_are_reported_and_the_old_ones_stay(tmp_path: Path) -> None:
    keys = tmp_path / "keys.csv"
    head, row = "hash,owner,tier,status\n", f"{'5f' * 16},acme,,active\n"
    keys.write_text(head + row, encoding="utf-8")
    with Serving("--keys", str(keys), PENSTOCK_KEYS_SECRET="of-the-tests-alone") as service, service.client() as client:
        assert client.get("/readyz").json()["degraded"] == []
        for bad in (head + row + row, head + "nothing\n"):
            keys.write_text(bad, encoding="utf-8")
            service.signal(signal.SIGHUP)
            refused = ["keys: the file was refused"]
            wait_until(lambda: client.get("/readyz").json()["degraded"] == refused, "bad keys to be seen", pause=0.02)  # noqa: B023
            keys.write_text(head + row, encoding="utf-8")
            service.signal(signal.SIGHUP)
            wait_until(lambda: client.get("/readyz").json()["degraded"] == [], "good keys", pause=0.02)
        service.wait_for("keys were refused, and stay as they were: ", 2)
        assert "5f5f" not in service.said


def test_call_under_way_is_answered_before_the_service_ends() -> None:
    with Serving() as service:
        with service.client() as client:
            assert client.get("/livez").status_code == 200  # the connection stays open, and is told
            service.signal(signal.SIGTERM)
            service.wait_for("draining")
            assert client.post("/v1/check", json=CHECK).headers["connection"] == "close"
        assert service.ended() == 0


def test_tokens_protect_everything_but_health() -> None:
    with Serving(PENSTOCK_TOKENS=TOKEN) as service, service.client() as client:
        assert {
            path: client.get(path).status_code for path in ("/livez", "/readyz", "/metrics", "/v1/openapi.json")
        } == {
            "/livez": 200,
            "/readyz": 200,
            "/metrics": 401,
            "/v1/openapi.json": 401,
        }
        assert client.post("/v1/check", json=CHECK).status_code == 401
        shown = {"authorization": f"Bearer {TOKEN}"}
        assert client.post("/v1/check", json=CHECK, headers=shown).status_code == 200
        assert client.get("/metrics", headers=shown).status_code == 200
        assert '-H "Authorization: Bearer $PENSTOCK_TOKEN"' in service.said
        assert TOKEN not in service.said


def test_printed_call_works_over_a_unix_socket() -> None:
    with Serving(listen="unix:penstock.sock") as service:
        (line,) = service.wait_for(r"\n  (curl .*)\n")
        asked = subprocess.check_output(["/bin/sh", "-c", line], cwd=service.place.folder, text=True, timeout=DEADLINE)
        assert '"allowed":true' in asked
        service.signal(signal.SIGINT)
        assert service.ended() == 0
        assert not (service.place.folder / "penstock.sock").exists()


def test_metrics_can_be_switched_off() -> None:
    with Serving("--metrics", "off") as service, service.client() as client:
        assert client.get("/metrics").status_code == 404


def test_named_rules_that_do_not_exist_are_an_error() -> None:
    with Serving("--rules", "missing.yaml") as service:
        assert service.ended() == 1
        assert service.said.startswith("missing.yaml: ")


def test_port_in_use_is_reported() -> None:
    with ListeningSockets([ListenAddress("127.0.0.1", 0)]) as taken, Serving(listen=str(taken.addresses[0])) as service:
        assert service.ended() == 2
        assert service.said == f"listen {taken.addresses[0]}: Address already in use\n"


def test_rules_with_faults_are_not_served() -> None:
    with Serving(rules="rules:\n  - {id: api, key: ip, quota: 100/fortnight}\n") as service:
        assert service.ended() == 1
        assert "penstock.yaml:2: rules[0].quota: '100/fortnight'" in service.said


def test_a_worker_that_is_idle_takes_less_than_80_mb() -> None:
    with Serving() as service:
        assert service.url
        status = Path(f"/proc/{service.place.pid}/status").read_text()
        assert int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) < 80_000


def _plain(shown: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace"))


def _read(terminal: int) -> bytes:
    """What was written next; nothing if the other end was closed, or stays silent for too long."""
    try:
        return os.read(terminal, 65_536) if select.select([terminal], [], [], DEADLINE)[0] else b""
    except OSError:  # how Linux says that the other end was closed
        return b""


def _in_a_terminal(folder: Path, *flags: str) -> tuple[subprocess.Popen[bytes], int]:
    ours, its = pty.openpty()
    process = subprocess.Popen(
        (sys.executable, "-m", "penstock.cli", "serve", "--listen", "127.0.0.1:0", *flags),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "COLUMNS": "150", "LINES": "40"},
    )
    os.close(its)
    return process, ours


@pytest.mark.parametrize(
    "flags", [(), ("--workers", "2", "--store", "redis://127.0.0.1:1/0?secret=of-the-tests-alone")]
)
def test_a_view_whose_terminal_is_closed_ends_the_service(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """A closed terminal says SIGHUP. Taken for a reload, it left a service behind that nobody sees."""
    process, ours = _in_a_terminal(tmp_path, *flags)
    try:
        shown = b""
        while "requests/s" not in _plain(shown) and (read := _read(ours)):
            shown += read
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(DEADLINE) == 0, _plain(shown)
    finally:
        process.kill()
        process.wait()


def test_terminal_shows_a_live_view(tmp_path: Path) -> None:
    process, ours = _in_a_terminal(tmp_path)
    shown, asked = b"", False
    try:
        while "everybody" not in _plain(shown) and (read := _read(ours)):
            shown += read
            if not asked and (ready := re.search(r"listening on (http://[\d.:]+)\s.*requests/s", _plain(shown), re.S)):
                asked = True
                httpx.post(f"{ready[1]}/v1/check", json=CHECK, timeout=DEADLINE, trust_env=False)
        process.send_signal(signal.SIGINT)
        while read := _read(ours):
            shown += read
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    text = _plain(shown)
    line = r"[\d,]+ requests/s   [\d,]+ allowed/s   0 refused/s   p50 [\d.]+ ms   p99 [\d.]+ ms   \d connections"
    assert re.search(line, text), text
    assert re.search(r"everybody +\d+ +0", text), text


@pytest.mark.skipif(not can_make_certificates(), reason="no openssl")
def test_printed_call_works_over_tls_and_certificates_are_renewed(tmp_path: Path) -> None:
    certificate = Certificate.make("127.0.0.1", tmp_path)
    flags = ("--tls-certificate", str(certificate.path), "--tls-key", str(certificate.key))
    with Serving(*flags) as service:
        (line,) = service.wait_for(r"\n  (curl .*)\n")
        assert '"allowed":true' in subprocess.check_output(["/bin/sh", "-c", line], text=True, timeout=DEADLINE)
        (tmp_path / "new").mkdir()
        renewed = Certificate.make("127.0.0.1", tmp_path / "new")
        renewed.key.replace(certificate.key)
        renewed.path.replace(certificate.path)
        service.signal(signal.SIGHUP)
        wait_until(lambda: _trusted(service.url, certificate.path), "the new certificate", pause=0.05)
        verify = ssl.create_default_context(cafile=str(certificate.path))
        certificate.path.write_text("nonsense", encoding="utf-8")
        with service.client(verify=verify) as client:
            refused = ["certificate: the files were refused"]
            wait_until(lambda: client.get("/readyz").json()["degraded"] == refused, "it to be seen", pause=0.05)


def _trusted(url: str, certificate: Path) -> bool:
    try:
        verify = ssl.create_default_context(cafile=str(certificate))
        return httpx.get(f"{url}/livez", verify=verify, timeout=DEADLINE, trust_env=False).status_code == 200
    except httpx.ConnectError:
        return False


def test_service_raises_its_limit_of_open_files() -> None:
    """Most shells allow 1,024 open files: the connections beyond were cut off without a word."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not before[1] > 600:
        pytest.skip("no room to make")
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        service = Serving("--limit-connections", "400")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    with service:
        assert service.url
        limits = Path(f"/proc/{service.place.pid}/limits").read_text()
        assert int(re.findall(r"Max open files\s+(\d+)", limits)[0]) >= 400


def test_every_log_line_has_the_configured_format() -> None:
    """Also those of others: where spans cannot be sent, OpenTelemetry says so."""
    pytest.importorskip("opentelemetry.sdk")
    traces = {"OTEL_TRACES_SAMPLER": "always_on", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    traces["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:1"
    with Serving("--log-format", "json", **traces) as service:
        with service.client() as client:
            client.post("/v1/check", json=CHECK)
        service.signal(signal.SIGTERM)
        assert service.ended() == 0
        log = [line for line in service.said.splitlines() if "opentelemetry" in line or "export" in line]
        assert log
        assert all(json.loads(line)["logger"].startswith("opentelemetry.") for line in log)
