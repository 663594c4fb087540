"""The programs that a server can be added to: which file each reads, and how an entry of it looks.

The paths and fields are those of the hosts' own documentation:
https://modelcontextprotocol.io/quickstart/user (Claude Desktop), https://code.claude.com/docs/en/mcp (Claude Code),
https://cursor.com/docs/mcp, https://code.visualstudio.com/docs/copilot/reference/mcp-configuration and
https://geminicli.com/docs/tools/mcp-server.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HTTP, SSE = "http", "sse"
USER, PROJECT = "user", "project"


class Host(NamedTuple):
    """One row of the table."""

    title: str
    user: tuple[str, str]  # which folder, and the file in it
    project: str | None  # the file in a project's folder
    section: str = "mcpServers"
    is_typed: bool = False  # an entry says which transport it means
    url_keys: Mapping[str, str] = {HTTP: "url", SSE: "url"}
    reserved: tuple[str, ...] = ()  # names that a server can't have
    then: str = ""


HOSTS = {
    "claude-desktop": Host(
        title="Claude Desktop",
        user=("config", "Claude/claude_desktop_config.json"),
        project=None,
        url_keys={},  # it starts programs only; URLs are added in its settings
        then="Quit Claude Desktop and start it again.",
    ),
    "claude-code": Host(
        title="Claude Code",
        user=("home", ".claude.json"),
        project=".mcp.json",
        is_typed=True,
        reserved=("workspace", "claude-in-chrome", "computer-use"),
        then="The next `claude` has it; /mcp shows whether it is connected.",
    ),
    "cursor": Host(
        title="Cursor",
        user=("home", ".cursor/mcp.json"),
        project=".cursor/mcp.json",
        then="Cursor shows it in its settings, under Tools & MCP.",
    ),
    "vscode": Host(
        title="VS Code",
        user=("config", "Code/User/mcp.json"),
        project=".vscode/mcp.json",
        section="servers",
        is_typed=True,
        then="`MCP: List Servers` in VS Code starts it.",
    ),
    "gemini": Host(
        title="Gemini CLI",
        user=("home", ".gemini/settings.json"),
        project=".gemini/settings.json",
        url_keys={HTTP: "httpUrl", SSE: "url"},
        then="The next `gemini` has it; /mcp shows whether it is connected.",
    ),
}


class Added(NamedTuple):
    """A server, as a host has to know it: a command, or a URL."""

    command: Sequence[str] = ()
    env: Mapping[str, str] = {}
    url: str | None = None
    headers: Mapping[str, str] = {}
    transport: str = HTTP


def entry_for(host: Host, server: Added) -> dict[str, Any]:
    """What stands in the file. A URL needs a host whose `url_keys` has its transport."""
    if server.url is None:
        kind = "stdio"
        entry: dict[str, Any] = {"command": server.command[0], "args": list(server.command[1:])}
        extra = {"env": dict(server.env)}
    else:
        kind = server.transport
        entry = {host.url_keys[server.transport]: server.url}
        extra = {"headers": dict(server.headers)}
    typed = {"type": kind} if host.is_typed else {}
    return typed | entry | {key: value for key, value in extra.items() if value}


def file_of(host: Host, scope: str, project: Path | None = None) -> Path:
    """The file that the host reads; PROJECT needs a host that has one."""
    if scope == PROJECT:
        assert host.project is not None
        return (project or Path.cwd()) / host.project
    folder, name = host.user
    return (config_folder() if folder == "config" else Path.home()) / name


def config_folder(platform: str = sys.platform) -> Path:
    """Where programs keep what belongs to their user."""
    if platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
