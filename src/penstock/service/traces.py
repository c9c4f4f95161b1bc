"""Traces: a span for each sampled call, under the span of whoever called (`traceparent`). Needs the extra `otel`.

    traced = from_environment(handler, routes)             # OTEL_SERVICE_NAME, OTEL_EXPORTER_OTLP_ENDPOINT, ...
    ...
    traced.close()                                         # sends what is left

Where tracing is off nobody wraps the handler, and nothing is paid. Where it is on, a call whose caller does not sample
it is looked at and left alone; `share` makes one in so many calls without a caller's span the root of a new trace.
Who is sampled is decided here, before a span is made: making one for each call would cost more than the decision.
A span says method, route, status and how many calls its batch held: no path, no header, no key.
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

from penstock.errors import InvalidOption, shown
from penstock.service.wire.calls import Call, Handler, Head, Header

_PROPAGATOR = TraceContextTextMapPropagator()


def from_environment(
    handler: Handler, routes: Collection[bytes] = (), environment: Mapping[str, str] = os.environ
) -> Traced:
    """A handler that traces as the variables of OpenTelemetry say.

    - `OTEL_TRACES_EXPORTER`: otlp (over HTTP; the default), console or none.
    - `OTEL_TRACES_SAMPLER`, `OTEL_TRACES_SAMPLER_ARG`: for calls without a caller's span. None of them begins a trace
      unless it says always_on, or traceidratio and a ratio; with or without parentbased_.
    """
    service = environment.get("OTEL_SERVICE_NAME", "penstock")
    provider = TracerProvider(sampler=ALWAYS_ON, resource=Resource.create({"service.name": service}))
    exporter = _exporter(environment.get("OTEL_TRACES_EXPORTER", "otlp").strip())
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    share = _share(environment.get("OTEL_TRACES_SAMPLER", ""), environment.get("OTEL_TRACES_SAMPLER_ARG", "1"))
    return Traced(handler, provider, routes=routes, share=share)


def _share(sampler: str, ratio: str) -> int:
    """One in how many begins a trace; 0 is none."""
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
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # takes its time to import

        return OTLPSpanExporter()
    if name not in ("console", "none"):
        raise InvalidOption(f"OTEL_TRACES_EXPORTER {shown(name)}: expected otlp, console or none")
    return ConsoleSpanExporter() if name == "console" else None


class Traced:
    """A handler around a handler.

    - `routes`: first parts of paths that may be named, `/v1/check` by its own and what is below it alike.
    - `share`: of calls without a caller's span, one in so many begins a trace; 0 is none.
    """

    def __init__(
        self, handler: Handler, provider: TracerProvider, *, routes: Collection[bytes] = (), share: int = 0
    ) -> None:
        if isinstance(share, bool) or not isinstance(share, int) or share < 0:
            raise InvalidOption(f"share {shown(share)}: expected a whole number, at least 0")
        self._handler, self._provider, self._share = handler, provider, share
        self._tracer: Tracer = provider.get_tracer("penstock")
        self._routes = sorted(routes, key=len, reverse=True)
        self._turn = 0

    def handle(self, calls: list[Call]) -> None:
        for position, call in enumerate(calls):
            parent = call.header(b"traceparent")
            if parent is not None or self._share:
                span = self._span(call, parent, len(calls))
                if span is not None:
                    calls[position] = _TracedCall(call, span)  # in place: whoever answers for all answers for it
        self._handler.handle(calls)

    def close(self) -> None:
        """Send what is left. Blocks for as long as the exporter takes."""
        self._provider.shutdown()

    def _span(self, call: Call, parent: bytes | None, together: int) -> Span | None:
        if parent is not None and parent[-2:] in (b"00", b"02"):  # not sampled by the caller: neither by us
            return None
        context = Context() if parent is None else _context(call, parent)
        caller = get_current_span(context).get_span_context()
        if not caller.is_valid:  # nobody's span, or what says so is garbled
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
    """What the caller says of its span; empty if that cannot be read."""
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
        if self._span.is_recording():  # not ended: a second answer is none
            self._span.set_attribute("http.response.status_code", head.status)
            if head.status >= 500:
                self._span.set_status(Status(StatusCode.ERROR))
            self._span.end()
        self._call.answer(head, body, extra)
