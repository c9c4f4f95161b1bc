"""Variables of envoyproxy/ratelimit: what each sets, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InvalidOption
from penstock.service.envoy.config_files import Options
from penstock.service.envoy.environment import Deployment, read_environment
from penstock.service.envoy.plans import Conduct
from penstock.service.settings import Settings, load
from penstock.stores.redis.config import read_url


def test_environment_without_variables_has_no_values() -> None:
    nothing = Deployment(None, None, None, None, None, Options(), Conduct())
    assert read_environment({"PATH": "/bin", "LOG_FORMAT": "", "CONFIG_TYPE": ""}) == nothing


def test_folder_of_the_configuration_follows_from_the_variables() -> None:
    said = {"RUNTIME_ROOT": "/data", "RUNTIME_SUBDIRECTORY": "ratelimit"}
    assert read_environment(said).folder == Path("/data/ratelimit/config")
    assert read_environment({**said, "RUNTIME_APPDIRECTORY": "limits"}).folder == Path("/data/ratelimit/limits")


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ({"REDIS_URL": "redis:6379"}, "redis://redis:6379"),
        ({"REDIS_URL": "redis:6379", "REDIS_AUTH": "p@ss"}, "redis://:p%40ss@redis:6379"),
        ({"REDIS_URL": "redis:6379", "REDIS_AUTH": "bob:pw", "REDIS_TLS": "true"}, "rediss://bob:pw@redis:6379"),
        ({"REDIS_URL": "redis:6379", "REDIS_AUTH": "bob:p:w"}, "redis://bob:p%3Aw@redis:6379"),
        ({"REDIS_URL": "redis:6379", "REDIS_TLS_CACERT": "/ca.pem"}, "redis://redis:6379"),
        (
            {"REDIS_URL": "redis:6379", "REDIS_TLS": "true", "REDIS_TLS_CACERT": "/ca.pem"},
            "rediss://redis:6379?ssl_ca_certs=%2Fca.pem",
        ),
        ({"REDIS_URL": "/run/redis.sock", "REDIS_SOCKET_TYPE": "unix"}, "redis+unix:///run/redis.sock"),
        ({"REDIS_URL": "/run/redis.sock"}, "redis+unix:///run/redis.sock"),
        ({"REDIS_URL": "a:1,b:2", "REDIS_TYPE": "CLUSTER"}, "redis+cluster://a:1,b:2"),
        ({"REDIS_URL": "mymaster,a:1,b:2", "REDIS_TYPE": "sentinel"}, "redis+sentinel://a:1,b:2/mymaster"),
        (
            {"REDIS_URL": "m,a:1", "REDIS_TYPE": "sentinel", "REDIS_SENTINEL_AUTH": "u:p"},
            "redis+sentinel://a:1/m?sentinel_username=u&sentinel_password=p",
        ),
        ({"REDIS_URL": "redis:6379", "CACHE_KEY_PREFIX": "edge:"}, "redis://redis:6379?prefix=edge%3A"),
    ],
)
def test_url_of_the_store_follows_from_the_variables(said: dict[str, str], url: str) -> None:
    assert read_environment(said).store == url


def test_prefixes_that_differ_stay_different_and_are_such_as_stores_take() -> None:
    names = ["ratelimit-production-eu:", "ratelimit-production-us:", "edge/eu", "edge/us", "edge:"]
    keys = set()
    for name in names:
        url = read_environment({"REDIS_URL": "redis:6379", "CACHE_KEY_PREFIX": name}).store or ""
        keys.add(read_url(f"{url}&secret=0123456789abcdef0123").keys.subject("k"))
    assert len(keys) == len(names)
    assert any(key.head.startswith(b"ratelimit-pro") for key in keys)


def test_addresses_and_conduct() -> None:
    said = {
        "PORT": "8080",
        "GRPC_HOST": "::1",
        "GRPC_PORT": "8081",
        "LOG_LEVEL": "WARN",
        "MERGE_DOMAIN_CONFIG": "true",
        "SHADOW_MODE": "1",
        "NEAR_LIMIT_RATIO": "0.5",
        "LIMIT_RESPONSE_HEADERS_ENABLED": "true",
        "LIMIT_RESET_HEADER": "X-Reset",
    }
    deployment = read_environment(said)
    assert (deployment.http, deployment.grpc, deployment.log_level) == ("0.0.0.0:8080", "[::1]:8081", "warning")
    assert deployment.options.merge_domains
    assert deployment.conduct.shadow_mode
    assert deployment.conduct.near_limit_ratio == 0.5
    assert deployment.conduct.headers == ("ratelimit-limit", "ratelimit-remaining", "x-reset")


@pytest.mark.parametrize(
    "said",
    [
        {"PORT": "http"},
        {"GRPC_PORT": "70000"},
        {"SHADOW_MODE": "perhaps"},
        {"NEAR_LIMIT_RATIO": "2"},
        {"NEAR_LIMIT_RATIO": "nan"},
        {"BACKEND_TYPE": "memcache"},
        {"CONFIG_TYPE": "GRPC_XDS_SOTW"},
        {"GRPC_SERVER_USE_TLS": "perhaps"},
        {"REDIS_URL": "a", "REDIS_TYPE": "ring"},
    ],
)
def test_unsupported_variables_are_refused(said: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match=f"^{list(said)[-1]} "):
        read_environment(said)


def test_a_service_that_stands_in_for_the_original_takes_its_settings() -> None:
    said = {
        "RUNTIME_ROOT": "/data",
        "REDIS_URL": "redis:6379",
        "PORT": "8080",
        "GRPC_PORT": "8081",
        "LOG_LEVEL": "WARN",
    }
    settings = load({"envoy_config": "env"}, said)
    assert settings.envoy_config == Path("/data/config")
    assert (settings.store, settings.origin("store")) == ("redis://redis:6379", "REDIS_URL")
    assert [str(address) for address in settings.listen] == ["0.0.0.0:8080", "0.0.0.0:8081"]
    assert settings.log_level == "warning"
    assert load({"envoy_config": "mine", "store": "memory://"}, said).envoy_config == Path("mine")
    assert load({"envoy_config": "mine", "store": "memory://"}, said).store == "memory://"
    assert load({}, said) == Settings()


@pytest.mark.parametrize(
    ("said", "listen"),
    [
        ({}, ["0.0.0.0:8080", "0.0.0.0:8081"]),
        ({"HOST": "127.0.0.1", "GRPC_PORT": "9000"}, ["127.0.0.1:8080", "0.0.0.0:9000"]),
        ({"GRPC_PORT": "8080"}, ["0.0.0.0:8080"]),
        ({"GRPC_UDS": "/run/ratelimit.sock"}, ["0.0.0.0:8080", "unix:/run/ratelimit.sock"]),
        ({"PENSTOCK_LISTEN": "127.0.0.1:1"}, ["127.0.0.1:1"]),
    ],
)
def test_substitute_listens_where_the_original_does(said: dict[str, str], listen: list[str]) -> None:
    settings = load({"envoy_config": "env"}, {"RUNTIME_ROOT": "/data", **said})
    assert [str(address) for address in settings.listen] == listen


def test_encrypted_ports_stay_encrypted(tmp_path: Path) -> None:
    names = ("GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT")
    said = {name: str(tmp_path / name) for name in names} | {"GRPC_CLIENT_TLS_SAN": "envoy", "LOG_FORMAT": "json"}
    for name in names:
        (tmp_path / name).touch()
    plain = load({"envoy_config": "mine"}, said)
    assert (plain.tls_certificate, plain.client_names, plain.log_format) == (None, (), "json")
    settings = load({"envoy_config": "mine"}, {**said, "GRPC_SERVER_USE_TLS": "true"})
    assert [settings.tls_certificate, settings.tls_key, settings.tls_clients] == [tmp_path / name for name in names]
    assert settings.client_names == ("envoy",)


@pytest.mark.parametrize(
    ("said", "fault"),
    [({"PORT": "x"}, "PORT 'x': expected 1 to 65535"), ({}, "envoy_config env .*: expected RUNTIME_ROOT")],
)
def test_service_does_not_start_with_unsupported_variables(said: dict[str, str], fault: str) -> None:
    with pytest.raises(InvalidOption, match=fault):
        load({"envoy_config": "env"}, said)
