"""A server with traces: `traced_program.py spans.jsonl [URL]` serves a tool that asks, or a gateway to the URL."""

import sys
from pathlib import Path

from opentelemetry import trace

from dovetail import Context, Proxy, Server
from tracing import export_to

tracer = trace.get_tracer("shop")


def make_shop() -> Server:
    shop = Server("shop", version="1.0.0", telemetry=True)

    @shop.tool
    def price(article: str) -> int:
        with tracer.start_as_current_span("query"):
            return len(article)

    @shop.tool
    async def order(ctx: Context) -> str:
        with tracer.start_as_current_span("form"):
            answer = await ctx.elicit("How many?", int)
        return f"{answer.data} ordered"

    return shop


def make_gateway(url: str) -> Server:
    gateway = Server("gateway", version="1.0.0", telemetry=True)
    gateway.mount(Proxy(url, name="shop"), namespace="shop")
    return gateway


if __name__ == "__main__":
    export_to(Path(sys.argv[1]))
    server = make_gateway(sys.argv[2]) if len(sys.argv) > 2 else make_shop()
    server.run(transport="http", port=0, drain_timeout=1.0)
