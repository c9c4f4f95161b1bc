"""`penstock serve`: start the decision service.

    penstock serve                                              one worker, counters in memory, rules in penstock.yaml
    penstock serve --store redis://db:6379/0 --workers 4        production
    penstock serve --print-config                               every setting, and where its value came from

Its flags are the settings: see `penstock.service.settings.model`. Exit codes: 0, it was told to stop; 1, the rules
have faults or no worker became ready; 2, settings or command were not understood.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from io import StringIO
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.errors import InvalidOption, InvalidRules
from penstock.observability.logs import Form, configure
from penstock.service.settings import SETTINGS, Setting, Settings, load
from penstock.service.sockets import ListenAddress, ListeningSockets, inherited
from penstock.service.worker import Inherited

# ---------------------------------------------------------------- example rules


# The rules that `penstock serve` writes where there are none: small, true, and something to change.


EXAMPLE = """\
# Rules of Penstock. `penstock serve` follows this file: save it, and a second later it is in force.
# What else can stand here: docs/rules.md. What is wrong with it: penstock rules check penstock.yaml

rules:
  # Everybody, by API key, else by address.
  - id: everybody
    key: api_key | ip
    quota: 100/minute

  # Searching is dear. Both rules apply to it: a request is charged to all of them or to none.
  - id: search
    match:
      path: {prefix: /search}
    key: api_key | ip
    quota: 5/10 seconds

  # Logins are guessed at: five tries, then a quarter of an hour of nothing.
  - id: login
    match:
      path: /login
      method: POST
    key: ip
    quota: 5/15 minutes rolling_window penalty 15m
"""


# ---------------------------------------------------------------- serve


log = logging.getLogger("penstock.service")

FAULTY, NOT_UNDERSTOOD = 1, 2

BODY = '{"descriptor": {"path": "/search", "ip": "192.0.2.1"}}'
ENVOY_BODY = '{"domain": "DOMAIN", "descriptors": [{"entries": [{"key": "KEY", "value": "VALUE"}]}]}'
"""Where there are limits of Envoy's alone, whose names only their owner knows."""

BEARER = '"Authorization: Bearer $PENSTOCK_TOKEN"'


def serve(
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings; also PENSTOCK_CONFIG.")] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings, and start nothing.")
    ] = False,
    view: Annotated[bool, typer.Option("--view/--no-view", help="Show figures while it runs, in a terminal.")] = True,
    **flags: Any,
) -> None:
    """Start the decision service, for clients in any language.

    Every setting can also be given as a variable (`--store` is `PENSTOCK_STORE`) or in a file. Without any, it counts
    in memory, listens on this machine alone, and writes an example of rules if there is none.
    """
    try:
        settings = load(flags, os.environ, config)
    except InvalidOption as error:
        raise _refused(str(error), NOT_UNDERSTOOD) from None
    if print_config:
        _print(settings)
        return
    console = Console(highlight=False, soft_wrap=True)
    looked_at = view and console.is_terminal
    _log_to_stderr(settings, looked_at=looked_at)
    try:
        _serve(settings, _command(flags, config), console, looked_at=looked_at)
    except InvalidRules as error:
        raise _refused(str(error), FAULTY) from None
    except InvalidOption as error:
        raise _refused(str(error), NOT_UNDERSTOOD) from None


def _option(setting: Setting) -> inspect.Parameter:
    """A setting as a parameter of the command. None is what was not said: the default is for `load` to know."""
    help = escape(f"{setting.help[0].upper()}{setting.help[1:]} (default: {setting.shown(setting.default)}).")
    kind: Any = list[str] | None if setting.many else str | None
    annotation = Annotated[kind, typer.Option(setting.flag, help=help, show_default=False, metavar=_metavar(setting))]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _metavar(setting: Setting) -> str:
    kinds = {bool: "on|off", int: "NUMBER", float: "NUMBER"}
    return kinds.get(type(setting.default), "TEXT")


