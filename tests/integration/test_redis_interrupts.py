"""Ctrl-C or a time limit in the middle of a call: the error is raised, and no reply reaches the wrong caller."""

import subprocess
import sys

import pytest

from tests.rig.fixtures import Keyspace

INTERRUPTED = """
import random, signal, sys
from penstock import Limiter, Quota
from penstock.stores.redis.store import RedisStore

class Late(TimeoutError):
    pass

url, prefix, raised = sys.argv[1:]
error = {"KeyboardInterrupt": KeyboardInterrupt, "TimeoutError": Late}[raised]
store = RedisStore(url, secret="of these tests", prefix=prefix, deadline=30, connections=4)
limiter, quota, chance = Limiter(store), Quota(10**6, 86_400), random.Random(1)
interrupts = asked = unraisable = 0
inside = False
used = {}

def ignored(what):  # raised where Python cannot pass it on, as in the callback of a weak reference
    global unraisable
    unraisable += 1

sys.unraisablehook = ignored

def interrupt(*_):
    global interrupts, inside
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.000_1, 0.004))
    if inside:
        inside = False
        interrupts += 1
        raise error

signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.001)
while interrupts < 300:
    key = f"key {asked % 64}"
    asked += 1
    before = interrupts - unraisable
    try:
        inside = True
        verdict = limiter.acquire(key, quota)
        inside = False
    except error:
        continue
    assert interrupts - unraisable == before, "an interrupt was swallowed"
    assert verdict.key == key and verdict.remaining < 10**6 - used.get(key, 0), "another's answer"
    used[key] = 10**6 - verdict.remaining
signal.setitimer(signal.ITIMER_REAL, 0)
assert limiter.acquire("after all", quota)
store.close()
print("went on", asked)
"""


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "TimeoutError"])
def test_store_raises_interrupts_and_goes_on(keyspace: Keyspace, raised: str) -> None:
    command = (sys.executable, "-c", INTERRUPTED, keyspace.server.url, keyspace.prefix, raised)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("went on"), done.stderr
