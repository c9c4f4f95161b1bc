from penstock import ManualClock, Quota
from penstock.layers import Due, Entered, Layer
from penstock.model import Acquire, Ask, Op, Reset
from tests.unit.support import Passing

OPS: list[Op] = [Reset("alice", Quota(5, 60)), Acquire((Ask("alice", Quota(5, 60)),))]


def test_entering_needs_no_token() -> None:
    assert Entered(OPS) == (OPS, None)


def test_by_default_nothing_is_due_now_or_later() -> None:
    assert Due() == ((), None, None)


def test_a_layer_is_tested_with_plain_calls() -> None:
    layer: Layer = Passing()
    now = ManualClock().micros
    ops, token = layer.enter(OPS, now)
    assert ops == OPS
    assert layer.leave(token, [], now) == []
    assert layer.due(now) == Due()
