"""`GET /metrics`: the metrics of all workers, in Prometheus' text format; the gauges of an app."""

import asyncio
import hmac
import sys
from collections.abc import Iterator, Sequence
from time import monotonic

from dovetail.engine import metrics as names
from dovetail.engine.engine import Engine
from dovetail.engine.metrics import BUCKETS, FAMILIES, Family, Metrics, Values
from dovetail.engine.sessions import Sessions
from dovetail.errors import INVALID_REQUEST, ProtocolError, Unauthorized
from dovetail.protocol.methods import RequestId
from dovetail.state.base import StateBackend
from dovetail.transports.http.in_flight import AppStatus
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http.origin import has_local_host
from dovetail.transports.http.proxies import TrustedProxies
from dovetail.transports.http.request import HttpRequest
from dovetail.transports.http.routes import RouteResponse

PATH = "/metrics"
HEADERS = {"content-type": "text/plain; version=0.0.4; charset=utf-8", "cache-control": "no-store"}
CHALLENGE = [(b"www-authenticate", b'Bearer realm="metrics"')]
TICK = 1.0  # seconds between two updates of the gauges
NOT_LOCAL = (
    "Metrics are for programs on this machine, at http://localhost or http://127.0.0.1. Others need a token: "
    "run with metrics_token= (DOVETAIL_METRICS_TOKEN), and send it as `Authorization: Bearer <token>`."
)
NEEDS_TOKEN = "Metrics need their token: send it in the header `Authorization: Bearer <token>`"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class MetricsEndpoint:
    """The handler of `/metrics`, open to this machine, or to those who have the token."""

    def __init__(self, engine: Engine, options: HttpOptions, proxies: TrustedProxies) -> None:
        self.metrics = names.watch(engine)
        # this folder may not import the version
        self._build = sys.modules["dovetail"].__version__, engine.info.name, engine.info.version
        self._expected = None if options.metrics_token is None else f"bearer {options.metrics_token}".encode()
        self._proxies = proxies

    async def __call__(self, request: HttpRequest) -> None:
        if request.method not in ("GET", "HEAD"):
            return await request.refuse_method(b"GET, HEAD", "GET this path")
        self._check(request)
        self.metrics.update()
        values = self.metrics.read()
        values[names.BUILD.name] = {self._build: [1.0]}
        response = RouteResponse(render(values), 200, HEADERS)
        request.response.started = request.response.ended = True
        return await response(request.scope, request.receive, request.send)

    def _check(self, request: HttpRequest) -> None:
        if self._expected is None:
            if self._proxies.is_local(request.scope, request.headers) and has_local_host(request.headers):
                return
            raise ProtocolError(NOT_LOCAL, code=INVALID_REQUEST, http_status=403)
        request.refuse_repeated_headers()
        scheme, _, token = request.headers.raw.get(b"authorization", b"").partition(b" ")
        if not hmac.compare_digest(scheme.lower() + b" " + token.strip(b" \t"), self._expected):
            request.response.challenger = lambda _: CHALLENGE
            raise Unauthorized(NEEDS_TOKEN)


def counted_requests(metrics: Metrics) -> type[HttpRequest]:
    """Requests that count their refusals."""

    class CountedRequest(HttpRequest, eq=False):
        async def refuse(
            self, failure: ProtocolError, id: RequestId | None = None, *, id_optional: bool = True
        ) -> None:
            metrics.add(names.HTTP_REFUSALS, str(failure.http_status))
            await super().refuse(failure, id, id_optional=id_optional)

    return CountedRequest


def render(values: Values) -> bytes:
    """Prometheus' text format 0.0.4."""
    lines: list[str] = []
    for family in FAMILIES.values():
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        for labels, cells in sorted(values[family.name].items()):
            lines += _series(family, labels, cells)
    return "\n".join([*lines, ""]).encode()


def _series(family: Family, labels: Sequence[str], cells: Sequence[float]) -> Iterator[str]:
    pairs = [
        f'{name}="{label.translate(_ESCAPES)}"' for name, label in zip(family.labels, labels, strict=True) if label
    ]
    shown = f"{{{','.join(pairs)}}}" if pairs else ""
    if family.kind != "histogram":
        yield f"{family.name}{shown} {cells[0]!r}"
        return
    count = 0.0
    for bound, cell in zip((*map(str, BUCKETS), "+Inf"), cells, strict=False):  # after them comes the sum
        count += cell
        every = ",".join([*pairs, f'le="{bound}"'])
        yield f"{family.name}_bucket{{{every}}} {count!r}"
    yield f"{family.name}_sum{shown} {cells[-1]!r}"
    yield f"{family.name}_count{shown} {count!r}"


class AppGauges:
    """Sets the gauges of one running app, and measures its event loop, until it is closed."""

    def __init__(
        self, engine: Engine, metrics: Metrics, status: AppStatus, sessions: Sessions, state: StateBackend
    ) -> None:
        self._engine, self._metrics, self._status, self._sessions = engine, metrics, status, sessions
        self._state, self._outages = state, state.outages
        metrics.on_update.append(self._set)
        metrics.update()
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    def _set(self) -> None:
        metrics = self._metrics
        names.set_gauges(self._engine, metrics)
        metrics.set(names.WORKERS, value=1)
        metrics.set(names.SESSIONS, value=self._sessions.count_live())
        metrics.set(names.STREAMS, value=self._status.streams)
        if self._state.shared:
            metrics.add(names.STORE_OUTAGES, by=self._state.outages - self._outages)
            self._outages = self._state.outages

    async def _tick(self) -> None:
        while True:
            due = monotonic() + TICK
            await asyncio.sleep(TICK)
            self._metrics.observe(names.LOOP_LAG, seconds=max(0.0, monotonic() - due))
            self._metrics.update()

    def close(self) -> None:
        self._ticking.cancel()
        self._metrics.on_update.remove(self._set)
