"""The rate of results of a megabyte: a text of 1 MiB, and an image that is 1 MiB in base64; 2026-07-28."""

from contextlib import AbstractContextManager

from benchmarks.case import Case, Round, Settings
from benchmarks.http_contender import CONTENDERS, NO_ERRORS, Answer, Offer, call, expect, loaded

MEBIBYTE = 1024 * 1024
CONNECTIONS = 4


def _case(tool: str, title: str, key: str) -> Case:
    def opened(contender: str, settings: Settings) -> AbstractContextManager[Round]:
        post, times = call(tool, {}), {**NO_ERRORS, key: 1}
        return loaded(contender, settings, Offer(tool), post, check, connections=CONNECTIONS, times=times)

    def check(answer: Answer) -> None:
        (block,) = answer.result["content"]
        expect((block["type"], len(block[key.strip('":')])), (tool, MEBIBYTE))
        expect("structuredContent" in answer.result, False)

    return Case(f"large-{tool}", title, "calls/s", True, CONTENDERS, opened)


CASES = [
    _case("text", "HTTP call with 1 MiB of text", '"text":'),
    _case("image", "HTTP call with an image of 1 MiB", '"data":'),
]
