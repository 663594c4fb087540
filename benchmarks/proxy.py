"""The cost of one hop: a call through a gateway in front of an HTTP backend, beside the backend itself.

One connection, so that the rate is the latency. The backend is Dovetail's for all, and on another core.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.case import Case, Measured, Round, Settings
from benchmarks.http_call import ARGUMENTS, check_sum
from benchmarks.http_contender import NO_ERRORS, HttpServer, Offer, Post, call, serving
from benchmarks.wrk import looking

DIRECT = "direct"
GATEWAYS = ("dovetail", "fastmcp")


@dataclass(frozen=True)
class GatewayOffer(Offer):
    backend: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "BENCH_BACKEND": self.backend}


@contextmanager
def _hop(contender: str, settings: Settings) -> Iterator[HttpServer]:
    post = call("add", ARGUMENTS)
    with serving("dovetail", Offer()) as backend:
        if contender == DIRECT:
            yield _ready(backend, post, settings)
            return
        with serving(contender, GatewayOffer(backend=backend.url), "proxy") as gateway:
            yield _ready(gateway, post, settings)


def _ready(server: HttpServer, post: Post, settings: Settings) -> HttpServer:
    check_sum(server.ask(post))
    server.load(post.lua + looking(NO_ERRORS), settings.seconds, 1)  # also warms it up
    return server


@contextmanager
def _latency(contender: str, settings: Settings) -> Iterator[Round]:
    with _hop(contender, settings) as server:

        def measure() -> Measured:
            loaded = server.load(call("add", ARGUMENTS).lua, settings.seconds, 1)
            return Measured(1000 / loaded.value, loaded.cpu_us)

        yield measure


CASES = [Case("proxy-hop", "A call through a gateway, one at a time", "ms", False, (DIRECT, *GATEWAYS), _latency)]
