"""Sockets to listen on."""

from __future__ import annotations

import errno
import os
import resource
import socket
from pathlib import Path

import pytest

from penstock.errors import InvalidOption
from penstock.service import sockets as listening_module
from penstock.service.sockets import SPARE, ListenAddress, ListeningSockets, inherited, make_room


def test_a_port_of_0_is_any_that_is_free_and_the_same_for_all_addresses_of_a_host() -> None:
    with ListeningSockets([ListenAddress("localhost", 0), ListenAddress("127.0.0.1", 0)]) as listening:
        first, second = listening.addresses
        assert 0 not in (first.port, second.port)
        assert {each.getsockname()[1] for each in listening.sockets} == {first.port, second.port}
        socket.create_connection(("localhost", first.port)).close()


def test_port_in_use_is_an_error_and_leaves_nothing_open() -> None:
    with ListeningSockets([ListenAddress("127.0.0.1", 0)]) as listening:
        taken = listening.addresses[0]
        with pytest.raises(InvalidOption, match=rf"^listen 127\.0\.0\.1:{taken.port}: Address already in use$"):
            ListeningSockets([ListenAddress("127.0.0.1", 0), taken])


def test_sockets_are_shared_by_their_numbers() -> None:
    with ListeningSockets([ListenAddress("127.0.0.1", 0)]) as listening:
        (copy,) = inherited([listening.sockets[0].dup().detach()])
        with copy:
            assert copy.getsockname() == listening.sockets[0].getsockname()
            assert copy.family == socket.AF_INET


def test_the_file_of_a_unix_socket_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with ListeningSockets([ListenAddress(path=str(path))]):
        assert path.is_socket()
        with pytest.raises(InvalidOption, match="Address already in use"):
            ListeningSockets([ListenAddress(path=str(path))])
        assert path.is_socket()
    assert not path.exists()


def test_stale_socket_file_is_removed_and_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with ListeningSockets([ListenAddress(path=str(path))]):
        pass
    path.write_text("precious")
    with pytest.raises(InvalidOption, match="no socket"):
        ListeningSockets([ListenAddress(path=str(path))])
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        (ListenAddress("", 1), "127.0.0.1:1"),
        (ListenAddress("0.0.0.0", 1), "127.0.0.1:1"),
        (ListenAddress("::", 1), "[::1]:1"),
        (ListenAddress("db", 1), "db:1"),
        (ListenAddress(path="/run/s"), "/run/s"),
    ],
)
def test_address_for_clients_replaces_wildcards(address: ListenAddress, reached: str) -> None:
    assert address.reached_at == reached


def test_wildcard_without_ipv6_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver names both all the same. An address that is not there at all is a fault."""
    make = listening_module._on_port

    def without_ipv6(family: int, place: tuple[object, ...]) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return make(family, place)

    monkeypatch.setattr(listening_module, "_on_port", without_ipv6)
    with ListeningSockets([ListenAddress("", 0)]) as listening:
        assert [one.family for one in listening.sockets] == [socket.AF_INET]
        assert listening.addresses[0].port == listening.sockets[0].getsockname()[1]
    with pytest.raises(InvalidOption, match="Address family not supported"):
        ListeningSockets([ListenAddress("::1", 0)])
    with pytest.raises(InvalidOption, match="Cannot assign requested address"):
        ListeningSockets([ListenAddress("192.0.2.1", 0)])


def test_limit_of_open_files_is_raised_as_far_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1_024, 4_096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, made: limits.append(made))
    assert make_room(500) == ""
    assert limits == [(1_024, 4_096)], "there was room"
    assert make_room(2_000) == ""
    assert limits[-1] == (2_000 + SPARE, 4_096)
    said = "limit_connections 10000: the system allows 4096 open files (expected 10128: ulimit -n)"
    assert make_room(10_000) == said
    assert limits[-1] == (4_096, 4_096)
    limits.append((1_024, resource.RLIM_INFINITY))
    assert make_room(10_000) == ""
    limits.append((resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert make_room(10_000) == ""
    assert limits[-1] == (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
