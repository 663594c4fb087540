"""The programs that a server can be added to: which file each reads, and how an entry of it looks.

The paths and fields are those of the hosts' own documentation:
https://modelcontextprotocol.io/quickstart/user (Claude Desktop), https://code.claude.com/docs/en/mcp (Claude Code),
https://cursor.com/docs/mcp, https://code.visualstudio.com/docs/copilot/reference/mcp-configuration and
https://geminicli.com/docs/tools/mcp-server. That Claude Desktop reads another file where Windows keeps it in a package
is not in them: https://github.com/anthropics/claude-code/issues/26073.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HTTP, SSE = "http", "sse"
USER, PROJECT = "user", "project"
OWN_KEYS = ("type", "command", "args", "env", "url", "httpUrl", "headers")  # what a server consists of, in all hosts
BRACED = r"\$\{[^}]+\}"


class Host(NamedTuple):
    """One row of the table."""

    title: str
    user: tuple[str, str]  # which folder, and the file in it
    project: str | None  # the file in a project's folder
    folder_variable: str = ""  # names another folder than the user's own
    package: str = ""  # as Windows calls the folders of a packaged app
    section: str = "mcpServers"
    is_typed: bool = False  # an entry says which transport it means
    url_keys: Mapping[str, str] = {HTTP: "url", SSE: "url"}
    reserved: tuple[str, ...] = ()  # names that a server can't have
    expands: str = BRACED  # in a value: it stands for something else
    here: str = "."  # what stands for the folder of a project
    then: str = ""  # what to do when it is in


HOSTS = {
    "claude-desktop": Host(
        title="Claude Desktop",
        user=("config", "Claude/claude_desktop_config.json"),
        project=None,
        package="Claude_*",
        expands="",
        url_keys={},  # it starts programs only; URLs are added in its settings
        then="Quit Claude Desktop and start it again.",
    ),
    "claude-code": Host(
        title="Claude Code",
        user=("home", ".claude.json"),
        project=".mcp.json",
        folder_variable="CLAUDE_CONFIG_DIR",
        is_typed=True,
        reserved=("workspace", "claude-in-chrome", "computer-use"),
        then="The next `claude` has it; /mcp shows whether it is connected.",
    ),
    "cursor": Host(
        title="Cursor",
        user=("home", ".cursor/mcp.json"),
        project=".cursor/mcp.json",
        here="${workspaceFolder}",
        then="Cursor shows it in its settings, under Tools & MCP.",
    ),
    "vscode": Host(
        title="VS Code",
        user=("config", "Code/User/mcp.json"),
        project=".vscode/mcp.json",
        section="servers",
        is_typed=True,
        here="${workspaceFolder}",
        then="`MCP: List Servers` in VS Code starts it.",
    ),
    "gemini": Host(
        title="Gemini CLI",
        user=("home", ".gemini/settings.json"),
        project=".gemini/settings.json",
        folder_variable="GEMINI_CLI_HOME",
        expands=rf"\$\w+|{BRACED}",
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


def expanded_in(host: Host, entry: Mapping[str, Any]) -> list[str]:
    """Where the host will read something else than what stands there."""
    if not host.expands:
        return []
    pattern = re.compile(host.expands)
    return [key for key, value in entry.items() if any(map(pattern.search, _texts(value)))]


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else [value]


def file_of(host: Host, scope: str) -> Path:
    """The file that the host reads; PROJECT needs a host that has one."""
    return files_of(host, scope)[0]


def files_of(host: Host, scope: str, platform: str = sys.platform) -> list[Path]:
    """One file, or several if this machine has several of that host, and nobody knows which one is used."""
    if scope == PROJECT:
        assert host.project is not None
        return [Path.cwd() / host.project]
    folder, name = host.user
    if platform == "win32" and (packaged := _packaged(host)):
        return [place / name for place in packaged]
    if given := os.environ.get(host.folder_variable):
        return [Path(os.path.abspath(os.path.expanduser(given))) / name]
    return [(config_folder(platform) if folder == "config" else Path.home()) / name]


def _packaged(host: Host) -> list[Path]:
    """A packaged app sees these folders in the place of the user's own, once it has written there."""
    local = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    found = local.glob(f"Packages/{host.package}/LocalCache/Roaming") if host.package else ()
    return sorted(each for each in found if (each / host.user[1]).parent.is_dir())


def config_folder(platform: str = sys.platform) -> Path:
    """Where programs keep what belongs to their user."""
    if platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
