"""Traces: spans of sampled calls, under the caller's; nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from penstock.errors import InvalidOption
from penstock.service.traces import Traced, from_environment
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
    Traced(handler, provider, routes=[b"/metrics"]).handle([*calls])
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


def test_unsampled_calls_are_passed_on_unchanged(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    handler = Answering(200, 200)
    calls: list[Call] = [calling(), calling("00")]
    Traced(handler, provider).handle(list(calls))
    assert all(got is call for got, call in zip(handler.got, calls, strict=True))
    assert not exporter.get_finished_spans()


def test_one_in_so_many_begins_a_trace(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    traced = Traced(Answering(*[200] * 10), provider, share=5)
    traced.handle([calling() for _ in range(10)])
    spans = exporter.get_finished_spans()
    assert len(spans) == 2
    assert all(span.parent is None for span in spans)


@pytest.mark.parametrize(
    "parent", [b"", b"00", b"nonsense-01", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", b"\xff" * 60]
)
def test_a_broken_parent_breaks_nothing(provider: TracerProvider, parent: bytes) -> None:
    call = Scrape(b"POST", [(b"traceparent", parent), (b"tracestate", b"\xff")])
    Traced(Answering(200), provider).handle([call])
    assert call.status == 200


@pytest.mark.parametrize("parent", ["garbled-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{SPAN}-04"])
def test_a_parent_that_is_none_begins_no_trace(
    provider: TracerProvider, exporter: InMemorySpanExporter, parent: str
) -> None:
    Traced(Answering(200), provider).handle([Scrape(b"POST", [(b"traceparent", parent.encode())])])
    assert exporter.get_finished_spans() == ()


def test_an_answer_that_comes_twice_ends_a_span_once(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    class Twice:
        def handle(self, calls: list[Call]) -> None:
            calls[0].answer(Head(200, TEXT))
            with pytest.raises(AssertionError, match="twice"):
                calls[0].answer(Head(500, TEXT))

    Traced(Twice(), provider).handle([calling("01")])
    assert attributes(exporter.get_finished_spans())[0]["http.response.status_code"] == 200


def test_the_environment_says_where_traces_go_and_whose() -> None:
    def made(**variables: str) -> Traced:
        return from_environment(Answering(), (), {f"OTEL_{name}": value for name, value in variables.items()})

    silent = made(SERVICE_NAME="gatekeeper", TRACES_EXPORTER="none")
    assert silent._provider.resource.attributes["service.name"] == "gatekeeper"
    assert silent._share == 0
    over_http = made(EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    over_http.close()
    assert made(TRACES_EXPORTER="none", TRACES_SAMPLER="parentbased_always_on")._share == 1
    assert made(TRACES_EXPORTER="none", TRACES_SAMPLER="traceidratio", TRACES_SAMPLER_ARG="0.01")._share == 100
    for variables, said in (
        ({"TRACES_EXPORTER": "pigeon"}, "OTEL_TRACES_EXPORTER 'pigeon': expected otlp, console or none"),
        ({"TRACES_SAMPLER": "dice"}, "OTEL_TRACES_SAMPLER 'dice': expected always_on, always_off or traceidratio"),
        (
            {"TRACES_SAMPLER": "traceidratio", "TRACES_SAMPLER_ARG": "half"},
            "OTEL_TRACES_SAMPLER_ARG 'half': expected a number from 0 to 1",
        ),
    ):
        with pytest.raises(InvalidOption, match=said):
            made(**({"TRACES_EXPORTER": "none"} | variables))


def test_a_share_that_means_nothing_is_refused(provider: TracerProvider) -> None:
    with pytest.raises(InvalidOption, match="share -1: expected a whole number, at least 0"):
        Traced(Answering(), provider, share=-1)
