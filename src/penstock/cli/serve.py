"""`penstock serve`: start the decision service.

    penstock serve                                              one worker, counters in memory, rules in penstock.yaml
    penstock serve --store redis://db:6379/0 --workers 4        production
    penstock serve --print-config                               every setting, and where its value came from

Its flags are the settings: see `penstock.service.settings.model`. Exit codes: 0, stopped by a signal; 1, the rules have
faults or no worker became ready; 2, wrong settings or usage.
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

log = logging.getLogger("penstock.service")

FAULTY, NOT_UNDERSTOOD = 1, 2

BODY = '{"descriptor": {"path": "/search", "ip": "192.0.2.1"}}'
ENVOY_BODY = '{"domain": "DOMAIN", "descriptors": [{"entries": [{"key": "KEY", "value": "VALUE"}]}]}'
"""The body of the example call without rules: the names of Envoy's limits are not known here."""

BEARER = '"Authorization: Bearer $PENSTOCK_TOKEN"'

EXAMPLE = """\
# Rules of Penstock. `penstock serve` follows this file: changes take effect within a second.
# All fields: docs/rules.md. To check it: penstock rules check penstock.yaml

rules:
  # Every client, by API key, else by address.
  - id: everybody
    key: api_key | ip
    quota: 100/minute

  # Searches are expensive. Both rules apply to them: a request is charged to all of its rules or to none.
  - id: search
    match:
      path: {prefix: /search}
    key: api_key | ip
    quota: 5/10 seconds

  # Against password guessing: five attempts, then a penalty of 15 minutes.
  - id: login
    match:
      path: /login
      method: POST
    key: ip
    quota: 5/15 minutes rolling_window penalty 15m
"""


"""The rules file that `penstock serve` writes if there is none."""


def serve(
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings; also PENSTOCK_CONFIG.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print all settings and exit.")] = False,
    view: Annotated[bool, typer.Option("--view/--no-view", help="Show live figures in a terminal.")] = True,
    **flags: Any,
) -> None:
    """Start the decision service, for clients in any language.

    Every setting can also be given as a variable (`--store` is `PENSTOCK_STORE`) or in a file. By default it counts in
    memory, listens on this machine only, and writes an example rules file if there is none.
    """
    try:
        settings = load(flags, os.environ, config)
    except InvalidOption as error:
        raise _refused(str(error), NOT_UNDERSTOOD) from None
    if print_config:
        _print(settings)
        return
    console = Console(highlight=False, soft_wrap=True)
    viewed = view and console.is_terminal
    _log_to_stderr(settings, viewed=viewed)
    try:
        _serve(settings, _command(flags, config), console, viewed=viewed)
    except InvalidRules as error:
        raise _refused(str(error), FAULTY) from None
    except InvalidOption as error:
        raise _refused(str(error), NOT_UNDERSTOOD) from None


def _option(setting: Setting) -> inspect.Parameter:
    """Return a setting as a parameter of the command. None means not given: `load` knows the default."""
    help = escape(f"{setting.help[0].upper()}{setting.help[1:]} (default: {setting.shown(setting.default)}).")
    kind: Any = list[str] | None if setting.many else str | None
    annotation = Annotated[kind, typer.Option(setting.flag, help=help, show_default=False, metavar=_metavar(setting))]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _metavar(setting: Setting) -> str:
    kinds = {bool: "on|off", int: "NUMBER", float: "NUMBER"}
    return kinds.get(type(setting.default), "TEXT")


