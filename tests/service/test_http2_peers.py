"""HTTP/2 as others speak it: curl, and nghttp2's load generator."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from penstock.service.grpc import Grpc, Message
from penstock.service.wire.tls import ServerTls
from tests.rig.certificates import Certificate
from tests.rig.processes import DEADLINE
from tests.service.harness import Echo, serving

WRITTEN = "%{json}"


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


def test_curl_speaks_http2_with_prior_knowledge(tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"0123456789" * 50_000)
    got = tmp_path / "got"
    with serving(Echo()) as running:
        url = f"{running.url}/path?query"
        start = "curl", "--silent", "--http2-prior-knowledge", "--output", str(got), "--write-out", WRITTEN
        told = json.loads(run(*start, url))
        assert (told["http_version"], told["http_code"]) == ("2", 200)
        assert got.read_bytes() == b"GET\n/path\nquery\n"
        told = json.loads(run(*start, "--data-binary", f"@{body}", url))
        assert got.read_bytes() == b"POST\n/path\nquery\n" + body.read_bytes()
        told = json.loads(run(*start, "--header", "expect: 100-continue", "--data-binary", f"@{body}", url))
        assert told["http_code"] == 200
        told = json.loads(run(*start, "--head", url))
        assert (told["http_code"], told["size_download"]) == (200, 0)


def test_curl_negotiates_http2_by_alpn(tmp_path: Path) -> None:
    certificate = Certificate.make("localhost", tmp_path)
    with serving(Echo(), tls=ServerTls(certificate.path, certificate.key)) as running:
        address = f"localhost:{running.port}:127.0.0.1"
        start = "curl", "--silent", "--cacert", str(certificate.path), "--resolve", address, "--write-out", WRITTEN
        url = f"https://localhost:{running.port}/"
        for option, version in (("--http2", "2"), ("--http1.1", "1.1")):
            told = json.loads(run(*start, option, "--output", "/dev/null", url))
            assert (told["http_version"], told["http_code"]) == (version, 200)


class Doubled:
    path = b"/test.Test/Doubled"

    def __init__(self) -> None:
        self.batches: list[int] = []

    def handle(self, messages: list[Message]) -> None:
        self.batches.append(len(messages))
        for message in messages:
            message.answer(message.data * 2)


@pytest.mark.parametrize(("clients", "streams"), [(4, 16), (1, 64), (1, 1)])
def test_h2load_gets_every_answer(clients: int, streams: int, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"\0\0\0\0\5hello")
    doubled = Doubled()
    with serving(Grpc([doubled])) as running:
        told = run(
            *("h2load", "-n", "2000", "-c", str(clients), "-m", str(streams), "-d", str(body)),
            *("-H", "content-type: application/grpc", "-H", "te: trailers"),
            f"{running.url}{doubled.path.decode()}",
        )
    assert re.search(r"2000 succeeded, 0 failed, 0 errored, 0 timeout", told)
    assert f"({2000 * 15}) data" in told
    assert sum(doubled.batches) == 2_000
    assert len(doubled.batches) < 2_000 or streams == 1
