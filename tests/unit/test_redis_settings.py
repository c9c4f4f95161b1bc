"""How a server is to be reached: what URLs and keywords mean, and what is wrong with others."""

from typing import Any, cast

import pytest
import redis

from penstock.errors import InvalidOption
from penstock.stores.redis.settings import read_client, read_url
from penstock.stores.redis.store import RedisStore

SECRET = "of these tests"
UNREADABLE = (
    "store URL: unreadable (expected e.g. redis://user:password@host:6379/0, with special characters in user and "
    "password percent-encoded)"
)


@pytest.mark.parametrize(
    ("url", "kind", "place", "connect"),
    [
        ("redis://host", "tcp", "host:6379", {"host": "host"}),
        ("valkey://host:7000/3", "tcp", "host:7000", {"host": "host", "port": 7000, "db": 3}),
        ("rediss://u:p%40ss@host", "tls", "host:6379", {"host": "host", "username": "u", "password": "p@ss"}),
        ("valkeys://[::1]:6380", "tls", "[::1]:6380", {"host": "::1", "port": 6380}),
        ("redis+unix:///run/redis.sock?db=2", "unix", "/run/redis.sock", {"path": "/run/redis.sock", "db": 2}),
        ("valkey+unix:///run/valkey.sock", "unix", "/run/valkey.sock", {"path": "/run/valkey.sock"}),
    ],
)
def test_a_url_says_where_the_server_is(url: str, kind: str, place: str, connect: dict[str, Any]) -> None:
    settings = read_url(url, secret=SECRET)
    assert (settings.kind, settings.place, settings.connect) == (kind, place, connect)


def test_options_come_from_the_url_and_keywords_win() -> None:
    settings = read_url("redis://host?deadline=0.2&connections=7&secret=a", deadline=0.1, client_name="us")
    assert (settings.deadline_us, settings.connections) == (100_000, 7)
    assert settings.connect["client_name"] == "us"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2#x@host/0",
        "redis://:hunter2/x@host/0",
        "redis://:hunter2?x@host/0",
        "redis://:hunter2[@host/0",
        "redis://u:123#hunter2@host/0",
        "redis://host/hunter2",
        "redis://host:hunter2/0",
    ],
)
def test_an_unreadable_url_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        read_url(url, secret=SECRET)
    assert str(caught.value) == UNREADABLE


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"secret": ""}, "secret: expected text or bytes, not empty"),
        ({"secret": 5}, "secret: expected text or bytes, not empty"),
        ({"secret": "\ud800"}, "secret: expected text or bytes, not empty"),
        ({"secret": "x", "namespace": 5}, "namespace: expected printable text"),
        ({"secret": "x", "prefix": 7}, "prefix: expected printable text"),
        ({"secret": "x", "deadline": 0}, "deadline 0: expected seconds, more than 0 and at most 300"),
        ({"secret": "x", "connections": 0}, "connections 0: expected a whole number, 1 to 10000"),
        ({"secret": "x", "deadlin": 1}, "redis at host:6379: option 'deadlin': unknown"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        RedisStore("redis://host", **options)
    assert str(caught.value) == text


def test_no_credentials_are_printed() -> None:
    settings = read_url("redis://user:hunter2@host/0", secret="hunter2")
    assert repr(settings) == "<Settings tcp host:6379>"


def test_without_a_secret_there_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="no hashing secret was given"):
        read_url("redis://host")


def test_a_client_of_many_servers_is_refused() -> None:
    client: Any = cast("Any", redis.Sentinel)([("localhost", 26379)]).master_for("main")
    with pytest.raises(InvalidOption) as caught:
        read_client(client, secret=SECRET)
    assert str(caught.value) == "client Redis: expected a redis-py client of a single server"


def test_a_client_lends_its_address_and_credentials() -> None:
    settings = read_client(redis.Redis(host="host", port=7, db=2, username="u", password="p"), secret=SECRET)
    expected = {"host": "host", "port": 7, "db": 2, "username": "u", "password": "p"}
    assert expected.items() <= dict(settings.connect).items()
