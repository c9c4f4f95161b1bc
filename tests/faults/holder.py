"""Take all places of a quota and hold them until killed.

python -m tests.faults.holder URL PORT KEY QUOTA
"""

from __future__ import annotations

import sys
from threading import Event

from penstock import Limiter, Quota
from tests.faults.node import HOST_NAME


def main(url: str, port: str, key: str, quota_text: str) -> None:
    quota = Quota.parse(quota_text.replace("_", " "))
    limiter = Limiter(url.replace(f"{HOST_NAME}:{port}", f"127.0.0.1:{port}"), on_failure="raise")
    held = [limiter.acquire(key, quota) for _ in range(quota.limit)]
    print(sum(map(bool, held)), flush=True)
    Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
