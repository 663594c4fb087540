"""The tools of ten public MCP servers, as each lists them, in .cache/public_servers/tools.json: used, never committed.

npm installs the servers from tests/public_servers, without running any script of theirs; each is started once and asked
for its list. Where one wants credentials it gets made-up ones, for a list needs no network. Without npm a plain
sentence says what is missing: tests are then skipped, and fail where CI=true.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import node_tools

from dovetail import Client

ROOT = Path(__file__).parent.parent
WANTED = ROOT / "tests" / "public_servers"
TARGET = ROOT / ".cache" / "public_servers"
TOOLS = "tools.json"
OFFICIAL = "@modelcontextprotocol/server-{}/dist/index.js"
SERVERS = {  # name: its program in node_modules, and arguments
    "brave": OFFICIAL.format("brave-search"),
    "filesystem": OFFICIAL.format("filesystem") + " .",
    "github": OFFICIAL.format("github"),
    "gitlab": OFFICIAL.format("gitlab"),
    "maps": OFFICIAL.format("google-maps"),
    "memory": OFFICIAL.format("memory"),
    "notion": "@notionhq/notion-mcp-server/bin/cli.mjs",
    "playwright": "@playwright/mcp/cli.js",
    "slack": OFFICIAL.format("slack"),
    "tavily": "tavily-mcp/build/index.js",
}
MADE_UP = {
    "BRAVE_API_KEY": "none",
    "GITHUB_PERSONAL_ACCESS_TOKEN": "none",
    "GITLAB_PERSONAL_ACCESS_TOKEN": "none",
    "GOOGLE_MAPS_API_KEY": "none",
    "NOTION_TOKEN": "none",
    "SLACK_BOT_TOKEN": "none",
    "SLACK_TEAM_ID": "none",
    "TAVILY_API_KEY": "none",
}
START_TIMEOUT = 60.0  # seconds for a server to start and to list its tools; they need one


def why_missing(target: Path = TARGET) -> str | None:
    """What keeps the tools from being searched, in words."""
    if node_tools.is_current(target, WANTED) and (target / TOOLS).exists():
        return None
    return (
        "NO PUBLIC SERVERS: their tools were not listed, so the quality of tool search was not tested "
        "(run `python scripts/fetch_tools.py`, which needs npm)"
    )


def tools(target: Path = TARGET) -> list[dict[str, Any]]:
    """Definitions as `tools/list` has them, with the server's name before the tool's, if it is not there anyway."""
    found: list[dict[str, Any]] = json.loads((target / TOOLS).read_text())
    return found


def fetch(target: Path = TARGET) -> None:
    """Does nothing if they are there. Raises NodeMissing."""
    if why_missing(target) is None:
        return
    node_tools.install(target, WANTED)
    listed = asyncio.run(_list_all(str(node_tools.node()), target / "node_modules"))
    (target / TOOLS).write_text(json.dumps(listed, indent=1, ensure_ascii=False) + "\n")


async def _list_all(node: str, modules: Path) -> list[dict[str, Any]]:
    listed = {server: await _list([node, *_words(modules, program)], modules) for server, program in SERVERS.items()}
    return [{**tool, "name": _full_name(server, tool["name"])} for server, tools in listed.items() for tool in tools]


def _words(modules: Path, command: str) -> list[str]:
    program, *arguments = command.split()
    return [str(modules / program), *arguments]


async def _list(command: list[str], folder: Path) -> list[dict[str, Any]]:
    async with Client(command, env=MADE_UP, cwd=folder, timeout=START_TIMEOUT) as client:
        listed: list[dict[str, Any]] = msgspec.to_builtins(await client.list_tools())
        return listed


def _full_name(server: str, tool: str) -> str:
    return tool if tool.startswith(f"{server}_") else f"{server}_{tool}"


def main(target: Path = TARGET) -> int:
    try:
        fetch(target)
    except node_tools.NodeMissing as missing:
        print(f"! {missing}", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    print(f"{len(tools(target))} tools of {len(SERVERS)} public servers are in {target / TOOLS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
