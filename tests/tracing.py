"""The spans of this process, recorded by the SDK of OpenTelemetry; and those that other processes write to a file."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class _WhileRecording(SimpleSpanProcessor):
    """For the rest of the process no span is kept, of whatever library."""

    is_on = False

    def on_end(self, span: ReadableSpan) -> None:
        if self.is_on:
            super().on_end(span)


_exporter = InMemorySpanExporter()
_processor = _WhileRecording(_exporter)
CLIENT = "00-11111111111111111111111111111111-2222222222222222-01"  # the context of a client that is not ours


class Recorded(NamedTuple):
    """A finished span; ids as W3C spells them."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str | None
    links: tuple[str, ...]
    attributes: dict[str, Any]
    status: str
    start: str
    end: str
    whole: str  # as an exporter prints it

    @classmethod
    def from_json(cls, text: str) -> "Recorded":
        span = json.loads(text)
        bare = [each["context"]["span_id"].removeprefix("0x") for each in span["links"]]
        context, parent = span["context"], span["parent_id"]
        return cls(
            name=span["name"],
            kind=span["kind"].removeprefix("SpanKind."),
            trace=context["trace_id"].removeprefix("0x"),
            id=context["span_id"].removeprefix("0x"),
            parent=None if parent is None else parent.removeprefix("0x"),
            links=tuple(bare),
            attributes=span["attributes"],
            status=span["status"]["status_code"],
            start=span["start_time"],
            end=span["end_time"],
            whole=text,
        )


class Spans:
    """Those that were finished since `recording` began."""

    def all(self) -> list[Recorded]:
        return [Recorded.from_json(each.to_json()) for each in _exporter.get_finished_spans()]

    def named(self, name: str, kind: str = "SERVER") -> list[Recorded]:
        return [each for each in self.all() if (each.name, each.kind) == (name, kind)]

    def one(self, name: str, kind: str = "SERVER") -> Recorded:
        (found,) = self.named(name, kind)
        return found


@contextmanager
def recording() -> Iterator[Spans]:
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(_processor)
        trace.set_tracer_provider(provider)
    _exporter.clear()
    _processor.is_on = True
    try:
        yield Spans()
    finally:
        _processor.is_on = False


def export_to(path: Path) -> None:
    """Have this process append its spans to a file, one JSON object a line."""
    provider = TracerProvider()
    file = path.open("a", buffering=1)
    exporter: SpanExporter = ConsoleSpanExporter(out=file, formatter=lambda span: span.to_json(indent=None) + "\n")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def spans_in(paths: Sequence[Path]) -> list[Recorded]:
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return [Recorded.from_json(line) for line in lines]
