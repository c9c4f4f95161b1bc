"""URLs, passwords and TLS of Sentinel sets and clusters; and what is said if something about them is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.model import Op, Outcome
from tests.integration.redis_support import decided, failed
from tests.redis.topology_support import Face, facing, for_both_faces, name_on, spanning
from tests.rig.certificates import Certificate, can_make_certificates
from tests.rig.clusters import Cluster
from tests.rig.processes import wait_until
from tests.rig.sentinels import SentinelSet
from tests.rig.servers import HOST, Server, binary, free_port, speaks_tls

SECRETS = ("s3cret", "0ther", "wr0ng")


def check_refused(face: str, url: str, expected: str, *, transient: bool, **options: Any) -> None:
    """A deadline of half a minute, for calls that fail sooner."""
    with facing(face, url, **options) as asked:
        for op in (spanning("a"), spanning("a", "b", "c")):
            tls = asked.store.settings.kind == "tls"
            refused = failed(in_the_end(asked, op) if tls else asked.run([op])[0])
            assert str(refused.error) == f"redis at {expected}"
            assert (refused.charged, refused.error.transient) == ("no", transient)
            assert not any(secret in f"{refused!r} {asked.store.settings!r}" for secret in SECRETS)


def in_the_end(asked: Face, op: Op) -> Outcome:
    """The first outcome that is not about a connection that took too long.

    For each connection with TLS redis-py reads all certificates of the system, 28 ms of computing. On a machine that is
    busy with other things, three of them at once may not be done within the two seconds that connecting may take.
    """
    outcomes: list[Outcome] = []

    def told() -> bool:
        outcomes[:] = asked.run([op])
        return "cannot connect (TimeoutError)" not in str(outcomes[0])

    wait_until(told, "an outcome other than a connection that took too long")
    return outcomes[0]


def place(*servers: Server) -> str:
    return ",".join(f"{HOST}:{server.port}" for server in servers)


# ---------------------------------------------------------------- passwords and TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    if binary("redis") is None or not can_make_certificates():
        pytest.skip("redis-server or openssl is not installed")
    made = Certificate.make(HOST, tmp_path_factory.mktemp("certificates"))
    if not speaks_tls("redis", made):
        pytest.skip("redis-server was built without TLS")
    return made


@pytest.fixture(scope="module")
def guarded_set(certificate: Certificate) -> Iterator[SentinelSet]:
    with SentinelSet(
        "redis",
        replicas=1,
        sentinels=2,
        down_after=60_000,
        password="s3cret",
        sentinel_password="0ther",
        certificate=certificate,
    ) as sentinel_set:
        yield sentinel_set


@pytest.fixture(scope="module")
def guarded_cluster(certificate: Certificate) -> Iterator[Cluster]:
    with Cluster("redis", replicas=0, node_timeout=15_000, password="s3cret", certificate=certificate) as cluster:
        yield cluster


@for_both_faces
@pytest.mark.parametrize("name", ["redis", "valkey"])
def test_sentinels_and_servers_have_passwords_and_tls_of_their_own(
    face: str, name: str, guarded_set: SentinelSet, certificate: Certificate
) -> None:
    url = guarded_set.url
    assert url.startswith("rediss+sentinel://:s3cret@")
    with facing(face, url.replace("redis", name, 1), ssl_ca_certs=str(certificate.path)) as asked:
        assert decided(in_the_end(asked, spanning("a")))


@for_both_faces
@pytest.mark.parametrize("name", ["redis", "valkey"])
def test_clusters_have_passwords_and_tls(
    face: str, name: str, guarded_cluster: Cluster, certificate: Certificate
) -> None:
    url = guarded_cluster.url
    assert url.startswith("rediss+cluster://:s3cret@")
    with facing(face, url.replace("redis", name, 1), ssl_ca_certs=str(certificate.path)) as asked:
        assert decided(in_the_end(asked, spanning(*map(str, range(12)))))
        assert len(asked.store.topology.nodes) == 3


@for_both_faces
def test_wrong_passwords_are_said_without_saying_them(
    face: str, guarded_set: SentinelSet, guarded_cluster: Cluster, certificate: Certificate
) -> None:
    trust = {"ssl_ca_certs": str(certificate.path)}
    first, *_ = guarded_set.sentinels
    sentinels, nodes = f"{place(*guarded_set.sentinels)}/main", place(*guarded_cluster.nodes)
    check_refused(
        face,
        guarded_set.url.replace("0ther", "wr0ng"),
        f"{sentinels}: no server could tell which one decides ({place(first)}: wrong user name or password)",
        transient=False,
        **trust,
    )
    check_refused(
        face,
        guarded_set.url.partition("?")[0],
        f"{sentinels}: no server could tell which one decides ({place(first)}: the server wants a password "
        "(NOAUTH Authentication required.))",
        transient=False,
        **trust,
    )
    check_refused(
        face,
        guarded_set.url.replace("s3cret", "wr0ng"),
        f"{place(guarded_set.primary)}: wrong user name or password",
        transient=False,
        **trust,
    )
    with facing(face, guarded_cluster.url.replace("s3cret", "wr0ng"), **trust) as asked:
        refused = failed(in_the_end(asked, spanning("a")))
        assert str(refused.error).startswith(f"redis at {nodes}: no server could tell which one decides ({HOST}:")
        assert str(refused.error).endswith(": wrong user name or password)")
        assert (refused.charged, refused.error.transient) == ("no", False)


@for_both_faces
def test_a_certificate_that_is_not_trusted_is_refused(face: str, guarded_set: SentinelSet) -> None:
    with facing(face, guarded_set.url) as asked:
        refused = failed(asked.run([spanning("a")])[0])
        assert "no server could tell which one decides" in str(refused.error)
        assert "cannot connect" in str(refused.error)
        assert not any(secret in str(refused.error) for secret in SECRETS)


# ---------------------------------------------------------------- servers that are absent, or of another kind


@for_both_faces
def test_unreachable_servers_are_a_transient_failure(face: str) -> None:
    one, other = f"{HOST}:{free_port()}", f"{HOST}:{free_port()}"
    check_refused(
        face,
        f"redis+sentinel://{one},{other}/main",
        f"{one},{other}/main: no server could tell which one decides ({one}: cannot connect (Connection refused))",
        transient=True,
    )
    check_refused(
        face,
        f"redis+cluster://{one}",
        f"{one}: no server could tell which one decides ({one}: cannot connect (Connection refused))",
        transient=True,
    )


@for_both_faces
def test_a_service_that_sentinels_do_not_know_is_named(
    face: str, running_sentinel_sets: dict[str, SentinelSet]
) -> None:
    first, *_ = sentinels = running_sentinel_sets["valkey"].sentinels
    check_refused(
        face,
        f"redis+sentinel://{place(*sentinels)}/mine",
        f"{place(*sentinels)}/mine: no server could tell which one decides "
        f"({place(first)}: it knows no service 'mine')",
        transient=False,
    )


@for_both_faces
def test_a_server_that_is_no_cluster_is_said_to_be_none(face: str, server: Server) -> None:
    check_refused(
        face,
        f"redis+cluster://{place(server)}",
        f"{place(server)}: no server could tell which one decides ({place(server)}: expected a node of a cluster "
        "(ERR This instance has cluster support disabled))",
        transient=False,
    )


@for_both_faces
def test_a_sentinel_is_no_node_of_a_cluster(face: str, running_sentinel_sets: dict[str, SentinelSet]) -> None:
    sentinel = running_sentinel_sets["valkey"].sentinels[0]
    check_refused(
        face,
        f"redis+cluster://{place(sentinel)}",
        f"{place(sentinel)}: no server could tell which one decides ({place(sentinel)}: expected a node of a cluster "
        "(ERR unknown command 'CLUSTER', with args beginning with: 'NODES' ))",
        transient=False,
    )


@for_both_faces
def test_a_server_is_no_sentinel(face: str, server: Server) -> None:
    check_refused(
        face,
        f"redis+sentinel://{place(server)}/main",
        f"{place(server)}/main: no server could tell which one decides ({place(server)}: expected a Sentinel "
        "(ERR unknown command 'SENTINEL', with args beginning with: 'GET-MASTER-ADDR-BY-NAME' 'main' ))",
        transient=False,
    )


@for_both_faces
def test_a_node_of_a_cluster_is_not_to_be_asked_as_if_it_were_alone(
    face: str, running_clusters: dict[str, Cluster]
) -> None:
    cluster = running_clusters["valkey"]
    node, *_, other = cluster.primaries
    with facing(face, cluster.url, namespace="alone") as asked:
        decided(asked.run([spanning("a")])[0])
        elsewhere = name_on(asked.store, other)
    with facing(face, f"redis://{place(node)}", namespace="alone") as asked:
        refused = failed(asked.run([spanning(elsewhere)])[0])
        assert "the server is a node of a cluster: connect with redis+cluster:// (MOVED " in str(refused.error)
        assert (refused.charged, refused.error.transient) == ("no", False)
