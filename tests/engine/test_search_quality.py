"""Tool search finds the right tool: sixty questions about the tools of ten public servers.

The questions were written before the search was first run on them, from the servers' lists alone.
"""

import json
from pathlib import Path
from typing import Any

import fetch_tools
import pytest

import missing
from dovetail import Client, Server

QUESTIONS: dict[str, list[str]] = json.loads(
    (Path(__file__).parent.parent / "public_servers" / "questions.json").read_text()
)
FIRST = 5  # tools that are looked at
WANTED = 55  # questions that find a right one among them


@pytest.fixture(autouse=True)
def _demand_tools() -> None:
    missing.demand(fetch_tools.why_missing())


async def nothing(arguments: dict[str, Any]) -> str:
    return "nothing"


def all_servers() -> Server:
    server = Server("all", version="1.0.0", tool_search=True)
    for tool in fetch_tools.tools():
        server.tool(name=tool["name"], description=tool["description"], input_schema=tool["inputSchema"])(nothing)
    return server


def test_there_are_enough_tools_and_questions() -> None:
    names = {tool["name"] for tool in fetch_tools.tools()}
    assert len(names) >= 100
    assert len({name.partition("_")[0] for name in names}) == len(fetch_tools.SERVERS) == 10
    assert len(QUESTIONS) == 60
    assert {name for right in QUESTIONS.values() for name in right} <= names


async def test_the_right_tool_is_among_the_first_five() -> None:
    missed = {}
    async with Client(all_servers()) as client:
        for question, right in QUESTIONS.items():
            result = await client.call_tool("search_tools", {"query": question, "limit": FIRST})
            found = [tool["name"] for tool in result.data["tools"]]
            assert len(found) <= FIRST
            if set(found).isdisjoint(right):
                missed[question] = f"{found} instead of {right}"
    shown = "\n".join(f"{question}: {instead}" for question, instead in missed.items())
    assert len(QUESTIONS) - len(missed) >= WANTED, f"{len(missed)} of {len(QUESTIONS)} were missed:\n{shown}"
