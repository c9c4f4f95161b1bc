"""Which service a command asks: options that all such commands share."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from penstock.cli.output import NOT_UNDERSTOOD, UNANSWERED, fail
from penstock.client.address import DEFAULT_URL, Address, Tls
from penstock.client.client import Client
from penstock.client.store import ServiceCalls
from penstock.errors import InvalidInput, StoreError

TOKEN = "PENSTOCK_TOKEN"  # noqa: S105  the name of the variable, not what it holds
TIMEOUT = 5.0

Url = Annotated[
    str, typer.Option(envvar="PENSTOCK_URL", help=f"Where the service is; its token is taken from {TOKEN}.")
]
Ca = Annotated[Path | None, typer.Option(envvar="PENSTOCK_CA", help="Who signs the service's certificate (PEM).")]
Certificate = Annotated[
    Path | None, typer.Option(envvar="PENSTOCK_CLIENT_CERTIFICATE", help="What to show the service of ourselves (PEM).")
]
Key = Annotated[
    Path | None, typer.Option(envvar="PENSTOCK_CLIENT_KEY", help="Its key, if the certificate's file has none (PEM).")
]
Timeout = Annotated[float, typer.Option(help="Seconds that the service may take.", min=0.001, max=3_600)]


class Target(NamedTuple):
    """A service, and what it takes to ask it. A token comes from the environment alone: flags are seen by everybody."""

    url: str = DEFAULT_URL
    ca: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    timeout: float = TIMEOUT

    @contextmanager
    def client(self) -> Iterator[Client]:
        """To ask it about requests. What goes wrong ends the command, with a line that says so."""
        try:
            with Client(self.url, token=_token(), tls=self._tls, timeout=self.timeout, on_failure="raise") as client:
                yield client
        except StoreError as error:
            fail(str(error), UNANSWERED)
        except InvalidInput as error:
            fail(str(error), NOT_UNDERSTOOD)

    @contextmanager
    def service(self) -> Iterator[ServiceCalls]:
        """To ask it about itself."""
        try:
            service = ServiceCalls(Address(self.url, _token(), self._tls), self.timeout)
        except InvalidInput as error:
            fail(str(error), NOT_UNDERSTOOD)
        try:
            yield service
        finally:
            service.close()

    @property
    def _tls(self) -> Tls | None:
        files = self.ca, self.client_certificate, self.client_key
        return Tls(*files) if any(files) else None


def _token() -> str | None:
    return os.environ.get(TOKEN) or None


_OPTIONS: dict[str, Any] = {
    "url": Url,
    "ca": Ca,
    "client_certificate": Certificate,
    "client_key": Key,
    "timeout": Timeout,
}


def with_target(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose first parameter is the target: the others are its own, and the target's options follow."""

    @wraps(command)
    def asking(**arguments: Any) -> None:
        target = Target(**{name: arguments.pop(name) for name in _OPTIONS})
        command(target, **arguments)

    signature = inspect.signature(command, eval_str=True)
    own = [one.replace(kind=one.KEYWORD_ONLY) for one in list(signature.parameters.values())[1:]]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=Target._field_defaults[name], annotation=kind)
        for name, kind in _OPTIONS.items()
    ]
    asking.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    asking.__annotations__ = {one.name: one.annotation for one in [*own, *options]}
    return asking
