"""The rate of calls that report progress ten times: 2026-07-28, as event streams, 32 connections."""

from contextlib import AbstractContextManager

from benchmarks.case import Case, Round, Settings
from benchmarks.http_contender import CONTENDERS, NO_ERRORS, Answer, Offer, call, expect, loaded

STEPS = 10


def _open(contender: str, settings: Settings) -> AbstractContextManager[Round]:
    post = call("count", {}, progressToken=1)
    times = {**NO_ERRORS, "notifications/progress": STEPS, '"structuredContent":': 1}
    return loaded(contender, settings, Offer("count"), post, _check, times=times)


def _check(answer: Answer) -> None:
    *notes, _ = answer.messages
    expect([note["method"] for note in notes], ["notifications/progress"] * STEPS)
    expect([note["params"]["progress"] for note in notes], list(range(1, STEPS + 1)))
    expect(answer.result["structuredContent"] in (STEPS, {"result": STEPS}), True)


CASES = [Case("http-progress", "HTTP call that streams 10 progress reports", "calls/s", True, CONTENDERS, _open)]
