"""The rate of tool calls over HTTP, and the CPU of each: 2026-07-28, 32 connections, one worker."""

from contextlib import AbstractContextManager

from benchmarks.case import Case, Round, Settings
from benchmarks.http_contender import CONTENDERS, Answer, Offer, call, expect, loaded

METRICS = "dovetail-metrics"  # the same with metrics=True
ARGUMENTS = {"a": 1, "b": 2}


def check_sum(answer: Answer) -> None:
    expect(answer.result["content"], [{"type": "text", "text": "3"}])
    expect(answer.result["structuredContent"] in (3, {"result": 3}), True)


def _case(key: str, title: str, tool: str, targets: dict[str, float]) -> Case:
    def opened(contender: str, settings: Settings) -> AbstractContextManager[Round]:
        offer = Offer(tool, metrics=contender == METRICS)
        return loaded(contender.removesuffix("-metrics"), settings, offer, call(tool, ARGUMENTS), check_sum)

    return Case(key, title, "calls/s", True, (*CONTENDERS, METRICS), opened, targets)


CASES = [
    _case("http-async", "HTTP call, async tool, 2026-07-28", "add", {"mcp": 10, "fastmcp": 30, "floor": 0.75}),
    _case("http-def", "HTTP call, def tool, 2026-07-28", "add_in_thread", {"mcp": 6, "fastmcp": 15, "floor": 0.33}),
]