_own = [one for one in inspect.signature(serve).parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
_flags = [_option(setting) for setting in SETTINGS if setting.flag]
serve.__signature__ = inspect.Signature([*_flags, *[one.replace(kind=one.KEYWORD_ONLY) for one in _own]])  # type: ignore[attr-defined]


def _serve(settings: Settings, command: list[str], console: Console, *, viewed: bool) -> None:
    from penstock.service import app

    worker = Inherited.find(os.environ)
    if worker is not None:
        from penstock.cli.view import NoView

        service = app.worker_of(settings, worker)
        app.run(service, inherited(worker.listening), NoView(), worker)
        return
    _write_example(settings)
    if settings.shared and settings.token_secret is None:
        log.warning("token_secret is not set: only this process can open its receipts, and a restart invalidates them")
    with ListeningSockets(settings.listen) as listening:
        if settings.workers > 1:
            raise typer.Exit(_supervise(settings, listening, command, console, viewed=viewed))
        _serve_alone(settings, listening, console, viewed=viewed)


def _serve_alone(settings: Settings, listening: ListeningSockets, console: Console, *, viewed: bool) -> None:
    from penstock.cli.view import InProcessView, NoView
    from penstock.service import app

    view: InProcessView | NoView = InProcessView(console) if viewed else NoView()

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
    settings: Settings, listening: ListeningSockets, command: list[str], console: Console, *, viewed: bool
) -> int:
    from penstock.cli.view import WorkersView
    from penstock.service import app
    from penstock.service.supervisor import NoObserver, WorkerObserver

    views: list[WorkersView] = []

    def onlooker(figures: Path) -> WorkerObserver:
        _greet(settings, listening.addresses, console)
        if not viewed:
            return NoObserver()
        views.append(WorkersView(console, figures))
        return views[0]

    try:
        return app.supervise(settings, command, listening.numbers, onlooker)
    finally:
        for view in views:
            view.close()


def _command(flags: dict[str, Any], config: Path | None) -> list[str]:
    """Return the command of a worker: the same flags, which give the same settings."""
    command = [sys.executable, "-m", "penstock.cli", "serve"]
    if config is not None:
        command += ["--config", str(config)]
    for setting in SETTINGS:
        given = flags.get(setting.name)
        for value in given if isinstance(given, list) else [] if given is None else [given]:
            command += [setting.flag, value]
    return command


def _write_example(settings: Settings) -> None:
    """Write the example if no rules file is named and the default one does not exist."""
    if settings.has_rules and settings.origin("rules") == "default" and not settings.rules.exists():
        try:
            with settings.rules.open("x", encoding="utf-8") as file:
                file.write(EXAMPLE)
        except OSError as error:
            raise InvalidOption(f"rules {settings.rules}: the example cannot be written: {error.strerror}") from None
        typer.echo(f"wrote {settings.rules}, an example rules file", err=True)


def _greet(settings: Settings, addresses: list[ListenAddress], console: Console) -> None:
    workers = "1 worker" if settings.workers == 1 else f"{settings.workers} workers"
    store = next(value for name, value, _ in settings.lines() if name == "store")
    envoy = "" if settings.envoy_config is None else f"limits of {settings.envoy_config}"
    sources = ", ".join(part for part in (f"rules of {settings.rules}" if settings.has_rules else "", envoy) if part)
    console.print(Text.assemble(("Penstock", "bold"), f": {sources}, counters in {store}, {workers}"))
    for address in addresses:
        console.print(Text.assemble("listening on ", (_url(settings, address), "bold")))
    console.print(Text.assemble("try it:\n  ", (curl(settings, addresses[0]), "bold"), "\n"))


def curl(settings: Settings, address: ListenAddress) -> str:
    """Return a shell line that asks the service for a decision."""
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
    """The current standard error, looked up on each write: a live view replaces it, to draw below the log."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _log_to_stderr(settings: Settings, *, viewed: bool) -> None:
    """Log to standard error, with the loggers of Python and OpenTelemetry. A view replaces the log of refusals."""
    configure(cast("Form", settings.log_format), settings.log_level, _Stderr())
    logging.captureWarnings(capture=True)
    for name in ("py.warnings", "asyncio", "opentelemetry"):
        other = logging.getLogger(name)
        other.handlers[:] = logging.getLogger("penstock").handlers
        other.propagate = False
    if viewed and settings.origin("log_denials") == "default":
        logging.getLogger("penstock.denials").setLevel(logging.WARNING)
