"""Traces: spans of sampled calls, under the caller's; nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from penstock.errors import InvalidOption
from penstock.observability.otel import Traced, from_environment
from penstock.service.wire.calls import Call, Head
from tests.unit.observability.support import Scrape

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TEXT = [(b"content-type", b"text/plain")]


def calling(flags: str | None = None) -> Scrape:
    headers = [] if flags is None else [(b"traceparent", f"00-{TRACE}-{SPAN}-{flags}".encode())]
    return Scrape(b"POST", headers)


class Answering:
    def __init__(self, *statuses: int) -> None:
        self.statuses, self.got = statuses, list[Call]()

    def handle(self, calls: list[Call]) -> None:
        self.got = list(calls)
        for call, status in zip(calls, self.statuses, strict=True):
            assert not call.gone
            call.answer(Head(status, TEXT), b"yes")


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


def attributes(spans: Sequence[ReadableSpan]) -> list[dict[str, object]]:
    return [dict(span.attributes or {}) for span in spans]


def test_a_call_that_its_caller_samples_is_a_span_below_the_callers(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    handler = Answering(200, 503)
    calls = [calling("01"), calling("01")]
    Traced(handler, provider.get_tracer("penstock"), routes=[b"/metrics"]).handle([*calls])
    first, second = exporter.get_finished_spans()
    assert first.context is not None
    assert f"{first.context.trace_id:032x}" == TRACE
    assert first.parent is not None
    assert f"{first.parent.span_id:016x}" == SPAN
    assert first.name == "POST /metrics"
    assert attributes([first, second]) == [
        {
            "http.request.method": "POST",
            "http.route": "/metrics",
            "http.response.status_code": status,
            "penstock.batch.calls": 2,
        }
        for status in (200, 503)
    ]
    assert [span.status.status_code for span in (first, second)] == [StatusCode.UNSET, StatusCode.ERROR]
    assert [(call.status, call.answer_body) for call in calls] == [(200, b"yes"), (503, b"yes")]


def test_calls_that_nobody_samples_are_handed_on_as_they_are(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    handler = Answering(200, 200)
    calls: list[Call] = [calling(), calling("00")]
    Traced(handler, provider.get_tracer("penstock")).handle(list(calls))
    assert all(got is call for got, call in zip(handler.got, calls, strict=True))
    assert not exporter.get_finished_spans()


def test_one_in_so_many_begins_a_trace(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    traced = Traced(Answering(*[200] * 10), provider.get_tracer("penstock"), share=5)
    traced.handle([calling() for _ in range(10)])
    spans = exporter.get_finished_spans()
    assert len(spans) == 2
    assert all(span.parent is None for span in spans)


@pytest.mark.parametrize(
    "parent", [b"", b"00", b"nonsense-01", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", b"\xff" * 60]
)
def test_a_broken_parent_breaks_nothing(provider: TracerProvider, parent: bytes) -> None:
    call = Scrape(b"POST", [(b"traceparent", parent), (b"tracestate", b"\xff")])
    Traced(Answering(200), provider.get_tracer("penstock")).handle([call])
    assert call.status == 200


def test_an_answer_that_comes_twice_ends_a_span_once(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    class Twice:
        def handle(self, calls: list[Call]) -> None:
            calls[0].answer(Head(200, TEXT))
            with pytest.raises(AssertionError, match="twice"):
                calls[0].answer(Head(500, TEXT))

    Traced(Twice(), provider.get_tracer("penstock")).handle([calling("01")])
    assert attributes(exporter.get_finished_spans())[0]["http.response.status_code"] == 200


def test_exporters_are_chosen_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gatekeeper")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert from_environment().resource.attributes["service.name"] == "gatekeeper"
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    provider = from_environment()
    provider.shutdown()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier pigeon")
    with pytest.raises(InvalidOption, match="OTEL_TRACES_EXPORTER 'carrier pigeon': expected otlp, console or none"):
        from_environment()


def test_a_share_that_means_nothing_is_refused(provider: TracerProvider) -> None:
    with pytest.raises(InvalidOption, match="share -1: expected a whole number, at least 0"):
        Traced(Answering(), provider.get_tracer("penstock"), share=-1)
