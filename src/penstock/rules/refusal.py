"""The response to a refused request: status, headers and a body with problem details (RFC 9457).

| the request is refused | status | reason |
|---|---|---|
| by a quota | 429 | `rate`, `too_close`, `concurrency` |
| by a rule that denies | 403 | `blocked` |
| because the system is too busy | 503 | `shed` |
| because the store cannot answer and requests are refused then | 503 | `degraded` |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

from penstock.headers import PROBLEM_JSON, TOO_MANY, Header, HeaderWriter
from penstock.model import Verdict
from penstock.rules.ruling import Reason, Ruling, reason_of

STATUSES: Mapping[Reason, int] = {"blocked": 403, "shed": 503, "degraded": 503}
"""The status of a refusal by its reason; of all others it is 429."""

_DETAILS: Mapping[Reason, str] = {"blocked": "Refused by a rule.", "shed": "Too busy now: try again later."}
_WRITER = HeaderWriter()


class RefusalResponse(NamedTuple):
    """The response to a refused request. `headers` include the type and length of the body."""

    status: int
    headers: list[Header]
    body: bytes


def refusal_of(verdict: Verdict, writer: HeaderWriter = _WRITER) -> RefusalResponse:
    """Return the response to a request that was refused."""
    reason = reason_of(verdict)
    status = STATUSES.get(reason, TOO_MANY)
    body = json.dumps(_problem(verdict, writer, status, reason)).encode()
    headers = writer.headers(shown_to_clients(verdict))
    headers += ("Content-Type", PROBLEM_JSON), ("Content-Length", str(len(body)))
    return RefusalResponse(status, headers, body)


def shown_to_clients(verdict: Verdict) -> Verdict:
    """Return the verdict without the rules whose headers are hidden."""
    return verdict.shown() if isinstance(verdict, Ruling) else verdict


def _problem(verdict: Verdict, writer: HeaderWriter, status: int, reason: Reason) -> dict[str, object]:
    """Return the problem details with the reason, and in the words of the rule if it has any."""
    if reason in _DETAILS:
        title = HTTPStatus(status).phrase
        problem: dict[str, object] = {"type": "about:blank", "title": title, "status": status}
        problem["detail"] = _DETAILS[reason]
    else:
        problem = writer.problem(shown_to_clients(verdict))
    message = verdict.message if isinstance(verdict, Ruling) else None
    return problem | ({"reason": reason} if message is None else {"detail": message, "reason": reason})
