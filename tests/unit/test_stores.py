import pytest

from penstock import AsyncLimiter, Limiter, ManualClock
from penstock.errors import InvalidInput, InvalidOption
from penstock.stores import MEMORY, REDIS, AsyncMemoryStore, InProcess, MemoryStore, open_async_store, open_store
from tests.unit.support import finish

SCHEMES = ", ".join(f"{scheme}://" for scheme in (MEMORY, *REDIS))

BAD_URLS = {
    "": f"store '': unknown scheme (expected {SCHEMES}, or valkey in place of redis)",
    "memory": f"store 'memory': unknown scheme (expected {SCHEMES}, or valkey in place of redis)",
    "memory:": f"store 'memory:': unknown scheme (expected {SCHEMES}, or valkey in place of redis)",
    "MEMORY://": f"store 'MEMORY': unknown scheme (expected {SCHEMES}, or valkey in place of redis)",
    "redis:/:pa55word@host": f"store '...': unknown scheme (expected {SCHEMES}, or valkey in place of redis)",
    "x" * 99 + "://": f"store '{'x' * 32}': unknown scheme (expected {SCHEMES}, or valkey in place of redis)",
    "memory://host": "store memory://...: has neither host nor path (expected e.g. memory://?max_keys=100000)",
    "memory:///path": "store memory://...: has neither host nor path (expected e.g. memory://?max_keys=100000)",
    "memory://#part": "store memory://...: has neither host nor path (expected e.g. memory://?max_keys=100000)",
    "memory://?maxkeys=5000": "store memory://...: unknown option 'maxkeys' (expected max_keys)",
    "memory://?max_keys=5000&ttl=1": "store memory://...: unknown option 'ttl' (expected max_keys)",
    "memory://?max_keys=": "max_keys '': expected a whole number",
    "memory://?max_keys=many": "max_keys 'many': expected a whole number",
    "memory://?max_keys=-5": "max_keys '-5': expected a whole number",
    "memory://?max_keys=1e6": "max_keys '1e6': expected a whole number",
    "memory://?max_keys=\u0665000": "max_keys '\u0665000': expected a whole number",
    "memory://?max_keys=4095": "max_keys 4095: expected a whole number, at least 4096",
}


@pytest.mark.parametrize(("url", "text"), BAD_URLS.items())
@pytest.mark.parametrize("opener", [open_store, open_async_store, Limiter, AsyncLimiter])
def test_a_bad_url_is_refused_with_what_would_be_right(opener: type[Limiter], url: str, text: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        opener(url)
    assert str(caught.value) == text


@pytest.mark.parametrize("url", ["memory://[", "memory://?max_keys=" + "9" * 5_000])
def test_a_url_that_python_itself_cannot_read_is_invalid_input_too(url: str) -> None:
    with pytest.raises(InvalidInput):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "memory://user:pa55word@host",
        "memory://user:pa55word@[",
        "redis://user:pa55word@host/0?deadline=soon",
        "redis://user:pa55word@host:port/0",
        "rediss://user:pa55word@host/0?connections=0",
        "user:pa55word@host",
        "redis:user:pa55word@host",
    ],
)
def test_no_error_shows_a_password(url: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        open_store(url)
    assert "pa55word" not in str(caught.value)


@pytest.mark.parametrize("url", ["memory://", "memory://?max_keys=4096", "memory://?max_keys=1000000"])
def test_memory_urls_open_memory_stores(url: str) -> None:
    assert isinstance(open_store(url), MemoryStore)
    assert isinstance(open_async_store(url), AsyncMemoryStore)


def test_the_clock_is_handed_to_the_store() -> None:
    clock = ManualClock()
    stores = open_store("memory://", clock), open_async_store("memory://", clock)
    assert [store.clock for store in stores if isinstance(store, InProcess)] == [clock, clock]


@pytest.mark.untraced
def test_the_urls_bound_is_the_stores() -> None:
    store = open_store("memory://?max_keys=4096", ManualClock())
    assert isinstance(store, MemoryStore)
    limiter = Limiter(store)
    for number in range(10_000):
        limiter.acquire(f"key {number}", "10/minute")
    assert store.counters <= 4_096


def test_stores_can_be_closed() -> None:
    open_store("memory://").close()
    finish(open_async_store("memory://").close())
