"""What is generated is in step with what it is generated from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
