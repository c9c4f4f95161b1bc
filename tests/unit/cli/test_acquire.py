"""`penstock acquire`: how keys, quotas and costs are read."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from penstock import Limiter, Verdict
from penstock.cli.app import app
from penstock.cli.target import Target
from penstock.engine.operations import Id, Request


class Fake(Limiter):
    """Stands in for a client; notes what it is asked."""

    asked: list[Request]

    def acquire_all(self, requests: list[Request], *, id: Id | None = None) -> Verdict:  # type: ignore[override]
        self.asked = requests
        return super().acquire_all(requests, id=id)

    def close(self) -> None:
        """Stay open for the next command."""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Fake:
    client = Fake()
    monkeypatch.setattr(Target, "client", lambda _: client)
    return client


def test_keys_quotas_and_costs_are_read(client: Fake) -> None:
    counters = ("alice=100/minute", "acme=1000/hour burst 2000 cost 5", "a=b=5/day", "c=1/minute name cost")
    printed = CliRunner().invoke(app, ["acquire", *counters])
    assert printed.exit_code == 0, printed.output
    assert client.asked == [
        ("alice", "100/minute", 1),
        ("acme", "1000/hour burst 2000", 5),
        ("a=b", "5/day", 1),
        ("c", "1/minute name cost", 1),
    ]


@pytest.mark.parametrize("counter", ["alice", "=5/day", "alice=", "alice= cost 5"])
def test_mistakes_are_wrong_usage(client: Fake, counter: str) -> None:
    printed = CliRunner().invoke(app, ["acquire", counter])
    assert printed.exit_code == 2
    assert "expected KEY=QUOTA, such as" in printed.output


def test_a_refusal_has_its_exit_code(client: Fake) -> None:
    codes = [CliRunner().invoke(app, ["acquire", "alice=1/day", "bob=9/day"]).exit_code for _ in range(2)]
    assert codes == [0, 3]
