"""The words of `dovetail install` come in; the server that they mean goes out, as a host has to know it.

Hosts start programs in a folder of their own choice, so nothing may depend on the current one. What is written for a
whole project must not depend on this machine either, as far as that is possible.
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import click

from dovetail.cli.installing.hosts import HTTP, Added
from dovetail.cli.terminal import in_line

LAUNCHERS = ("npx", "bunx", "bun", "node", "deno", "uvx", "uv", "pipx", "python", "py", "docker", "podman")
SUBCOMMANDS = ("run", "x")  # of launchers
PLAIN_STEMS = ("server", "main", "app", "mcp", "__init__", "__main__")  # they say nothing about the server
URL, PROGRAM, COMMAND = "a URL", "a Python program", "a command after --"
FITTING = {  # which options each of them takes
    URL: ("--header", "--transport"),
    PROGRAM: ("--env", "--uv"),
    COMMAND: ("--env",),
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
WAYS = "give a Python program, a URL, or a command after --"


class Given(NamedTuple):
    """What was typed."""

    target: str = ""
    behind: Sequence[str] = ()  # the words after `--`
    env: Sequence[str] = ()
    headers: Sequence[str] = ()
    transport: str | None = None
    with_uv: bool = False

    @property
    def kind(self) -> str:
        if self.behind:
            return COMMAND
        return URL if "://" in self.target else PROGRAM

    @property
    def options(self) -> list[str]:
        """Those that were given."""
        rows = (
            ("--env", self.env),
            ("--header", self.headers),
            ("--transport", self.transport),
            ("--uv", self.with_uv),
        )
        return [name for name, value in rows if value]


def server_from(given: Given, here: str | None = None) -> Added:
    """`here` stands for the current folder in what is shared with others; without it, full paths are written."""
    if not given.behind and not given.target:
        raise click.UsageError(f"which server? Please {WAYS}")
    for option in given.options:
        if option not in FITTING[given.kind]:
            fits = " and ".join(FITTING[given.kind])
            raise click.UsageError(f"{option} does not go with {given.kind}, which takes {fits}")
    if given.kind == URL:
        _check_url(given.target)
        return Added(url=given.target, headers=_headers(given.headers), transport=given.transport or HTTP)
    if given.kind == PROGRAM:
        return _program(given, here)
    program = given.behind[0] if here else shutil.which(given.behind[0]) or given.behind[0]
    return Added(command=[_located(word, here) for word in (program, *given.behind[1:])], env=_variables(given.env))


def _check_url(url: str) -> None:
    """What is wrong with it is told without it: it may hold a secret."""
    if not url.lower().startswith(("http://", "https://")):
        raise click.UsageError("a URL begins with https:// or http://")
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if not has_host or re.search(r"[\s\x00-\x1f\x7f\"<>\\]", url):
        raise click.UsageError("that is no URL; write it as https://example.com/mcp")


def _program(given: Given, here: str | None) -> Added:
    env = _variables(given.env)
    place, colon, inner = given.target.rpartition(":") if ".py:" in given.target else (given.target, "", "")
    if not place.endswith(".py"):
        return _module(given, env, here)
    path = Path(os.path.abspath(place))
    if not path.is_file():
        raise click.UsageError(f"there is no file {place}; {WAYS}")
    if colon and not _is_dotted(inner):
        raise click.UsageError(f"{given.target}: after the colon comes the name of a server in {place}")
    if not given.with_uv:
        return Added([sys.executable, "-m", "dovetail.cli", "run", f"{path}{colon}{inner}"], env)
    folder = _located(str(path.parent), here)
    return Added(_by_uv(folder, f"{path if folder == str(path.parent) else path.name}{colon}{inner}", here), env)


def _module(given: Given, env: dict[str, str], here: str | None) -> Added:
    module, colon, inner = given.target.partition(":")
    if os.path.isdir(given.target) and not _is_found(given.target):
        raise click.UsageError(
            f"{given.target} is a folder; name the program in it, as {Path(given.target, 'server.py')}"
        )
    if not _is_dotted(module) or (colon and not _is_dotted(inner)):
        raise click.UsageError(f"{given.target} is neither a Python program nor a module; {WAYS}")
    if given.with_uv:  # which has an environment of its own, and the modules in its folder
        return Added(_by_uv(_located(os.getcwd(), here), given.target, here), env)
    if not _is_found(module):
        raise click.UsageError(f"there is no module {module}; {WAYS}")
    return Added([sys.executable, "-m", "dovetail.cli", "run", given.target], _with_import_path(env, module))


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _is_found(module: str) -> bool:
    """Nothing is imported for it. A folder without a program in it is a module, but has no server."""
    if not _is_dotted(module):
        return False
    top, *inner = module.split(".")
    try:
        spec = PathFinder.find_spec(top, [os.getcwd()]) or find_spec(top)
    except (ImportError, ValueError):
        return False
    name = top
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            return False
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec is not None and spec.origin is not None


def _located(word: str, here: str | None) -> str:
    """A file or a folder that lies here has to be found from anywhere; what is shared, on any machine."""
    is_file = os.path.isfile(word)
    if here and (is_file or (os.path.isabs(word) and os.path.isdir(word))):
        inside = Path(os.path.relpath(word))
        if inside.parts[:1] != (os.pardir,) and not inside.is_absolute():
            return here if inside == Path() else f"{here}/{inside.as_posix()}"
    return os.path.abspath(word) if is_file else word


def _by_uv(folder: str, target: str, here: str | None) -> list[str]:
    program = "uv" if here else shutil.which("uv") or "uv"
    return [program, "run", "--directory", folder, "dovetail", "run", target]


def _with_import_path(env: dict[str, str], module: str) -> dict[str, str]:
    """A module that lies here has to be found from anywhere, after what was asked for."""
    folder = os.getcwd()
    if PathFinder.find_spec(module.partition(".")[0], [folder]) is None:
        return env
    known = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {**env, "PYTHONPATH": os.pathsep.join(known if folder in known else [*known, folder])}


def _variables(given: Sequence[str]) -> dict[str, str]:
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


def _headers(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for each in given:
        name, is_set, value = each.partition(":")
        if not is_set or not name.strip():
            raise click.UsageError("--header: write it as NAME:VALUE")
        name, value = name.strip(), value.strip()
        if _CONTROL.search(name + value):
            raise click.UsageError(f"--header {in_line(name)}: it has a line break or another control character")
        found[name] = value
    return found


def is_launcher(program: str) -> bool:
    """Whether it starts programs of others; `python3.12` is `python`."""
    return Path(program).stem.rstrip("0123456789.") in LAUNCHERS


def usual_name(target: str, behind: list[str]) -> str:
    """After what tells most of it: the address, the file, or else its folder; of a command, what is launched."""
    if "://" in target:
        told = _host(target)
    elif behind:
        words = [word for word in behind if not word.startswith("-")]
        launched = [word for word in words if not is_launcher(word) and word not in SUBCOMMANDS]
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
        return ""
    if ":" in host or host.replace(".", "").isdigit():
        return host  # an address of digits
    return host.removeprefix("www.").removeprefix("mcp.").partition(".")[0]
