"""What servers say of themselves, over connections of its own: decisions have theirs, and do not wait for this."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing

from penstock.clock import monotonic
from penstock.model import Failed
from penstock.stores.redis.dialing import refusal
from penstock.stores.redis.settings import Node, Settings
from penstock.stores.redis.topology import Topology, together, wrong_answer
from penstock.stores.redis.wire import Wire, packed

QUESTIONS = (packed(b"INFO"), packed(b"INFO", b"commandstats"))


def inspect(settings: Settings, topology: Topology, within: float) -> dict[str, Mapping[str, str] | None]:
    """By place, what `INFO` says on each server that decides; None if it could not be had."""
    nodes = sorted(topology.nodes())

    def ask(node: Node) -> dict[str, str] | Failed:
        until = monotonic() + within
        try:
            with closing(Wire(settings.kind, settings.connect, node, within)) as wire:
                answers = [wire.ask(question, until) for question in QUESTIONS]
        except Exception as error:  # a credential provider may raise anything
            return refusal(error, node.place)
        if not isinstance(answers[0], bytes):
            return wrong_answer(answers[0], "a server that may be asked INFO", node)
        return _facts(b"\r\n".join(answer for answer in answers if isinstance(answer, bytes)))

    answers = together(ask, nodes, within)
    return {node.place: None if isinstance(answer, Failed) else answer for node, answer in answers.items()}


def _facts(info: bytes) -> dict[str, str]:
    return dict(re.findall(r"^(\w+):(.*?)\r?$", info.decode(errors="replace"), re.MULTILINE))
