"""Clients need the standard library alone."""

from __future__ import annotations

import subprocess
import sys

LOOK = """
import sys
import penstock.client
import penstock
penstock.client.Client("http://127.0.0.1:1").close()
print(*{name.partition(".")[0] for name in sys.modules} & set(sys.argv[1:]))
"""
OTHERS = ("hiredis", "httptools", "msgspec", "pydantic", "redis", "rich", "typer", "uvloop", "yaml")


def test_clients_need_nothing_that_must_be_installed() -> None:
    looked = subprocess.run((sys.executable, "-c", LOOK, "json", *OTHERS), capture_output=True, text=True, check=True)
    assert looked.stdout.split() == ["json"]  # json shows that the program looks
