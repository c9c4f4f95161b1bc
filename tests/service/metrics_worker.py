"""A worker that counts what it is told to: `decide 5`, `scrape`, `stop`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from penstock import Limiter
from penstock.observability.metrics import Metrics
from penstock.stores.memory.store import MemoryStore


async def main(directory: Path, worker: str) -> None:
    loop = asyncio.get_running_loop()
    metrics = Metrics(directory, worker)
    limiter = Limiter(MemoryStore())
    metrics.watch(connections=lambda: 2)
    metrics.start()
    print("ready", flush=True)
    while True:
        word, _, number = (await loop.run_in_executor(None, sys.stdin.readline)).strip().partition(" ")
        if word == "decide":
            metrics.decided(limiter.acquire_many([("k", "5/minute")] * int(number)), 100)
            metrics.answered("check", [200] * int(number), 300)
        elif word == "scrape":
            text = await loop.run_in_executor(None, metrics.text)
            counted = sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(b"penstock_dec"))
            print(round(counted), flush=True)
            continue
        else:
            metrics.close()
            return
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
