"""How a server is to be reached: what URLs and keywords mean, and what is wrong with others."""

from typing import Any, cast

import pytest
import redis

from penstock.errors import InvalidOption
from penstock.stores.redis.config import read_client, read_url
from penstock.stores.redis.store import RedisStore

SECRET = "of these tests"
UNREADABLE = (
    "store URL: unreadable (expected e.g. redis://user:password@host:6379/0, "
    "redis+sentinel://host:26379,host:26379/service or redis+cluster://host:6379,host:6379, with special characters in "
    "user and password percent-encoded)"
)


@pytest.mark.parametrize(
    ("url", "kind", "place", "connect"),
    [
        ("redis://host", "tcp", "host:6379", {}),
        ("valkey://host:7000/3", "tcp", "host:7000", {"db": 3}),
        ("rediss://u:p%40ss@host", "tls", "host:6379", {"username": "u", "password": "p@ss"}),
        ("valkeys://[::1]:6380", "tls", "[::1]:6380", {}),
        ("redis+unix:///run/redis.sock?db=2", "unix", "/run/redis.sock", {"db": 2}),
        ("valkey+unix:///run/valkey.sock", "unix", "/run/valkey.sock", {}),
    ],
)
def test_a_url_says_where_the_server_is(url: str, kind: str, place: str, connect: dict[str, Any]) -> None:
    settings = read_url(url, secret=SECRET)
    assert (settings.kind, settings.place, settings.connect) == (kind, place, connect)


@pytest.mark.parametrize(
    ("url", "topology", "kind", "place", "connect"),
    [
        ("redis+sentinel://a,b:7/main", "sentinel", "tcp", "a:26379,b:7/main", {}),
        (
            "valkey+sentinel://u:p@[::1],b/main/3",
            "sentinel",
            "tcp",
            "[::1]:26379,b:26379/main",
            {"username": "u", "password": "p", "db": 3},
        ),
        ("rediss+sentinel://a/main", "sentinel", "tls", "a:26379/main", {}),
        ("redis+cluster://a,b:7", "cluster", "tcp", "a:6379,b:7", {}),
        ("valkeys+cluster://:p@a:1,b:2,c:3/0", "cluster", "tls", "a:1,b:2,c:3", {"password": "p", "db": 0}),
    ],
)
def test_a_url_may_name_several_servers(
    url: str, topology: str, kind: str, place: str, connect: dict[str, Any]
) -> None:
    settings = read_url(url, secret=SECRET)
    assert (settings.topology, settings.kind, settings.place, settings.connect) == (topology, kind, place, connect)


def test_sentinels_have_credentials_of_their_own() -> None:
    url = "redis+sentinel://u:p@a/main/3?sentinel_password=sp&ssl_ca_certs=x"
    settings = read_url(url, secret=SECRET, sentinel_username="su")
    assert settings.sentinel == {"username": "su", "password": "sp", "ssl_ca_certs": "x"}
    assert settings.connect == {"username": "u", "password": "p", "db": 3, "ssl_ca_certs": "x"}


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
        "redis://host,other",
        "rediss://:hunter2@host:6379,other:6379/0",
        "redis+sentinel://host",
        "redis+sentinel://host/",
        "redis+sentinel://host/main/hunter2",
        "redis+sentinel://host,/main",
        "redis+cluster://host,:hunter2",
        "redis+cluster://host:hunter2,other",
        "redis+cluster://host/hunter2",
        "redis+cluster://",
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
        ({"secret": "x", "partitions": 0}, "partitions 0: expected a power of two, 1 to 1024"),
        ({"secret": "x", "partitions": "100"}, "partitions '100': expected a power of two, 1 to 1024"),
        ({"secret": "x", "partitions": 64.0}, "partitions 64.0: expected a power of two, 1 to 1024"),
        (
            {"secret": "x", "sentinel_password": "p"},
            "sentinel_username, sentinel_password: expected only with redis+sentinel://",
        ),
        ({"secret": "x", "deadlin": 1}, "redis at host:6379: option 'deadlin': unknown"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        RedisStore("redis://host", **options)
    assert str(caught.value) == text


def test_no_credentials_are_printed() -> None:
    settings = read_url("redis://user:hunter2@host/0", secret="hunter2")
    assert repr(settings) == "<Settings single tcp host:6379>"


def test_a_cluster_has_one_database() -> None:
    with pytest.raises(InvalidOption) as caught:
        read_url("redis+cluster://host/3", secret=SECRET)
    assert str(caught.value) == "database 3: a cluster has only 0"


def test_without_a_secret_there_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="no hashing secret was given"):
        read_url("redis://host")


def test_a_client_of_many_servers_is_refused() -> None:
    client: Any = cast("Any", redis.Sentinel)([("localhost", 26379)]).master_for("main")
    with pytest.raises(InvalidOption) as caught:
        read_client(client, secret=SECRET)
    assert str(caught.value) == "client Redis: expected a redis-py client of a single server (others by URL)"


def test_a_client_lends_its_address_and_credentials() -> None:
    settings = read_client(redis.Redis(host="host", port=7, db=2, username="u", password="p"), secret=SECRET)
    expected = {"db": 2, "username": "u", "password": "p"}
    assert settings.place == "host:7"
    assert expected.items() <= dict(settings.connect).items()
