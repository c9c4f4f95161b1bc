"""OpenTelemetry traces: a span for each sampled call, below the caller's span (`traceparent`). Needs the extra `otel`.

    traced = from_environment(handler, routes)             # OTEL_SERVICE_NAME, OTEL_EXPORTER_OTLP_ENDPOINT, ...
    ...
    traced.close()                                         # exports the remaining spans

Without tracing the handler is not wrapped, so it costs nothing. With tracing, a call that its caller does not sample
gets no span; of the calls without a caller's span, one in `share` begins a new trace. Sampling is decided before a span
is created, because a span costs more than a decision. A span has the method, route, status and batch size, but no path,
header or key.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock.engine.options import at_least
from penstock.errors import InvalidOption, shown
from penstock.service.wire.calls import Call, Handler, Head, Header

_PROPAGATOR = TraceContextTextMapPropagator()


def from_environment(
    handler: Handler, routes: Collection[bytes] = (), environment: Mapping[str, str] = os.environ
) -> Traced:
    """Return a handler that is configured by the variables of OpenTelemetry.

    - `OTEL_TRACES_EXPORTER`: otlp (over HTTP; the default), console or none.
    - `OTEL_TRACES_SAMPLER`, `OTEL_TRACES_SAMPLER_ARG`: for calls without a caller's span. always_on, or traceidratio
      with a ratio, begins traces; the prefix parentbased_ is accepted. The default begins none.
    """
    service = environment.get("OTEL_SERVICE_NAME", "penstock")
    provider = TracerProvider(sampler=ALWAYS_ON, resource=Resource.create({"service.name": service}))
    exporter = _exporter(environment.get("OTEL_TRACES_EXPORTER", "otlp").strip())
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    share = _share(environment.get("OTEL_TRACES_SAMPLER", ""), environment.get("OTEL_TRACES_SAMPLER_ARG", "1"))
    return Traced(handler, provider, routes=routes, share=share)


def _share(sampler: str, ratio: str) -> int:
    """Return n if one call in n begins a trace, or 0 for none."""
    kind = sampler.strip().removeprefix("parentbased_")
    if kind in ("", "always_on", "always_off"):
        return 1 if kind == "always_on" else 0
    if kind != "traceidratio":
        raise InvalidOption(f"OTEL_TRACES_SAMPLER {shown(sampler)}: expected always_on, always_off or traceidratio")
    try:
        share = float(ratio)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InvalidOption(f"OTEL_TRACES_SAMPLER_ARG {shown(ratio)}: expected a number from 0 to 1")
    return round(1 / share) if share else 0


def _exporter(name: str) -> SpanExporter | None:
    if name == "otlp":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # slow to import

        return OTLPSpanExporter()
    if name not in ("console", "none"):
        raise InvalidOption(f"OTEL_TRACES_EXPORTER {shown(name)}: expected otlp, console or none")
    return ConsoleSpanExporter() if name == "console" else None


class Traced:
    """A handler that traces the calls of another handler.

    - `routes`: prefixes of paths, which become the names of spans.
    - `share`: of the calls without a caller's span, one in so many begins a trace; 0 is none.
    """

    def __init__(
        self, handler: Handler, provider: TracerProvider, *, routes: Collection[bytes] = (), share: int = 0
    ) -> None:
        self._handler, self._provider, self._share = handler, provider, at_least(0, "share", share)
        self._tracer: Tracer = provider.get_tracer("penstock")
        self._routes = sorted(routes, key=len, reverse=True)
        self._turn = 0

    def handle(self, calls: list[Call]) -> None:
        for position, call in enumerate(calls):
            parent = call.header(b"traceparent")
            if parent is not None or self._share:
                span = self._span(call, parent, len(calls))
                if span is not None:
                    calls[position] = _TracedCall(call, span)  # in place, so that a failed batch is answered through it
        self._handler.handle(calls)

    def close(self) -> None:
        """Export the remaining spans. Blocks for as long as the exporter takes."""
        self._provider.shutdown()

    def _span(self, call: Call, parent: bytes | None, together: int) -> Span | None:
        if parent is not None and parent[-2:] in (b"00", b"02"):  # not sampled by the caller
            return None
        context = Context() if parent is None else _context(call, parent)
        caller = get_current_span(context).get_span_context()
        if not caller.is_valid:  # no span of a caller, or an invalid one
            self._turn += 1
            if not self._share or self._turn % self._share:
                return None
        elif not caller.trace_flags.sampled:
            return None
        method = call.method.decode("latin-1")
        route = next((route for route in self._routes if call.path.startswith(route)), b"").decode("latin-1")
        attributes: dict[str, Any] = {"http.request.method": method, "penstock.batch.calls": together}
        if route:
            attributes["http.route"] = route
        return self._tracer.start_span(f"{method} {route}".strip(), context, SpanKind.SERVER, attributes)


def _context(call: Call, parent: bytes) -> Context:
    """Return the context of the caller's span; empty if it cannot be parsed."""
    carrier = {"traceparent": parent.decode("latin-1")}
    state = call.header(b"tracestate")
    return _PROPAGATOR.extract(
        carrier if state is None else carrier | {"tracestate": state.decode("latin-1")}, Context()
    )


class _TracedCall(Call):
    """A call whose span ends with its answer."""

    __slots__ = ("_call", "_span")

    def __init__(self, call: Call, span: Span) -> None:
        self._call, self._span = call, span
        self.method, self.path, self.query = call.method, call.path, call.query
        self.headers, self.body, self.peer, self.expires = call.headers, call.body, call.peer, call.expires

    @property
    def gone(self) -> bool:
        return self._call.gone

    def answer(self, head: Head, body: bytes = b"", extra: Sequence[Header] = ()) -> None:
        if self._span.is_recording():  # a second answer is ignored
            self._span.set_attribute("http.response.status_code", head.status)
            if head.status >= 500:
                self._span.set_status(Status(StatusCode.ERROR))
            self._span.end()
        self._call.answer(head, body, extra)
