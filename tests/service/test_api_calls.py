"""The decision API over sockets, asked by httpx and curl, on memory and on servers that share a Redis."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.rig.fixtures import Keyspace
from tests.rig.processes import DEADLINE
from tests.service.apis import over_memory, over_redis
from tests.service.harness import Running

ALICE = {"descriptor": {"path": "/orders/1", "user": "alice"}}


class Asking:
    """Asks servers in turn, as a load balancer has it."""

    def __init__(self, *servers: Running) -> None:
        self._clients = [httpx.Client(base_url=server.url, timeout=DEADLINE) for server in servers]

    def post(self, path: str, body: Any, at: int = 0) -> Any:
        answer = self._clients[at].post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def memory() -> Iterator[Running]:
    with over_memory() as running:
        yield running


@pytest.fixture
def fleet(keyspace: Keyspace) -> Iterator[Asking]:
    """Two servers on one Redis."""
    with ExitStack() as stack:
        asking = Asking(*[stack.enter_context(over_redis(keyspace)) for _ in range(2)])
        stack.callback(asking.close)
        yield asking


def curl(*arguments: str) -> str:
    command = ["curl", "-sS", "--max-time", str(DEADLINE), *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode()


def test_curl_needs_no_content_type(memory: Running) -> None:
    answers = [json.loads(curl("-d", json.dumps(ALICE), f"{memory.url}/v1/check")) for _ in range(4)]
    assert [answer["allowed"] for answer in answers] == [True, True, True, False]
    assert answers[3]["headers"]["Retry-After"]


def test_curl_is_told_what_is_wrong(memory: Running) -> None:
    shown = curl("-i", "-d", "path=/orders", f"{memory.url}/v1/check")
    assert shown.startswith("HTTP/1.1 400 ")
    assert "content-type: application/problem+json\r\n" in shown
    assert '"detail":"body: expected a JSON object' in shown
    assert "allow: POST\r\n" in curl("-i", f"{memory.url}/v1/check")


def test_a_proxy_asks_with_any_method(memory: Running) -> None:
    for method in ("GET", "DELETE"):
        shown = curl("-i", "-X", method, f"{memory.url}/v1/authz/pages/1")
        assert shown.startswith("HTTP/1.1 200 ")
        assert 'ratelimit-policy: "pages";q=2;w=86400\r\n' in shown
    with httpx.Client(base_url=memory.url) as client:
        refused = client.head("/v1/authz/pages/2")
        assert (refused.status_code, refused.content) == (429, b"")
        assert int(refused.headers["retry-after"]) > 0
        refused = client.get("/v1/authz-original", headers={"X-Original-URI": "/pages/3"})
        assert (refused.status_code, refused.headers["x-penstock-status"]) == (403, "429")
        other = client.get("/v1/authz/pages/2", headers={"X-Forwarded-For": "192.0.2.7"})
        assert other.status_code == 200


def test_call_without_a_token_is_refused() -> None:
    with over_memory(tokens=("0123456789abcdef",)) as running, httpx.Client(base_url=running.url) as client:
        for path in ("/v1/check", "/v1/openapi.json", "/v1/authz/pages", "/elsewhere"):
            assert client.post(path, json=ALICE).status_code == 401
        headers = {"Authorization": "Bearer 0123456789abcdef"}
        assert client.post("/v1/check", json=ALICE, headers=headers).json()["remaining"] == 2


def test_concurrent_callers_do_not_exceed_the_quota(memory: Running) -> None:
    asked = {"key": "k", "quota": "50/day"}
    with httpx.Client(base_url=memory.url, timeout=DEADLINE) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/acquire", json=asked).json(), range(80)))
    assert sum(answer["allowed"] for answer in answers) == 50
    assert sorted(answer["remaining"] for answer in answers if answer["allowed"]) == [*range(50)]


def test_a_fleet_counts_together(fleet: Asking) -> None:
    answers = [fleet.post("/v1/check", ALICE, at % 2) for at in range(4)]
    assert [answer["allowed"] for answer in answers] == [True, True, True, False]
    assert {answer["source"] for answer in answers} == {"store"}
    results = fleet.post("/v1/check/batch", [ALICE, {"descriptor": {"path": "/orders/1", "user": "bob"}}], 1)["results"]
    assert [result["allowed"] for result in results] == [False, True]


def test_an_id_is_known_to_the_whole_fleet(fleet: Asking) -> None:
    first = fleet.post("/v1/check", ALICE | {"id": "7", "receipt": True}, 0)
    again = fleet.post("/v1/check", ALICE | {"id": "7", "receipt": True}, 1)
    assert (first["receipt"], first["remaining"]) == (again["receipt"], again["remaining"])
    assert fleet.post("/v1/check", ALICE, 1)["remaining"] == 1


def test_one_server_refunds_what_another_has_charged(fleet: Asking) -> None:
    charged = fleet.post("/v1/check", ALICE | {"cost": 3, "receipt": True, "id": "r"}, 0)
    assert fleet.post("/v1/refund", {"receipt": charged["receipt"], "units": 2}, 1)["units"] == 2
    assert fleet.post("/v1/refund", {"receipt": charged["receipt"]}, 0)["units"] == 1
    assert fleet.post("/v1/refund", {"receipt": charged["receipt"]}, 1)["units"] == 0
    assert fleet.post("/v1/peek", ALICE, 1)["remaining"] == 3


def test_requests_of_several_keys_are_charged_together(fleet: Asking) -> None:
    requests = [{"key": "alice", "quota": "5/minute"}, {"key": "acme", "quota": "10/minute", "cost": 6}]
    first = fleet.post("/v1/acquire-all", {"requests": requests, "receipt": True}, 0)
    assert not fleet.post("/v1/acquire-all", {"requests": requests}, 1)["allowed"]
    assert fleet.post("/v1/peek", {"key": "alice", "quota": "5/minute", "cost": 0}, 0)["remaining"] == 4
    assert fleet.post("/v1/refund", {"receipt": first["receipt"]}, 1)["each"] == [1, 6]


def test_places_are_held_across_the_fleet(fleet: Asking) -> None:
    places = {"descriptor": {"path": "/reports", "user": "alice"}}
    held = [fleet.post("/v1/hold", places, at) for at in range(2)]
    assert fleet.post("/v1/hold", places, 0)["reason"] == "concurrency"
    assert fleet.post("/v1/renew", {"receipt": held[0]["receipt"]}, 1) == {"held": True}
    assert fleet.post("/v1/release", {"receipt": held[0]["receipt"]}, 1)["units"] == 1
    assert fleet.post("/v1/renew", {"receipt": held[0]["receipt"]}, 0) == {"held": False}
    assert fleet.post("/v1/hold", places, 1)["allowed"]


def test_a_reservation_is_settled_by_another_server(fleet: Asking) -> None:
    chat = {"descriptor": {"path": "/chat", "user": "alice"}, "cost": 400}
    reserved = fleet.post("/v1/reserve", chat, 0)
    assert fleet.post("/v1/settle", {"receipt": reserved["receipt"], "units": 150}, 1)["units"] == 250
    assert fleet.post("/v1/settle", {"receipt": reserved["receipt"], "units": 1}, 0)["units"] == 0
    assert fleet.post("/v1/peek", chat, 1)["remaining"] == 850


def test_a_reset_and_an_explanation_are_the_fleets(fleet: Asking) -> None:
    fleet.post("/v1/check", ALICE | {"cost": 3}, 0)
    explained = fleet.post("/v1/explain", ALICE, 1)
    assert explained["rules"][0]["counters"][0]["used"] == 3
    assert fleet.post("/v1/reset", ALICE, 1) == {"counters": 1}
    assert fleet.post("/v1/check", ALICE, 0)["remaining"] == 2


def test_a_receipt_of_another_fleet_is_refused(keyspace: Keyspace) -> None:
    with over_redis(keyspace) as ours, over_redis(keyspace, secret=b"another secret..") as theirs:
        asking = Asking(ours, theirs)
        charged = asking.post("/v1/check", ALICE | {"receipt": True})
        answer = httpx.post(f"{theirs.url}/v1/refund", json={"receipt": charged["receipt"]})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_receipt")
        assert asking.post("/v1/peek", ALICE)["remaining"] == 2
        asking.close()
