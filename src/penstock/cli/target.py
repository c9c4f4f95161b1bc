"""The service that a command calls: the options that all such commands share."""

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
    str, typer.Option(envvar="PENSTOCK_URL", help=f"The URL of the service. Its token is read from {TOKEN}.")
]
Ca = Annotated[
    Path | None, typer.Option(envvar="PENSTOCK_CA", help="The authority that signs the service's certificate (PEM).")
]
Certificate = Annotated[
    Path | None,
    typer.Option(envvar="PENSTOCK_CLIENT_CERTIFICATE", help="The client certificate for the service (PEM)."),
]
Key = Annotated[
    Path | None,
    typer.Option(
        envvar="PENSTOCK_CLIENT_KEY", help="The private key of the client certificate, if its file has none (PEM)."
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for the service.", min=0.001, max=3_600)]


class Target(NamedTuple):
    """A service and the credentials for it. The token has no flag, because all users of a machine see flags."""

    url: str = DEFAULT_URL
    ca: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    timeout: float = TIMEOUT

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Open a client for requests. Its errors end the command with a message."""
        try:
            with Client(self.url, token=_token(), tls=self._tls, timeout=self.timeout, on_failure="raise") as client:
                yield client
        except StoreError as error:
            fail(str(error), UNANSWERED)
        except InvalidInput as error:
            fail(str(error), NOT_UNDERSTOOD)

    @contextmanager
    def service(self) -> Iterator[ServiceCalls]:
        """Open a connection for the service's own endpoints."""
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
    """Wrap a command whose first parameter is a `Target`: replace that parameter by the options of the target."""

    @wraps(command)
    def with_options(**arguments: Any) -> None:
        target = Target(**{name: arguments.pop(name) for name in _OPTIONS})
        command(target, **arguments)

    signature = inspect.signature(command, eval_str=True)
    own = [one.replace(kind=one.KEYWORD_ONLY) for one in list(signature.parameters.values())[1:]]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=Target._field_defaults[name], annotation=kind)
        for name, kind in _OPTIONS.items()
    ]
    with_options.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in [*own, *options]}
    return with_options
