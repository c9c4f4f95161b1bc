"""Errors of servers and networks as `Failed`: may a retry succeed, and was it charged?"""

from __future__ import annotations

from typing import Literal

from penstock.errors import StoreError
from penstock.model import Failed

NOSCRIPT = "NOSCRIPT"

REFUSED = {
    "BUSY": "a script has been running for too long",
    "CLUSTERDOWN": "the cluster is down",
    "LOADING": "the server is loading its data",
    "MASTERDOWN": "the replica has lost its primary",
    "MISCONF": "the server cannot save, and therefore refuses writes",
    "NOREPLICAS": "too few replicas are up to date",
    "NOSCRIPT": "the server forgets scripts faster than they can be loaded",
    "OOM": "the server is out of memory (noeviction and a larger maxmemory are recommended)",
    "READONLY": "the server is a replica",
    "TRYAGAIN": "slots are being moved",
}
"""Errors that a server raises before a script begins, and that pass."""

COMMANDS = (
    *("time", "get", "set", "del", "pexpire", "zadd", "zcard", "zcount", "zrange", "zrangebyscore", "zrem", "zscore"),
    *("zremrangebyrank", "zremrangebyscore"),
)
"""The commands that the script calls. A server checks the rights of the user for each of them."""

RIGHTS = " ".join(f"+{command}" for command in ("evalsha", "script|load", *COMMANDS))
"""The rights that an ACL must allow, beside the keys with the prefix."""

FORBIDDEN = {
    "ASK": "the server is a node of a cluster: connect with redis+cluster://",
    "CROSSSLOT": "the server is a node of a cluster: connect with redis+cluster://",
    "MOVED": "the server is a node of a cluster: connect with redis+cluster://",
    "NOAUTH": "the server wants a password",
    "NOPERM": f"the user may not do this (expected {RIGHTS}, and the key prefix)",
    "WRONGPASS": "wrong user name or password",
}
"""Errors that a server raises before a script begins, and that last until the configuration is changed."""

WITHIN_SCRIPT = ("ACL failure in script", "The user executing the script can't")
"""The beginnings of errors, behind ERR, for a user who lacks a right that the script needs: Valkey, Redis."""

UNCHARGED = "UNCHARGED "
"""What the script puts before errors that it met before its first charge."""

WITHIN = "on @user_script"
"""What servers put behind errors of commands that a script called."""

NEVER_RUN = ("unknown command", "wrong number of arguments", "Protocol error", "max number of clients reached")
"""The beginnings of errors, behind ERR, with which a server refuses a command before it runs it."""

KILLED = "Script killed by user"
"""The error for a script that was ended by `SCRIPT KILL`, which servers allow only before its first write."""

WHILE_MOVED = "non local key in a cluster node"
"""The error, behind ERR, for a script that removed a key and touched it again while its slot was being moved."""

UNAUTHENTICATED = "Protocol error: unauthenticated"
"""The error of Redis for a command as long as the script on a connection without a password."""

MAX_TEXT = 200


def failed_by(reply: Exception, place: str) -> Failed:
    """Return the failure that an error of the server at `place` means for every operation of the call."""
    charged: Literal["no", "unknown"] = "no" if is_uncharged(str(reply)) else "unknown"
    text = str(reply).removeprefix(UNCHARGED)[:MAX_TEXT]
    code = "NOAUTH" if UNAUTHENTICATED in text else text.partition(" ")[0]
    if code in REFUSED:
        return Failed(StoreError(f"redis at {place}: {REFUSED[code]} ({text})", transient=True), charged)
    if code in FORBIDDEN:
        return Failed(StoreError(f"redis at {place}: {FORBIDDEN[code]} ({text})", transient=False), charged)
    if WHILE_MOVED in text:
        return Failed(StoreError(f"redis at {place}: {REFUSED['TRYAGAIN']} ({text})", transient=True), charged)
    why = f"{FORBIDDEN['NOPERM']} ({text})" if text.removeprefix("ERR ").startswith(WITHIN_SCRIPT) else text
    return Failed(StoreError(f"redis at {place}: {why}", transient=False), charged)


def is_uncharged(error: str) -> bool:
    """Return whether an error of a server proves that the script has charged nothing."""
    if error.startswith(UNCHARGED) or KILLED in error:
        return True
    if WITHIN in error:  # after a charge, whatever the code
        return False
    code, _, rest = error.partition(" ")
    return code in REFUSED or code in FORBIDDEN or rest.startswith(NEVER_RUN)


def not_sent(why: str, place: str, *, transient: bool = True) -> Failed:
    """Return the failure of a call that did not reach the server."""
    return Failed(StoreError(f"redis at {place}: {why}", transient=transient), "no")


def unanswered(why: str, place: str) -> Failed:
    """Return the failure of a call that was sent and has no reply."""
    return Failed(StoreError(f"redis at {place}: {why}", transient=True), "unknown")
