"""Hosts that a server can be installed in: their configuration files, commands and entries.

The paths, fields and commands are those of the hosts' own documentation:
https://modelcontextprotocol.io/quickstart/user (Claude Desktop), https://code.claude.com/docs/en/mcp (Claude Code),
https://cursor.com/docs/mcp, https://code.visualstudio.com/docs/copilot/reference/mcp-configuration and
https://geminicli.com/docs/tools/mcp-server. That Claude Desktop reads another file if Windows has packaged it is
not in them: https://github.com/anthropics/claude-code/issues/26073.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HTTP, SSE = "http", "sse"
USER, PROJECT = "user", "project"
OWN_KEYS = ("type", "command", "args", "env", "url", "httpUrl", "headers")  # of an entry, in all hosts


class Host(NamedTuple):
    """A program that uses MCP servers."""

    title: str
    user: tuple[str, str]  # "home" or "config", and the file in that folder
    project: str | None  # the file in a project's folder
    program: str = ""  # its command line, if that can add servers
    folder_variable: str = ""  # an environment variable that replaces the folder
    package: str = ""  # pattern for the folder of a packaged app on Windows
    section: str = "mcpServers"
    is_typed: bool = False  # entries have a `type`, the transport
    url_keys: Mapping[str, str] = {HTTP: "url", SSE: "url"}
    project_folder: str = "."  # stands for the folder of a project in an entry
    next_step: str = ""  # advice for the user after the installation


HOSTS = {
    "claude-desktop": Host(
        title="Claude Desktop",
        user=("config", "Claude/claude_desktop_config.json"),
        project=None,
        package="Claude_*",
        url_keys={},  # it starts programs only; URLs are added in its settings
        next_step="Quit Claude Desktop and start it again.",
    ),
    "claude-code": Host(
        title="Claude Code",
        user=("home", ".claude.json"),
        project=".mcp.json",
        program="claude",
        folder_variable="CLAUDE_CONFIG_DIR",
        is_typed=True,
        next_step="The next `claude` has it; /mcp shows whether it is connected.",
    ),
    "cursor": Host(
        title="Cursor",
        user=("home", ".cursor/mcp.json"),
        project=".cursor/mcp.json",
        project_folder="${workspaceFolder}",
        next_step="Cursor shows it in its settings, under Tools & MCP.",
    ),
    "vscode": Host(
        title="VS Code",
        user=("config", "Code/User/mcp.json"),
        project=".vscode/mcp.json",
        program="code",
        section="servers",
        is_typed=True,
        project_folder="${workspaceFolder}",
        next_step="`MCP: List Servers` in VS Code starts it.",
    ),
    "gemini": Host(
        title="Gemini CLI",
        user=("home", ".gemini/settings.json"),
        project=".gemini/settings.json",
        program="gemini",
        folder_variable="GEMINI_CLI_HOME",
        url_keys={HTTP: "httpUrl", SSE: "url"},
        next_step="The next `gemini` has it; /mcp shows whether it is connected.",
    ),
}


def program_entry(host: Host, command: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """The entry of a server that the host starts."""
    typed = {"type": "stdio"} if host.is_typed else {}
    return {**typed, "command": command[0], "args": list(command[1:]), **({"env": dict(env)} if env else {})}


def url_entry(host: Host, url: str, headers: Mapping[str, str], transport: str) -> dict[str, Any]:
    """The entry of a server at a URL. The `url_keys` of the host must contain the transport."""
    typed = {"type": transport} if host.is_typed else {}
    return {**typed, host.url_keys[transport]: url, **({"headers": dict(headers)} if headers else {})}


def add_command(host: str, scope: str, name: str, entry: Mapping[str, Any]) -> list[str] | None:
    """The host's own command to add a server; None if it has none for this, or is not installed."""
    program = shutil.which(HOSTS[host].program or "\0")
    if program is None or (host == "vscode" and scope != USER):
        return None
    if host == "claude-code":
        return [program, "mcp", "add-json", name, json.dumps(entry), "--scope", scope]
    if host == "vscode":
        return [program, "--add-mcp", json.dumps({"name": name, **entry})]
    kind = "stdio" if "command" in entry else HTTP if "httpUrl" in entry else SSE
    options = ["--scope", scope, "--transport", kind]
    options += [word for key, value in entry.get("env", {}).items() for word in ("--env", f"{key}={value}")]
    options += [word for key, value in entry.get("headers", {}).items() for word in ("--header", f"{key}: {value}")]
    target, args = entry.get("command") or entry.get("httpUrl") or entry["url"], entry.get("args", [])
    divided = ["--", *args] if any(word.startswith("-") for word in args) else args
    return [program, "mcp", "add", *options, name, target, *divided]


def remove_command(host: str, scope: str, name: str) -> list[str] | None:
    program = shutil.which(HOSTS[host].program or "\0")
    return None if program is None or host == "vscode" else [program, "mcp", "remove", name, "--scope", scope]


def config_path(host: Host, scope: str, platform: str = sys.platform) -> Path:
    """The path of the configuration; a packaged app on Windows has a folder of its own, once it has written there."""
    if scope == PROJECT:
        assert host.project is not None
        return Path.cwd() / host.project
    folder, name = host.user
    if platform == "win32" and host.package:
        local = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        for packaged in sorted(local.glob(f"Packages/{host.package}/LocalCache/Roaming")):
            if (packaged / name).parent.is_dir():
                return packaged / name
    if given := os.environ.get(host.folder_variable):
        return Path(os.path.abspath(os.path.expanduser(given))) / name
    return (config_folder(platform) if folder == "config" else Path.home()) / name


def config_folder(platform: str = sys.platform) -> Path:
    """The user's folder for configuration."""
    if platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


class ConfigFileError(Exception):
    """The file can't be read or written; it is unchanged."""


class ConfigFile(NamedTuple):
    """A configuration file that holds plain JSON."""

    path: Path  # the file itself, not a link to it
    content: bytes | None  # None if there is no such file
    document: dict[str, Any]
    section: str

    @classmethod
    def read(cls, path: Path, section: str) -> "ConfigFile":
        """The file as JSON. Raises ConfigFileError, even for comments: a rewritten file would lose them."""
        real = Path(os.path.realpath(path))
        try:
            content = real.read_bytes() if real.exists() else None
        except OSError as failure:
            raise ConfigFileError(f"{path} can't be read: {failure.strerror or failure}") from None
        try:
            document = json.loads((content or b"").decode("utf-8-sig") or "{}", object_pairs_hook=_refuse_duplicates)
        except (ValueError, RecursionError) as bad:
            why = f"{bad.msg} at line {bad.lineno}" if isinstance(bad, json.JSONDecodeError) else str(bad)
            raise ConfigFileError(f"{path} is not plain JSON: {why}") from bad
        if not isinstance(document, dict) or not isinstance(document.get(section, {}), dict):
            raise ConfigFileError(f"{path} has no object {json.dumps(section)}, but something else")
        return cls(real, content, document, section)

    @property
    def servers(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document.get(self.section, {})
        return found

    def text_with(self, servers: Mapping[str, Any]) -> str:
        """The whole file with these servers, with the indent and line ends that it has."""
        text = (self.content or b"").decode("utf-8-sig")
        found = re.match(r"\{\s*\n([ \t]+)\"", text)
        indent, document = found[1] if found else 2, {**self.document, self.section: servers}
        changed = json.dumps(document, indent=indent, ensure_ascii=False)
        return f"{changed}\n".replace("\n", "\r\n" if "\r\n" in text else "\n")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands in it more than once")
    return found
