"""The cost of a gateway: of one hop, of the lists of twenty backends, and of 5,000 mounted tools.

Hops are measured by one connection, so that the rate is the latency, beside the backend itself. Lists are those of a
gateway that has just started and knows nothing yet, beside one that has the slowest backend alone. Calls with 5,000
mounted tools are measured beside those with one. The backend is Dovetail's for all, and on another core.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks.case import Case, Measured, Round, Settings
from benchmarks.http_contender import NO_ERRORS, Answer, HttpServer, Offer, Post, call, expect, modern, serving
from benchmarks.wrk import looking

DIRECT = "direct"
GATEWAYS = ("dovetail", "fastmcp")
TOOL, ARGUMENTS = "greet", {"name": "Ada"}  # text: FastMCP's proxy fails with a number of a 2026-07-28 backend


@dataclass(frozen=True)
class GatewayOffer(Offer):
    backend: str = ""
    seconds: tuple[float, ...] = ()  # that the list of each backend takes

    @property
    def environment(self) -> dict[str, str]:
        given = {**super().environment, "BENCH_BACKEND": self.backend}
        return {**given, "BENCH_SECONDS": " ".join(map(str, self.seconds))} if self.seconds else given


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


# ── lists ──

BACKENDS = 20
SLOWEST = "slowest"
SECONDS = tuple(round(0.5 * number / BACKENDS, 3) for number in range(1, BACKENDS + 1))


@contextmanager
def _lists(contender: str, _settings: Settings) -> Iterator[Round]:
    seconds = SECONDS[-1:] if contender == SLOWEST else SECONDS
    kind = "dovetail" if contender == SLOWEST else contender
    with serving("dovetail", Offer(TOOL), "slow_lists") as backend:
        offer = GatewayOffer(TOOL, backend=backend.url, seconds=seconds)

        def measure() -> Measured:
            with serving(kind, offer, "mounts") as gateway:
                began = time.perf_counter()
                listed = gateway.ask(modern("tools/list", {})).result["tools"]
                taken = time.perf_counter() - began
            expect({tool["name"] for tool in listed}, {f"b{number}_{TOOL}" for number in range(len(seconds))})
            return Measured(1000 * taken)

        measure()
        yield measure


# ── many tools ──

MANY = 5_000
ALONE = "dovetail-1"


@contextmanager
def _call_of_many(contender: str, settings: Settings, *, hops: bool) -> Iterator[Round]:
    tools = 1 if contender == ALONE else MANY
    post = call(f"b0_{TOOL}", ARGUMENTS)
    with ExitStack() as stack:
        offer: Offer = Offer(TOOL, tools)
        if hops:
            offer = GatewayOffer(TOOL, backend=stack.enter_context(serving("dovetail", offer)).url)
        gateway = _ready(stack.enter_context(serving("dovetail", offer, "mounts")), post, settings)

        def measure() -> Measured:
            loaded = gateway.load(post.lua, settings.seconds, 1)
            return Measured(1000 / loaded.value, loaded.cpu_us)

        yield measure


def _many_case(key: str, title: str, *, hops: bool) -> Case:
    opened = partial(_call_of_many, hops=hops)
    return Case(key, title, "ms", False, ("dovetail", ALONE), opened, {ALONE: 1.1})


CASES = [
    Case("proxy-hop", "A call through a gateway, one at a time", "ms", False, (DIRECT, *GATEWAYS), _latency),
    Case(
        "proxy-lists", f"The first list of a gateway with {BACKENDS} backends", "ms", False,
        ("dovetail", SLOWEST, "fastmcp"), _lists, {SLOWEST: 1.25},
    ),
    _many_case("mount-5000", f"A call with {MANY:,} mounted tools", hops=False),
    _many_case("proxy-5000", f"A call through a gateway with {MANY:,} tools", hops=True),
]  # fmt: skip
