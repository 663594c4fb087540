import time

from dovetail import CallNext, ListResult, Request, Result, Server, ToolError

server = Server("shop", version="1.0.0")
seconds: dict[str, list[float]] = {}


@server.middleware
class Timing:
    """How long the calls of each tool have taken."""

    async def on_call_tool(self, context: Request, call_next: CallNext) -> Result:
        started = time.perf_counter()
        try:
            return await call_next(context)
        finally:
            seconds.setdefault(context.params.name, []).append(time.perf_counter() - started)


class Opening:
    """Outside of the opening hours there is nothing to buy."""

    def __init__(self, hours: range) -> None:
        self.hours = hours

    def is_open(self) -> bool:
        return time.localtime().tm_hour in self.hours

    async def on_list_tools(self, context: Request, call_next: CallNext) -> Result:
        result = await call_next(context)
        if isinstance(result, ListResult) and not self.is_open():
            result.items = [tool for tool in result.items if tool.name != "buy"]
        return result

    async def on_call_tool(self, context: Request, call_next: CallNext) -> Result:
        if context.params.name == "buy" and not self.is_open():
            raise ToolError("The shop is closed")
        return await call_next(context)


server.add_middleware(Opening(range(24)))


@server.tool
def buy(article: str) -> str:
    """Buy something."""
    return f"One {article}."


if __name__ == "__main__":
    server.run()
