"""The log of requests in this process: beside a host's own logging, in spans, and under what can't be shown."""

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from dovetail import Client, Server
from dovetail.engine.redaction import RedactingFilter, Redactor
from dovetail.engine.request_log import JsonFormatter, logged
from dovetail.errors import TooManyRequests
from http_serving import serving
from http_wire import HttpWire
from tracing import recording

MAX_BYTES = 64 * 1024
tracer = TracerProvider().get_tracer("a host's own")


class Lines(logging.Handler):
    """A handler that holds its lines."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter(Redactor(), MAX_BYTES))
        self.addFilter(RedactingFilter(Redactor()))
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        assert "\n" not in line
        assert len(line.encode()) <= MAX_BYTES
        self.lines.append(json.loads(line))


@pytest.fixture
def handler() -> Iterator[Lines]:
    handler, log = Lines(), logging.getLogger("dovetail")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def make_server(**options: Any) -> Server:
    server = Server("s", **options)

    @server.tool
    async def speak(text: str) -> str:
        with tracer.start_as_current_span("its own") as span:
            logging.getLogger("dovetail").warning("%s", text)
        ids = span.get_span_context()
        return json.dumps([f"{ids.trace_id:032x}", f"{ids.span_id:016x}"]) if text == "inside" else text

    @server.tool
    async def sleep() -> None:
        await asyncio.sleep(3600)

    return server


async def test_a_host_that_asks_for_debug_gets_requests_and_no_other_does(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOVETAIL_LOG_FORMAT", "json")  # which is for `run` alone
    before = list(logging.getLogger("dovetail").handlers)
    for level, expected in ((logging.INFO, 0), (logging.DEBUG, 1)):
        server = make_server()
        with caplog.at_level(level, "dovetail"):
            async with Client(server) as client:
                await client.call_tool("speak", {"text": "hello"})
        told = [each.getMessage() for each in caplog.records if each.levelno == logging.DEBUG]
        assert sum('tools/call speak {"text":"hello"}' in each for each in told) == expected
        assert sum("tools/call speak: ok in " in each for each in told) == expected
        assert bool(server.engine.observers) is bool(expected)
    assert logging.getLogger("dovetail").handlers == before


async def test_what_became_of_a_call(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "dovetail"):
        async with Client(make_server()) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await client.call_tool("sleep")
            await client.call_tool("speak", {"text": "x" * 5_000})
        async with Client(make_server(rate_limit="1/hour")) as client:
            await client.call_tool("speak", {"text": "one of two"})
            with pytest.raises(TooManyRequests):
                await client.call_tool("speak", {"text": "one of two"})
    told = "\n".join(each.getMessage() for each in caplog.records)
    assert "tools/call sleep: cancelled in " in told
    assert 'tools/call speak {"text":"[cut] 5002 bytes"}' in told
    assert '"content":"[cut] ' in told
    assert "tools/call speak: refused -32" in told


async def test_a_line_names_the_span_in_which_it_was_written(handler: Lines) -> None:
    server = make_server()
    server.engine.observe("log", logged)
    with tracer.start_as_current_span("outside") as outside:
        logging.getLogger("dovetail").warning("outside")
    async with Client(server) as client:
        inside = json.loads((await client.call_tool("speak", {"text": "inside"})).text)
    logging.getLogger("dovetail").warning("in no span")
    first, second, third = handler.lines
    ids = outside.get_span_context()
    assert (first["trace_id"], first["span_id"]) == (f"{ids.trace_id:032x}", f"{ids.span_id:016x}")
    assert [second["trace_id"], second["span_id"]] == inside
    assert (second["tool"], first.get("tool"), third.get("trace_id")) == ("speak", None, None)


async def test_a_line_after_the_span_of_its_request_names_that_span(handler: Lines) -> None:
    """As that of the access log."""
    server = make_server(telemetry=True)
    server.engine.observe("log", logged)

    async def host(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)
        logging.getLogger("dovetail").warning("after")

    with recording() as spans:
        async with serving(server) as app:
            await HttpWire(host).post("tools/call", {"name": "speak", "arguments": {"text": "hello"}})
    span = spans.one("tools/call speak")
    assert handler.lines[-1]["message"] == "after"
    assert (handler.lines[-1]["trace_id"], handler.lines[-1]["span_id"]) == (span.trace, span.id)


class Unprintable:
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (Unprintable(), "Unprintable [its arguments can't be shown]"),
        ({"password": "hunter2"}, "{'password': '[redacted]'}"),
        (b"\xff", r"b'\xff'"),
        ("\u202e" * 100_000, None),
    ],
    ids=["unprintable", "dict", "bytes", "long"],
)
def test_any_message_is_a_line_of_json(handler: Lines, message: Any, shown: str | None) -> None:
    logging.getLogger("dovetail").warning(message, stack_info=True)
    (line,) = handler.lines
    assert line["level"] == "WARNING"
    assert line["message"] == shown if shown else line["message"].endswith("[cut]")
    assert line["stack"].startswith("Stack (most recent call last)")


def test_half_a_surrogate_pair_is_a_question_mark(handler: Lines) -> None:
    # by no logger: the runner of the tests would show it
    handler.handle(logging.LogRecord("dovetail", logging.INFO, "", 0, "half %s a pair", (chr(0xD800),), None))
    assert handler.lines[0]["message"] == "half ? a pair"
