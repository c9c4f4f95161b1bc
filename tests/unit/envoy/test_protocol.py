"""What is generated is in step with what it is generated from, and answers written by hand are those of protobuf."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.service.envoy import answers
from penstock.service.envoy.protocol import RateLimitResponse

ROOT = Path(__file__).parents[3]


def test_the_descriptors_are_in_step_with_the_protocols() -> None:
    command = [sys.executable, str(ROOT / "tools/protocols.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_full_protocols_may_be_loaded_beside_ours() -> None:
    names = RateLimitResponse.DESCRIPTOR.file.pool
    from google.protobuf.descriptor_pool import Default

    assert names is not Default()
    with pytest.raises(KeyError):
        Default().FindMessageTypeByName("envoy.service.ratelimit.v3.RateLimitResponse")


UINT32 = st.integers(0, 2**32 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@given(st.sampled_from([1, 2]), UINT32, st.integers(0, 7), NAMES, UINT32, st.integers(0, 2**40))
def test_a_status_written_by_hand_is_what_protobuf_writes(
    code: int, requests: int, unit: int, name: str, remaining: int, seconds: int
) -> None:
    response = RateLimitResponse(overall_code=code)
    status = response.statuses.add(code=code, limit_remaining=remaining)
    status.current_limit.SetInParent()
    status.current_limit.requests_per_unit = requests
    status.current_limit.unit = unit
    status.current_limit.name = name
    if seconds:
        status.duration_until_reset.seconds = seconds
    response.response_headers_to_add.add(key="retry-after", value=str(seconds))
    current = answers.current_limit(requests, unit, name)
    written = answers.OVERALL[code] + answers.status(code, current, remaining, seconds)
    written += answers.header(answers.header_name("retry-after"), seconds)
    assert written == response.SerializeToString(deterministic=True)
