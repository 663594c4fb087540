import asyncio

from dovetail import Client, Context, ElicitRequest, ElicitResult, SamplingRequest, Server

server = Server("shop", version="1.0.0")


@server.tool
async def buy(article: str, ctx: Context) -> str:
    """Buy something, in the size that the user wants."""
    size = await ctx.elicit(f"Which size of {article}?", ["S", "M", "L"])
    if not size.accepted:
        return "Nothing bought."
    thanks = await ctx.sample(f"Thank the user for buying a {article}.", max_tokens=50)
    return f"One {article}, size {size.data}. {thanks.text}"


def fill_in(question: ElicitRequest) -> str | ElicitResult:
    print(question.message, *question.fields)
    return "M" if question.mode == "form" else ElicitResult("cancel")


async def complete(request: SamplingRequest) -> str:
    print(request.messages[-1]["content"][0]["text"])
    return "Wear it well!"


async def main() -> None:
    async with Client(server, elicitation_handler=fill_in, sampling_handler=complete, roots=["."]) as client:
        print((await client.call_tool("buy", {"article": "hat"})).data)


if __name__ == "__main__":
    asyncio.run(main())
