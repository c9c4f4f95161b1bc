"""Ctrl-C in the middle of a call: the store goes on, and no reply reaches the wrong caller."""

import subprocess
import sys

from tests.rig.fixtures import Keyspace

INTERRUPTED = """
import random, signal, sys
from penstock import Limiter, Quota
from penstock.stores.redis.store import RedisStore

url, prefix = sys.argv[1:]
store = RedisStore(url, secret="of these tests", prefix=prefix, deadline=30, connections=4)
limiter, quota, chance = Limiter(store), Quota(10**6, 86_400), random.Random(1)
interrupts = asked = 0
inside = False
used = {}

def interrupt(*_):
    global interrupts, inside
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.000_1, 0.004))
    if inside:
        inside = False
        interrupts += 1
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.001)
while interrupts < 300:
    key = f"key {asked % 64}"
    asked += 1
    try:
        inside = True
        verdict = limiter.acquire(key, quota)
        inside = False
    except KeyboardInterrupt:
        continue
    assert verdict.key == key and verdict.remaining < 10**6 - used.get(key, 0), "another's answer"
    used[key] = 10**6 - verdict.remaining
signal.setitimer(signal.ITIMER_REAL, 0)
assert limiter.acquire("after all", quota)
store.close()
print("went on", asked)
"""


def test_a_store_goes_on_after_interrupts(keyspace: Keyspace) -> None:
    command = (sys.executable, "-c", INTERRUPTED, keyspace.server.url, keyspace.prefix)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("went on"), done.stderr
