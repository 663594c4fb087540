"""Tool search: the CPU of one search among 200, 1,000 and 5,000 tools, and how often it finds the right one.

The tools are those of ten public servers, and copies of them for the larger numbers. The questions and their right
tools are those of the tests; a hit is a right tool among the first five. FastMCP is searched by its BM25 transform.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.case import CannotMeasure, Case, Measured, Round, Settings
from benchmarks.http_contender import ANSWERS, MAX_SECONDS, NO_ERRORS, Answer, HttpServer, Offer, Post, call, serving
from benchmarks.processes import ROOT
from benchmarks.servers.public_tools import FILE
from benchmarks.wrk import looking

QUESTIONS = ROOT / "tests" / "public_servers" / "questions.json"
CONTENDERS = ("dovetail", "fastmcp")
FIRST = 5
QUERY, FOUND = "fork a repository on GitHub into my own account", "fork_repository"
ARGUMENTS = {"dovetail": {"limit": FIRST}, "fastmcp": {}}  # the transform's number is an option of its own


class PublicOffer(Offer):
    """The tools of the public servers, and no others."""

    @property
    def environment(self) -> dict[str, str]:
        return {}


@contextmanager
def searched(contender: str, offer: Offer) -> Iterator[HttpServer]:
    if not FILE.exists():
        raise CannotMeasure("the tools of public servers are not there: run `python scripts/fetch_tools.py`")
    with serving(contender, offer, "search") as server:
        yield server


def search(contender: str, query: str) -> Post:
    return call("search_tools", {"query": query, **ARGUMENTS[contender]})


def names(answer: Answer) -> list[str]:
    """The names of the tools that were found, best first."""
    structured: Any = answer.result["structuredContent"]
    found = structured if isinstance(structured, list) else next(iter(structured.values()))
    return [tool["name"] for tool in found]


@contextmanager
def _speed(contender: str, settings: Settings, *, tools: int) -> Iterator[Round]:
    with searched(contender, Offer(tools=tools)) as server:
        post = search(contender, QUERY)
        if not any(FOUND in name for name in names(server.ask(post))):  # it has also made the index
            raise CannotMeasure(f"{FOUND} was not found")
        began = time.perf_counter()
        server.ask(post)
        alone = time.perf_counter() - began
        server.load(post.lua + looking(NO_ERRORS), max(settings.seconds, 3 * alone), 1)  # also warms it up
        seconds = max(settings.seconds, min(ANSWERS * alone, MAX_SECONDS))

        def measure() -> Measured:
            cpu = server.load(post.lua, seconds, 1).cpu_us
            return Measured(cpu or 0.0, cpu)

        yield measure


@contextmanager
def _hits(contender: str, _settings: Settings) -> Iterator[Round]:
    questions: dict[str, list[str]] = json.loads(QUESTIONS.read_text())
    with searched(contender, PublicOffer()) as server:

        def hit(question: str, right: list[str]) -> bool:
            return not set(right).isdisjoint(names(server.ask(search(contender, question)))[:FIRST])

        yield lambda: Measured(sum(hit(*each) for each in questions.items()))


def _case(tools: int) -> Case:
    title = f"CPU of one search among {tools:,} tools"
    return Case(f"search-{tools}", title, "µs", False, CONTENDERS, partial(_speed, tools=tools))


CASES = [
    *map(_case, (200, 1_000, 5_000)),
    Case("search-hits", "The right tool among the first five, for 60 questions", "hits", True, CONTENDERS, _hits),
]
