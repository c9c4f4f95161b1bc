"""What servers say instead of an answer: may it succeed later, was it charged?"""

import re
from pathlib import Path

import hiredis
import pytest

from penstock.stores.redis.commands import Commands
from penstock.stores.redis.config import Node, read_url
from penstock.stores.redis.errors import COMMANDS, RIGHTS, failed_by, unanswered
from penstock.stores.redis.script import SCRIPT

REFUSALS = (
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "CLUSTERDOWN The cluster is down",
    "LOADING Redis is loading the dataset in memory",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "NOREPLICAS Not enough good replicas to write.",
    "NOSCRIPT No matching script. Please use EVAL.",
    "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
    "READONLY You can't write against a read only replica.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
)


@pytest.mark.parametrize("text", REFUSALS)
def test_a_refusal_before_the_script_passes_and_charged_nothing(text: str) -> None:
    failed = failed_by(hiredis.ReplyError(text), "here:6379")
    assert (failed.error.transient, failed.charged) == (True, "no")
    assert str(failed.error).startswith("redis at here:6379: ")
    assert text in str(failed.error)


@pytest.mark.parametrize(
    "text",
    [
        "NOAUTH Authentication required.",
        "ERR Protocol error: unauthenticated bulk length",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "NOPERM this user has no permissions to run the 'evalsha' command",
    ],
)
def test_a_lack_of_rights_stays_and_charged_nothing(text: str) -> None:
    failed = failed_by(hiredis.ReplyError(text), "here:6379")
    assert (failed.error.transient, failed.charged) == (False, "no")


@pytest.mark.parametrize("charged", ["no", "unknown"])
@pytest.mark.parametrize(
    "text",
    [
        "ERR ACL failure in script: User app has no permissions to run the 'zadd' command script: on @user_script:2.",
        "ERR The user executing the script can't run this command or subcommand script: 6ea2, on @user_script:2.",
    ],
)
def test_a_lack_of_rights_within_the_script_names_all_that_are_needed(text: str, charged: str) -> None:
    """It may have written something before that, unless the script says that it has not."""
    failed = failed_by(hiredis.ReplyError("UNCHARGED " * (charged == "no") + text), "here:6379")
    assert (failed.error.transient, failed.charged) == (False, charged)
    assert "UNCHARGED" not in str(failed.error)
    assert "+evalsha +script|load +time +get" in str(failed.error)


def test_an_unknown_error_may_have_charged() -> None:
    failed = failed_by(hiredis.ReplyError("ERR Error running script: " + "x" * 1_000), "here:6379")
    assert (failed.error.transient, failed.charged) == (False, "unknown")
    assert len(str(failed.error)) < 300


@pytest.mark.parametrize(
    "text",
    [
        "ERR unknown command 'EVALSHA', with args beginning with: ",
        "ERR wrong number of arguments for 'evalsha' command",
        "ERR max number of clients reached",
        "ERR Error running script: Script killed by user with SCRIPT KILL. script: 6ea2, on @user_script:9.",
        "UNCHARGED ERR whatever the script met script: 6ea2, on @user_script:9.",
    ],
)
def test_an_error_that_proves_that_nothing_was_written_charged_nothing(text: str) -> None:
    assert failed_by(hiredis.ReplyError(text), "here:6379").charged == "no"


@pytest.mark.parametrize("code", ["OOM", "READONLY", "NOPERM"])
def test_an_error_after_a_charge_is_unknown_whatever_its_code(code: str) -> None:
    text = f"{code} not now script: 6ea2, on @user_script:9."
    assert failed_by(hiredis.ReplyError(text), "here:6379").charged == "unknown"


def test_the_rights_named_are_those_the_script_needs() -> None:
    called = re.findall(rb"\b(?:call|query|pcall|store)\('([A-Z]+)'", SCRIPT.text)
    assert {name.decode().lower() for name in called} == set(COMMANDS)


def test_the_documentation_grants_what_the_script_needs_and_no_more() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "redis.md").read_text(encoding="utf-8")
    granted = re.search(r"ACL SETUSER.*?-@all (.*?)```", page, re.DOTALL)
    assert granted is not None
    assert sorted(re.findall(r"\+\S+", granted.group(1))) == sorted(RIGHTS.split())


def test_a_server_that_hangs_up_while_it_is_greeted_is_not_used_nor_found_fault_with() -> None:
    commands, node = Commands(read_url("redis://host", secret="x")), Node("host", 6379)
    gone = unanswered("the connection broke", node.place)
    assert commands.welcomed(node, [b"sha", gone, gone]) == gone._replace(charged="no")
    assert commands.findings == []
    assert len(commands.greetings(node)) > 1, "it will be checked on the next connection"
