"""Keys: whatever text they are made of, two different keys never share a counter."""

from __future__ import annotations

from itertools import combinations

from penstock.model import Acquire, Key, Verdict
from penstock.testing.kit import Kit, asks, for_every_algorithm

LONG = "x" * 1_023

HOSTILE: tuple[Key, ...] = (
    "a",
    "A",
    "ab",
    "a/b",
    ("a", "b"),
    ("b", "a"),
    ("a", "a"),
    ("a", "a", "a"),
    ("aa", "a"),
    ("a", "aa"),
    ("a/", "b"),
    ("a", "/b"),
    "a:b",
    ("a:", "b"),
    ("a", ":b"),
    "1:a1:b",
    ("1:a", "1:b"),
    "('a', 'b')",
    "a\x00b",
    ("a\x00", "b"),
    ("a", "\x00b"),
    "a\x00",
    "\x00",
    "a\nb",
    "a\r\nb",
    "a b",
    " a",
    "a ",
    "{a}",
    "{a}b",
    "{",
    "}",
    "{}",
    "%s",
    "*",
    "a*",
    "?",
    "[a]",
    "\\",
    "\\x00",
    '"a"',
    "'a'",
    "é",
    "e\u0301",
    "ß",
    "ss",
    "\ufeffa",
    "\u202ea",
    "😀",
    "\U0010ffff",
    "1",
    "01",
    "1.0",
    "-1",
    "nil",
    "None",
    LONG + "x",
    LONG + "y",
    (LONG + "x", "x"),
    ("x", LONG + "x"),
    ("é" * 512, "é" * 512),
    ("a",) * 31,
    ("a",) * 32,
)


class KeyExamples(Kit):
    """Examples of keys that must not be mixed up."""

    @for_every_algorithm
    def test_keys_are_isolated_whatever_they_are_made_of(self, algorithm: str) -> None:
        quota = f"{len(HOSTILE)}/hour {algorithm}"
        for position, key in enumerate(HOSTILE):
            assert self.acquire(key, quota, cost=position + 1)
        for position, key in enumerate(HOSTILE):
            assert self.peek(key, quota).remaining == len(HOSTILE) - position - 1

    def test_a_verdict_names_the_key_it_was_asked_for(self) -> None:
        outcomes = self.both.run(*(Acquire(asks(key, "3/hour")) for key in HOSTILE))
        assert [outcome.key for outcome in outcomes if isinstance(outcome, Verdict)] == list(HOSTILE)

    def test_a_reset_forgets_one_key_and_no_other(self) -> None:
        for key in HOSTILE:
            self.acquire(key, "3/hour", cost=3)
        self.reset(("a", "b"), "3/hour")
        free = [key for key in HOSTILE if self.peek(key, "3/hour")]
        assert free == [("a", "b")]

    def test_two_keys_of_one_request_are_two_counters(self) -> None:
        for one, other in combinations(HOSTILE[:12], 2):
            assert self.both.acquire(*asks(one, "100/hour"), *asks(other, "100/hour"))
        assert self.peek("a", "100/hour").remaining == 100 - 11

    def test_algorithms_and_periods_of_one_key_are_counters_of_their_own(self) -> None:
        quotas = "3/hour", "3/2 hours", "3/hour gcra", "3/hour token_bucket", "3/hour fixed_window"
        for quota in quotas:
            assert self.acquire("alice", quota, cost=3)
