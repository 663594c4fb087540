from opentelemetry import trace

from dovetail import Context, Server

server = Server("shop", version="1.0.0", telemetry=True)
tracer = trace.get_tracer("shop")


@server.tool
def find_article(words: str) -> list[str]:
    """Find articles."""
    with tracer.start_as_current_span("query", attributes={"shop.words": len(words.split())}):
        return [article for article in ("hat", "red hat") if words in article]


@server.tool
async def order(article: str, ctx: Context) -> str:
    """Order an article."""
    answer = await ctx.elicit("How many?", int)
    return f"{answer.data} times {article} ordered." if answer.accepted else "Nothing was ordered."


if __name__ == "__main__":
    server.run(transport="http")
