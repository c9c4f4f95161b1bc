"""The API's description is what the API does."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from penstock.headers import HeaderWriter
from penstock.service.api import openapi
from penstock.service.api.endpoints import Endpoints
from penstock.service.api.verdicts import Verdicts
from penstock.service.receipts import Tokens
from tests.unit.service.desk import SECRET, ByHand, Desk

DOCS = Path(__file__).parents[3] / "docs" / "openapi.json"
DOCUMENT: dict[str, Any] = json.loads(openapi.DOCUMENT)
EXAMPLES = {call.path: call.example for call in openapi.CALLS}


def schema(content: dict[str, Any]) -> dict[str, Any]:
    (body,) = content["content"].values()
    return {**body["schema"], "components": DOCUMENT["components"]}


def test_the_description_is_served_and_published() -> None:
    (answer,) = Desk().ask(ByHand(b"GET", b"/v1/openapi.json"))
    assert (answer.status, answer.headers[b"content-type"]) == (200, b"application/json")
    assert answer.body == openapi.DOCUMENT
    assert DOCS.read_bytes() == openapi.DOCUMENT + b"\n", "write docs/openapi.json anew"


def test_every_call_is_described_and_nothing_else() -> None:
    desk = Desk()
    tokens = Tokens(SECRET)
    endpoints = Endpoints(desk.decider, tokens, Verdicts(HeaderWriter(), tokens))
    assert {path.encode() for path, methods in DOCUMENT["paths"].items() if "authz" not in path} == {*endpoints.by_path}
    for path in DOCUMENT["paths"]:
        if "authz" in path:
            assert desk.api._authz.knows(path.encode())


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_work_and_fit_their_schemas(path: str) -> None:
    desk = Desk()
    sent = EXAMPLES[path]
    described = DOCUMENT["paths"][path]["post"]
    jsonschema.validate(sent, schema(described["requestBody"]))
    if "receipt" in sent and path != "/v1/check":
        reserved = {"key": "k", "quota": "100000/hour; 5 concurrent", "cost": 4000, "id": "x"}
        sent = {**sent, "receipt": desk.post("/v1/hold", reserved).json["receipt"]}
    answer = desk.post(path, sent)
    assert answer.status == 200, answer.body
    jsonschema.validate(answer.json, schema(described["responses"]["200"]))


def test_problems_fit_their_schema_also_within_a_batch() -> None:
    desk = Desk()
    problem = DOCUMENT["components"]["responses"]["Problem"]
    jsonschema.validate(desk.post("/v1/check", {"descriptor": {}, "cost": 0}).json, schema(problem))
    answer = desk.post("/v1/check/batch", [{"descriptor": 1}])
    described = DOCUMENT["paths"]["/v1/check/batch"]["post"]
    jsonschema.validate(answer.json, schema(described["responses"]["200"]))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"results": [{"problem": 1}]}, schema(described["responses"]["200"]))
