"""The words of `dovetail install` come in; the server that they mean goes out, as a host has to know it.

Hosts start programs in a folder of their own choice, so nothing may depend on the current one.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import click

from dovetail.cli.installing.hosts import Added

LAUNCHERS = ("npx", "bunx", "bun", "node", "deno", "uvx", "uv", "pipx", "python", "py", "docker", "podman", "run", "x")
PLAIN_STEMS = ("server", "main", "app", "mcp", "__init__", "__main__")  # they say nothing about the server


def server_from(
    target: str | None,
    behind: list[str],
    env: Iterable[str],
    headers: Iterable[str],
    transport: str,
    with_uv: bool,
) -> Added:
    if behind:
        program = shutil.which(behind[0]) or behind[0]
        return Added(command=[_absolute(word) for word in (program, *behind[1:])], env=_variables(env))
    if not target:
        raise click.UsageError("which server? Give a Python program, a URL, or a command after --")
    if "://" in target:
        if not target.lower().startswith(("http://", "https://")):
            raise click.UsageError(f"{target}: a URL begins with https:// or http://")
        return Added(url=target, headers=_headers(headers), transport=transport)
    return _program(target, _variables(env), with_uv)


def _program(target: str, env: dict[str, str], with_uv: bool) -> Added:
    place, colon, inner = target.rpartition(":") if ".py:" in target else (target, "", "")
    if not place.endswith(".py"):
        return Added(_run(target, Path.cwd(), with_uv), env | _import_path(place))
    path = Path(os.path.abspath(place))
    if not path.is_file():
        raise click.UsageError(f"there is no file {place}; give a Python program, a URL, or a command after --")
    return Added(_run(f"{path}{colon}{inner}", path.parent, with_uv), env)


def _absolute(word: str) -> str:
    """A file that lies here has to be found from anywhere."""
    return os.path.abspath(word) if os.path.isfile(word) else word


def _run(target: str, folder: Path, with_uv: bool) -> list[str]:
    if with_uv:
        return [shutil.which("uv") or "uv", "run", "--directory", str(folder), "dovetail", "run", target]
    return [sys.executable, "-m", "dovetail.cli", "run", target]


def _import_path(module: str) -> dict[str, str]:
    """A module that lies here has to be found from anywhere."""
    top = Path.cwd() / module.partition(":")[0].partition(".")[0]
    is_here = top.is_dir() or top.with_suffix(".py").is_file()
    return {"PYTHONPATH": str(Path.cwd())} if is_here else {}


def _variables(given: Iterable[str]) -> dict[str, str]:
    found = {}
    for each in given:
        name, is_set, value = each.partition("=")
        if not is_set and name in os.environ:
            value = os.environ[name]
        elif not is_set:
            raise click.UsageError(f"--env {name}: there is no such variable here; write it as NAME=VALUE")
        if not name.strip():
            raise click.UsageError("--env: write it as NAME=VALUE")
        found[name.strip()] = value
    return found


def _headers(given: Iterable[str]) -> dict[str, str]:
    found = {}
    for each in given:
        name, is_set, value = each.partition(":")
        if not is_set or not name.strip():
            raise click.UsageError("--header: write it as NAME:VALUE")
        found[name.strip()] = value.strip()
    return found


def usual_name(target: str, behind: list[str]) -> str:
    """After what tells most of it: the address, the file, or else its folder; of a command, what is launched."""
    if "://" in target:
        told = _host(target)
    elif behind:
        words = [word for word in behind if not word.startswith("-")]
        launched = [word for word in words if Path(word).stem.rstrip("0123456789.") not in LAUNCHERS]
        told = _file((launched or words or [""])[0].removesuffix("/"))
    else:
        told = _file(target if ".py" in target else target.partition(":")[0].replace(".", "/"))
    return re.sub(r"[^A-Za-z0-9]+", "-", told).strip("-").lower()[:64] or "server"


def _file(place: str) -> str:
    path = Path(os.path.abspath(place.partition(".py")[0]))
    name = re.sub(r"(?<=.)[@:].*", "", path.name)  # without a version
    return path.parent.name if name in PLAIN_STEMS else name


def _host(url: str) -> str:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        raise click.UsageError(f"{url} is no URL") from None
    if ":" in host or host.replace(".", "").isdigit():
        return host  # an address of digits
    return host.removeprefix("www.").removeprefix("mcp.").partition(".")[0]
