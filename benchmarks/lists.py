"""The rate of whole lists of tools: 10, 500 and 5,000 tools, each list in one response, 2026-07-28.

mcp and FastMCP send whole lists by default; Dovetail's page size is raised, for the 5,000 would be five pages.
"""

from contextlib import AbstractContextManager

from benchmarks.case import CannotMeasure, Case, Round, Settings
from benchmarks.http_contender import NO_ERRORS, Answer, Offer, expect, loaded, modern

CONTENDERS = ("dovetail", "dovetail-asgi", "mcp", "fastmcp")
CONNECTIONS = 4  # enough to keep a core busy, and few enough to leave no long queue behind


def _case(tools: int, targets: dict[str, float]) -> Case:
    def opened(contender: str, settings: Settings) -> AbstractContextManager[Round]:
        post, times = modern("tools/list", {}), {**NO_ERRORS, '"inputSchema":': tools}
        offer = Offer(tools=tools)
        return loaded(contender, settings, offer, post, check, connections=CONNECTIONS, times=times)

    def check(answer: Answer) -> None:
        listed = answer.result["tools"]
        expect({tool["name"] for tool in listed}, {"add", *(f"tool_{number:04}" for number in range(1, tools))})
        expect({tuple(tool["inputSchema"]["properties"]) for tool in listed[1:]}, {("query", "limit", "order")})
        if answer.result.get("nextCursor"):
            raise CannotMeasure("it sends the list in pages")

    return Case(f"list-{tools}", f"tools/list of {tools:,}, whole list", "lists/s", True, CONTENDERS, opened, targets)


CASES = [_case(10, {}), _case(500, {"mcp": 100, "fastmcp": 150}), _case(5_000, {})]
