"""A real primary with replicas, and Sentinels that watch them and promote a replica when the primary is gone.

    with SentinelSet("valkey") as sentinel_set:
        client = connect(sentinel_set.url)
        dead = sentinel_set.kill_primary()     # returns when the sentinels have promoted another
        sentinel_set.restart(dead)             # returns when it follows the new primary

Times are Sentinel's own, with three exceptions: it looks around ten times a second while we wait for it to find
something out; it does not fail over because the machine stood still; and a failover that failed is soon tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tests.rig.certificates import Certificate
from tests.rig.resp import Word
from tests.rig.servers import Sentinel, Server
from tests.rig.topologies import (
    Topology,
    awake,
    come_to_terms,
    follows,
    insist,
    linked,
    together,
    url_of,
    without_replication,
)

# In milliseconds. A sentinel asks who replicates from whom, tells others what it knows, and looks for those it has
# lost, in these periods; a server that claims to be primary is left in peace for four periods of publishing.
_UNHURRIED = {"info-period": 10_000, "publish-period": 2_000, "ping-period": 1_000}
_HURRIED = dict.fromkeys(_UNHURRIED, 100)

_FAILOVER_TIMEOUT = 2_000  # its default of three minutes is also half of how long it waits after votes were split


class SentinelSet(Topology):
    """One primary, replicas of it, and sentinels that watch over them.

    - `service`: the name that sentinels know them by.
    - `down_after`: milliseconds of silence after which a primary is down.
    - `min_replicas`: how many replicas a primary must have heard from in the last `max_lag` seconds to accept writes.
    - `password`: what clients must say to servers; `sentinel_password`: what they must say to sentinels.
    - `certificate`: makes servers and sentinels speak TLS, also with one another.
    - `config`: further lines of the servers' configuration.
    """

    def __init__(
        self,
        flavour: str = "valkey",
        *,
        replicas: int = 2,
        sentinels: int = 3,
        service: str = "main",
        down_after: int = 500,
        min_replicas: int = 0,
        max_lag: int = 10,
        password: str | None = None,
        sentinel_password: str | None = None,
        certificate: Certificate | None = None,
        config: Iterable[str] = (),
    ) -> None:
        self.service, self.down_after = service, down_after
        lines = [f"min-replicas-to-write {min_replicas}", f"min-replicas-max-lag {max_lag}"]
        lines += [*linked(password, certificate), *config]
        self.servers = tuple(
            Server(flavour, config=lines, password=password, certificate=certificate) for _ in range(1 + replicas)
        )
        self.sentinels = tuple(
            Sentinel(flavour, config=linked(None, certificate), password=sentinel_password, certificate=certificate)
            for _ in range(sentinels)
        )
        super().__init__((*self.servers, *self.sentinels))

    @property
    def url(self) -> str:
        """How a client finds the primary: `redis+sentinel://:password@HOST:PORT,HOST:PORT/SERVICE?sentinel_password=`."""
        url = f"{url_of('sentinel', self.sentinels)}/{self.service}"
        if (password := self.servers[0].password) is not None:
            url = url.replace("://", f"://:{password}@")
        secret = self.sentinels[0].password
        return url if secret is None else f"{url}?sentinel_password={secret}"

    @property
    def primary(self) -> Server:
        """The server that the sentinels name as primary, even if it is dead, frozen or a replica by now."""
        return self._named_by(awake(self.sentinels)[0])

    @property
    def primaries(self) -> tuple[Server, ...]:
        return (self.primary,)

    @property
    def replicas(self) -> tuple[Server, ...]:
        """The other servers, alive or dead."""
        primary = self.primary
        return tuple(server for server in self.servers if server is not primary)

    # ---------------------------------------------------------------- what can happen to a primary

    def kill_primary(self) -> Server:
        """Kill it, and return it when another was promoted. `restart` brings it back."""
        old = self.primary
        old.kill()
        self.wait_for_new_primary(old)
        return old

    def freeze_and_promote(self) -> Server:
        """Freeze it, and return it when another was promoted.

        When thawed it still acts as a primary and carries out requests, until the sentinels demote it after ten
        seconds, or `wait_until_ok` speeds them up.
        """
        old = self.primary
        old.freeze()
        self.wait_for_new_primary(old)
        return old

    def sentinel_failover(self) -> Server:
        """Have the sentinels promote a replica without a failure (SENTINEL FAILOVER); return the old primary.

        The old one is not informed: for ten seconds it still acts as a primary.
        """
        old = self.primary
        sentinel = awake(self.sentinels)[0]
        insist(
            lambda: sentinel.ask("SENTINEL", "FAILOVER", self.service),
            lambda: self._agreed() not in (None, old),
            "the failover that the sentinels were asked for",
        )
        return old

    def failover(self, to: Server | None = None) -> Server:
        """Have the primary hand over to a replica without loss (FAILOVER); return the new primary.

        The sentinels are not informed, and name the old one for half a minute. Then they hold an election, which
        the new one may well lose; `wait_for_new_primary(old)` waits for the outcome, and `wait_until_ok` hurries them.
        """
        old = self.primary
        new = to or awake(self.replicas)[0]
        insist(
            lambda: old.ask("FAILOVER", "TO", *new.address),
            lambda: _is_primary(new) and not _is_primary(old),
            "the failover that the primary was asked for",
        )
        return new

    @contextmanager
    def losing_writes(self) -> Iterator[Server]:
        """Yields the primary: what it acknowledges in this block is lost. In the end it is killed, another promoted."""
        old = self.primary
        with without_replication(old, awake(self.replicas)):
            yield old
            old.kill()
        self.wait_for_new_primary(old)

    def restart(self, member: Server) -> None:
        """Kill a server or a sentinel, if it runs, and start it again; returns when it has found its place."""
        member.restart()
        if isinstance(member, Sentinel):
            _prepare(member, self.down_after)
        self.wait_until_ok()

    # ---------------------------------------------------------------- waiting

    def wait_for_new_primary(self, old: Server) -> Server:
        """Return the primary when all sentinels and the primary itself agree on another one than `old`."""
        come_to_terms(lambda: self._agreed() not in (None, old), f"a primary other than the one on port {old.port}")
        return self.primary

    def wait_until_ok(self) -> None:
        """Return when all awake servers have their roles, and every sentinel knows them."""
        with self._hurried():
            come_to_terms(self._ok, f"{self.service}: replicas that are online and sentinels that know one another")

    def _ok(self) -> bool:
        primary = self._agreed()
        if primary is None:
            return False
        replicas = [server for server in awake(self.servers) if server is not primary]
        return all(follows(replica, primary) for replica in replicas) and all(
            self._knows_all(sentinel, replicas) for sentinel in awake(self.sentinels)
        )

    def _knows_all(self, sentinel: Server, replicas: list[Server]) -> bool:
        """Return whether a sentinel knows its peers and replicas, and could promote each awake one."""
        primary = _fields(sentinel.ask("SENTINEL", "MASTER", self.service))
        seen = {int(row[b"port"]): row for row in map(_fields, sentinel.ask("SENTINEL", "REPLICAS", self.service))}
        return (
            primary[b"flags"] == b"master"
            and int(primary[b"num-other-sentinels"]) == len(self.sentinels) - 1
            and len(seen) == len(self.servers) - 1
            and all(_is_well(seen.get(replica.port, {})) for replica in replicas)
        )

    def _agreed(self) -> Server | None:
        """Return the primary if every sentinel and the server itself agree; else None."""
        named = {self._named_by(sentinel) for sentinel in awake(self.sentinels)}
        primary = named.pop()
        return primary if not named and primary.awake and _is_primary(primary) else None

    def _named_by(self, sentinel: Server) -> Server:
        _, port = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return next(server for server in self.servers if server.port == int(port))

    @contextmanager
    def _hurried(self) -> Iterator[None]:
        """Sentinels that look around often."""
        _set_periods(awake(self.sentinels), _HURRIED)
        try:
            yield
        finally:
            _set_periods(awake(self.sentinels), _UNHURRIED)

    # ---------------------------------------------------------------- joining

    def _join(self) -> None:
        primary, *replicas = self.servers
        for replica in replicas:
            replica.ask("REPLICAOF", *primary.address)
            replica.ask("CONFIG", "REWRITE")
        together(self._watch, self.sentinels)
        self.wait_until_ok()

    def _watch(self, sentinel: Server) -> None:
        primary = self.servers[0]
        _prepare(sentinel, self.down_after)
        sentinel.ask("SENTINEL", "MONITOR", self.service, *primary.address, len(self.sentinels) // 2 + 1)
        options: list[Word] = ["down-after-milliseconds", self.down_after]
        options += ["failover-timeout", _FAILOVER_TIMEOUT, "parallel-syncs", len(self.servers)]
        if primary.password is not None:
            options += ["auth-pass", primary.password]
        sentinel.ask("SENTINEL", "SET", self.service, *options)


def _prepare(sentinel: Server, down_after: int) -> None:
    """Make a sentinel recover quickly after the machine stood still, without a false failover.

    After a pause of 2 s a sentinel does nothing for 30 s; after a shorter one it marks all servers as down.
    """
    _set_periods([sentinel], {"tilt-trigger": max(300, down_after // 2), "tilt-period": 1_000})


def _set_periods(sentinels: Iterable[Server], periods: dict[str, int]) -> None:
    for sentinel in sentinels:
        sentinel.ask("SENTINEL", "DEBUG", *(word for period in periods.items() for word in period))


def _is_primary(server: Server) -> bool:
    return bool(server.ask("ROLE")[0] == b"master")


def _is_well(replica: dict[bytes, bytes]) -> bool:
    return replica.get(b"flags") == b"slave" and replica.get(b"master-link-status") == b"ok"


def _fields(reply: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(reply[::2], reply[1::2], strict=True))
