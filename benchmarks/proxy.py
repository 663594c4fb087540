"""The cost of one hop: a call through a gateway in front of an HTTP backend, beside the backend itself.

One connection, so that the rate is the latency. The backend is Dovetail's for all, and on another core.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.case import Case, Measured, Round, Settings
from benchmarks.http_contender import NO_ERRORS, Answer, HttpServer, Offer, Post, call, expect, serving
from benchmarks.wrk import looking

DIRECT = "direct"
GATEWAYS = ("dovetail", "fastmcp")
TOOL, ARGUMENTS = "greet", {"name": "Ada"}  # text: FastMCP's proxy fails with a number of a 2026-07-28 backend


@dataclass(frozen=True)
class GatewayOffer(Offer):
    backend: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "BENCH_BACKEND": self.backend}


@contextmanager
def _hop(contender: str, settings: Settings) -> Iterator[HttpServer]:
    post = call(TOOL, ARGUMENTS)
    with serving("dovetail", Offer(TOOL)) as backend:
        if contender == DIRECT:
            yield _ready(backend, post, settings)
            return
        with serving(contender, GatewayOffer(TOOL, backend=backend.url), "proxy") as gateway:
            yield _ready(gateway, post, settings)


def _check(answer: Answer) -> None:
    expect(answer.result["content"], [{"type": "text", "text": "Hello, Ada!"}])


def _ready(server: HttpServer, post: Post, settings: Settings) -> HttpServer:
    _check(server.ask(post))
    server.load(post.lua + looking(NO_ERRORS), settings.seconds, 1)  # also warms it up
    return server


@contextmanager
def _latency(contender: str, settings: Settings) -> Iterator[Round]:
    with _hop(contender, settings) as server:

        def measure() -> Measured:
            loaded = server.load(call(TOOL, ARGUMENTS).lua, settings.seconds, 1)
            return Measured(1000 / loaded.value, loaded.cpu_us)

        yield measure


CASES = [Case("proxy-hop", "A call through a gateway, one at a time", "ms", False, (DIRECT, *GATEWAYS), _latency)]