_said = [one for one in inspect.signature(serve).parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
_offered = [_option(setting) for setting in SETTINGS if setting.flag]
serve.__signature__ = inspect.Signature([*_offered, *[one.replace(kind=one.KEYWORD_ONLY) for one in _said]])  # type: ignore[attr-defined]


# ---------------------------------------------------------------- serving


def _serve(settings: Settings, command: list[str], console: Console, *, looked_at: bool) -> None:
    from penstock.service import app

    worker = Inherited.find(os.environ)
    if worker is not None:
        from penstock.cli.view import NoView

        service = app.worker_of(settings, worker)
        app.run(service, inherited(worker.listening), NoView(), worker)
        return
    _write_example(settings)
    if settings.shared and settings.token_secret is None:
        log.warning("token_secret is not set: receipts of this host will mean nothing to others, and end with it")
    with ListeningSockets(settings.listen) as listening:
        if settings.workers > 1:
            raise typer.Exit(_supervise(settings, listening, command, console, looked_at=looked_at))
        _alone(settings, listening, console, looked_at=looked_at)


def _alone(settings: Settings, listening: ListeningSockets, console: Console, *, looked_at: bool) -> None:
    from penstock.cli.view import InProcessView, NoView
    from penstock.service import app

    view: InProcessView | NoView = InProcessView(console) if looked_at else NoView()

    class Greeting:
        def ready(self, service: app.Service) -> None:
            _greet(settings, listening.addresses, console)
            view.ready(service)

        def abandoned(self) -> bool:
            return view.abandoned()

    service = app.Service(settings)
    try:
        app.run(service, listening.sockets, Greeting())
    finally:
        view.close()


def _supervise(
    settings: Settings, listening: ListeningSockets, command: list[str], console: Console, *, looked_at: bool
) -> int:
    from penstock.cli.view import WorkersView
    from penstock.service import app
    from penstock.service.supervisor import NoObserver, WorkerObserver

    views: list[WorkersView] = []

    def onlooker(figures: Path) -> WorkerObserver:
        _greet(settings, listening.addresses, console)
        if not looked_at:
            return NoObserver()
        views.append(WorkersView(console, figures))
        return views[0]

    try:
        return app.supervise(settings, command, listening.numbers, onlooker)
    finally:
        for view in views:
            view.close()


def _command(flags: dict[str, Any], config: Path | None) -> list[str]:
    """What a worker is started by: the same flags, so that it comes to the same settings."""
    command = [sys.executable, "-m", "penstock.cli", "serve"]
    if config is not None:
        command += ["--config", str(config)]
    for setting in SETTINGS:
        said = flags.get(setting.name)
        for value in said if isinstance(said, list) else [] if said is None else [said]:
            command += [setting.flag, value]
    return command


def _write_example(settings: Settings) -> None:
    """Where nobody named a file of rules and there is none, there is one afterwards."""
    if settings.has_rules and settings.origin("rules") == "default" and not settings.rules.exists():
        try:
            with settings.rules.open("x", encoding="utf-8") as file:
                file.write(EXAMPLE)
        except OSError as error:
            raise InvalidOption(f"rules {settings.rules}: an example cannot be written: {error.strerror}") from None
        typer.echo(f"wrote {settings.rules}, an example of rules to begin with", err=True)


# ---------------------------------------------------------------- saying


def _greet(settings: Settings, addresses: list[ListenAddress], console: Console) -> None:
    workers = "1 worker" if settings.workers == 1 else f"{settings.workers} workers"
    store = next(value for name, value, _ in settings.lines() if name == "store")
    of_envoy = "" if settings.envoy_config is None else f"limits of {settings.envoy_config}"
    said = ", ".join(part for part in (f"rules of {settings.rules}" if settings.has_rules else "", of_envoy) if part)
    console.print(Text.assemble(("Penstock", "bold"), f": {said}, counters in {store}, {workers}"))
    for address in addresses:
        console.print(Text.assemble("listening on ", (_url(settings, address), "bold")))
    console.print(Text.assemble("try it:\n  ", (curl(settings, addresses[0]), "bold"), "\n"))


def curl(settings: Settings, address: ListenAddress) -> str:
    """A line that asks the service for a decision."""
    words = ["curl", "-s"]
    if settings.tls_certificate is not None:
        words += ["--cacert", quote(str(settings.tls_certificate))]
    if address.path:
        words += ["--unix-socket", quote(address.path)]
    path, body = ("/v1/check", BODY) if settings.has_rules else ("/json", ENVOY_BODY)
    words += [f"{_url(settings, address, host='localhost' if address.path else '')}{path}"]
    if settings.tokens:
        words += ["-H", BEARER]
    return " ".join([*words, "-d", f"'{body}'"])


def _url(settings: Settings, address: ListenAddress, host: str = "") -> str:
    if address.path and not host:
        return str(address)
    scheme = "https" if settings.tls_certificate is not None else "http"
    return f"{scheme}://{host or address.reached_at}"


def _print(settings: Settings) -> None:
    if not sys.stdout.isatty():
        for line in settings.lines():
            typer.echo("\t".join(line))
        return
    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for name, value, origin in settings.lines():
        table.add_row(Text(name), Text(value), Text(origin, "dim" if origin == "default" else ""))
    Console(highlight=False).print(table)


def _refused(why: str, code: int) -> typer.Exit:
    typer.echo(why, err=True)
    return typer.Exit(code)


class _Stderr(StringIO):
    """Standard error as it is when something is written: a live view puts its own in place, and draws below."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _log_to_stderr(settings: Settings, *, looked_at: bool) -> None:
    """Everything of ours, and what Python and OpenTelemetry say. Refusals are left out where a view counts them."""
    configure(cast("Form", settings.log_format), settings.log_level, _Stderr())
    logging.captureWarnings(capture=True)
    for name in ("py.warnings", "asyncio", "opentelemetry"):
        other = logging.getLogger(name)
        other.handlers[:] = logging.getLogger("penstock").handlers
        other.propagate = False
    if looked_at and settings.origin("log_denials") == "default":
        logging.getLogger("penstock.denials").setLevel(logging.WARNING)
