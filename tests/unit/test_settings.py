"""Settings: where they come from, what is said of bad ones, and what is never said."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from penstock.errors import InvalidOption
from penstock.service.settings import SETTINGS, ListenAddress, Settings, hidden_url, load
from penstock.service.wire.limits import ServerLimits

SECRET = "correct horse battery staple"


def _faults(
    flags: dict[str, object] | None = None, environment: dict[str, str] | None = None, file: Path | None = None
) -> list[str]:
    with pytest.raises(InvalidOption) as caught:
        load(flags, environment, file)
    return str(caught.value).splitlines()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "service.toml"


def test_defaults_are_one_local_worker_with_a_memory_store() -> None:
    settings = load()
    assert settings == Settings()
    assert [str(address) for address in settings.listen] == ["127.0.0.1:8080"]
    assert (settings.store, settings.workers, settings.shared) == ("memory://", 1, False)
    assert settings.limits == ServerLimits()
    assert {origin for _, _, origin in settings.lines()} == {"default"}


def test_flags_win_over_the_environment_which_wins_over_the_file(file: Path) -> None:
    file.write_text('drain_seconds = 1\nlimit_body = 1000\nlog_level = "debug"\nworkers = 1\n', encoding="utf-8")
    environment = {"PENSTOCK_DRAIN_SECONDS": "2", "PENSTOCK_LIMIT_BODY": "2000", "PENSTOCK_PORT": "tcp://10.0.0.1:80"}
    settings = load({"drain_seconds": "3", "limit_body": None}, environment, file)
    assert (settings.drain_seconds, settings.limit_body, settings.log_level) == (3.0, 2000, "debug")
    assert settings.limits.body == 2000
    origins = {name: origin for name, _, origin in settings.lines()}
    assert origins["drain_seconds"] == "--drain-seconds"
    assert origins["limit_body"] == "PENSTOCK_LIMIT_BODY"
    assert origins["log_level"] == "service.toml"
    assert origins["limit_head"] == "default"


def test_the_environment_may_name_the_file(file: Path) -> None:
    file.write_text("workers = 1\nlimit_idle = 5", encoding="utf-8")
    assert load(environment={"PENSTOCK_CONFIG": str(file)}).limit_idle == 5


def test_settings_never_change() -> None:
    with pytest.raises(FrozenInstanceError):
        load().workers = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ListenAddress("127.0.0.1", 80)),
        ("localhost:0", ListenAddress("localhost", 0)),
        (":8080", ListenAddress("", 8080)),
        ("*:8080", ListenAddress("", 8080)),
        ("[::1]:8080", ListenAddress("::1", 8080)),
        ("unix:/run/penstock.sock", ListenAddress(path="/run/penstock.sock")),
    ],
)
def test_an_address_is_a_host_and_a_port_or_a_path(text: str, address: ListenAddress) -> None:
    assert load({"listen": [text]}).listen == (address,)
    assert load(environment={"PENSTOCK_LISTEN": f"{text}, localhost:1"}).listen == (
        address,
        ListenAddress("localhost", 1),
    )
    assert load({"listen": [str(address)]}).listen == (address,)


@pytest.mark.parametrize("text", ["8080", "host", "::1:8080", "host:65536", "host:-1", "unix:", "unix:" + "x" * 101])
def test_invalid_addresses_are_refused(text: str) -> None:
    (fault,) = _faults({"listen": [text]})
    assert fault.startswith("listen ['")
    assert fault.endswith("(from --listen): expected host:port, [v6]:port or unix:path (of at most 100 characters)")


def test_all_faults_are_reported_at_once(file: Path) -> None:
    file.write_text('limit_head = true\nwrokers = 2\nlisten = []\nlog_level = "loud"\n', encoding="utf-8")
    environment = {"PENSTOCK_TOKEN_SECRET": "hush", "PENSTOCK_TLS_KEY": "/nowhere/key.pem"}
    faults = _faults({"workers": "many", "drain_seconds": "nan"}, environment, file)
    names = ["'wrokers'", "listen", "workers", "token_secret", "tls_key", "drain_seconds", "limit_head", "log_level"]
    assert [fault.split(" ")[0] for fault in faults] == names
    assert "did you mean workers?" in faults[0]
    assert faults[2] == "workers 'many' (from --workers): expected a whole number, 1 to 256"
    assert faults[4].startswith("tls_key '/nowhere/key.pem' (from PENSTOCK_TLS_KEY): expected the path of a file")
    assert faults[5] == "drain_seconds 'nan' (from --drain-seconds): expected seconds, 0 to 3600"
    assert faults[7] == "log_level 'loud' (from service.toml): expected one of debug, info, warning, error"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("workers = ", "not TOML (at end of document)"),
        (f'tokens = ["{SECRET}', "not TOML (at "),
        ("#" + "x" * 2_000_000, "at most 1048576 bytes"),
    ],
)
def test_unreadable_file_is_reported_and_never_quoted(file: Path, content: str, said: str) -> None:
    file.write_text(content, encoding="utf-8")
    (fault,) = _faults(file=file)
    assert said in fault
    assert SECRET not in fault


def test_a_file_that_is_not_there_is_an_error(file: Path) -> None:
    assert "No such file" in _faults(file=file)[0]


def test_several_workers_need_a_store_that_they_can_share() -> None:
    (fault,) = _faults({"workers": "4"})
    assert fault.startswith("workers 4 (from --workers): processes cannot share the counts of store memory://")
    assert "redis://" in fault
    assert load({"workers": "4", "store": "redis://localhost"}).workers == 4


def test_settings_that_need_each_other_are_checked(tmp_path: Path) -> None:
    pem = tmp_path / "pem"
    pem.touch()
    assert _faults({"tls_certificate": str(pem)}) == [
        "tls_certificate (from --tls-certificate): expected tls_key beside it"
    ]
    assert _faults({"tls_clients": str(pem)}) == [
        "tls_clients (from --tls-clients): expected tls_certificate beside it"
    ]
    assert _faults({"keys": str(pem)}) == ["keys (from --keys): expected keys_secret beside it"]
    assert load({"tls_certificate": str(pem), "tls_key": str(pem)}).tls_key == pem


def test_trusted_proxies_are_a_number_or_networks() -> None:
    assert load({"trusted_proxies": ["2"]}).trusted_proxies == 2
    assert load(environment={"PENSTOCK_TRUSTED_PROXIES": "10.0.0.0/8, unix"}).trusted_proxies == ("10.0.0.0/8", "unix")
    assert "expected" in _faults({"trusted_proxies": ["0.0.0.0/0"]})[0]
    assert "expected" in _faults({"trusted_proxies": ["10.0.0.0/99"]})[0]


# ---------------------------------------------------------------- secrets


def test_secrets_may_be_in_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n", encoding="utf-8")
    assert load(environment={"PENSTOCK_TOKEN_SECRET": f"file:{tmp_path}/secret"}).token_secret == SECRET.encode()
    assert "No such file" in _faults(environment={"PENSTOCK_TOKEN_SECRET": f"file:{tmp_path}/other"})[0]


def test_secrets_have_no_flags() -> None:
    assert {setting.name for setting in SETTINGS if not setting.flag} == {"keys_secret", "token_secret", "tokens"}


def test_secrets_are_shown_nowhere(tmp_path: Path) -> None:
    (tmp_path / "keys.csv").touch()
    settings = load(
        {"store": f"redis://alice:{SECRET[:7]}@db:6379/0?secret={SECRET[:7]}", "keys": str(tmp_path / "keys.csv")},
        {"PENSTOCK_TOKEN_SECRET": SECRET, "PENSTOCK_TOKENS": "a" * 20, "PENSTOCK_KEYS_SECRET": SECRET},
    )
    shown = {name: value for name, value, _ in settings.lines()}
    assert shown["store"] == "redis://***@db:6379/0?secret=***"
    assert shown["token_secret"] == shown["tokens"] == shown["keys_secret"] == "***"
    told = "".join(shown.values()) + repr(settings).replace(settings.store, "")
    assert SECRET[:7] not in told
    assert "a" * 20 not in told


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("memory://?max_keys=5", "memory://?max_keys=5"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:hush@host:6379", "redis://***@host:6379"),
        ("redis://u:hu?sh@host", "redis://***"),
        ("redis://host?secret=hu@sh", "redis://***"),
        ("redis://u@host?secret=hu&hush&deadline=1", "redis://***@host?secret=***&***&deadline=1"),
        ("redis://host?ssl_password=hush", "redis://host?***"),
        ("redis://host#hush", "redis://host"),
        ("hush", "***"),
    ],
)
def test_urls_are_printed_without_what_may_be_secret(url: str, printed: str) -> None:
    assert hidden_url(url) == printed


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET[:7]}#x@host",
        f"redis//{SECRET[:7]}",
        f"http://{SECRET[:7]}",
        f"memory://{SECRET[:7]}",
        f"redis+sentinel://:{SECRET[:7]}@h",
    ],
)
def test_fault_of_a_store_does_not_quote_its_url(url: str) -> None:
    (fault,) = _faults({"store": url})
    assert fault.startswith("store (not shown) (from --store): expected a URL, such as memory:// or redis://")
    assert SECRET[:7] not in fault


@pytest.mark.parametrize("tokens", ["short", "with a space in it!", "ümläüts, which are not ASCII"])
def test_a_token_is_something_that_a_header_can_carry(tokens: str) -> None:
    (fault,) = _faults(environment={"PENSTOCK_TOKENS": tokens})
    assert fault.startswith("tokens (not shown) (from PENSTOCK_TOKENS): expected ")
    assert tokens not in fault
