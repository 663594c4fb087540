"""Targets: `server.py`, `server.py:name` or `package.module:name` to the Server object in it.

`python -m dovetail.cli.target server.py` is `dovetail run server.py` over stdio, without the weight of a command line:
commands start the programs that they talk to like this.
"""

import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from inspect import Parameter, iscoroutine, signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import dovetail
from dovetail.errors import SetupError
from dovetail.transports import importing

if TYPE_CHECKING:
    from traceback import TracebackException

    from dovetail.server import Server

USUAL_NAMES = ("server", "mcp", "app")
NOT_FOUND, LOAD_FAILED = 222, 223  # exit codes of a process that serves a target: it has said why on stderr
JSON_SUFFIX = ".json"
MAX_FRAMES = 12  # of a traceback


class BadTarget(SetupError):
    """There is no such thing to serve; the message says what to write instead."""


class BrokenProgram(SetupError):
    """What the program raised while it was loaded, as a traceback without our own frames."""


def stdio_command(target: str) -> list[str]:
    """The command that serves a Python program over stdio."""
    return [sys.executable, "-m", "dovetail.cli.target", target]


# ── where a target is; nothing is imported or run for it ──


def split_config_target(target: str) -> tuple[str, str] | None:
    """The file, and the name of a server in it: `mcp.json:weather`. The name may be left out."""
    place, divided, name = target.partition(f"{JSON_SUFFIX}:")
    if divided:
        return f"{place}{JSON_SUFFIX}", name
    return (target, "") if target.endswith(JSON_SUFFIX) else None


def split_target(target: str) -> tuple[str, str]:
    """The file or module, and the name in it; the colon of a Windows drive divides nothing."""
    place, colon, name = target.rpartition(":")
    if colon and all(part.isidentifier() for part in name.split(".")):
        return place, name
    return target, ""


def target_problem(target: str, *, elsewhere: bool = False) -> str | None:
    """Why there can't be such a program; None if there may be one. A module may be in an environment `elsewhere`."""
    place, _ = split_target(target)
    if place.endswith(".py"):
        return None if os.path.isfile(place) else f"there is no file {place}"
    if not all(part.isidentifier() for part in place.split(".")):
        return f"{place!r} is neither a Python file nor a module"
    if elsewhere:
        return None
    hint = f"; for a file write {place}.py" if os.path.isfile(f"{place}.py") else ""
    top = place.partition(".")[0]
    try:
        found = PathFinder.find_spec(top, [os.getcwd()]) or find_spec(top)  # as `python -m` does
    except (ImportError, AttributeError, ValueError):  # of a finder that is not Python's own: to import it will tell
        return None
    return None if found else f"there is no module {top}{hint}"


# ── loading it ──


def load_target(target: str) -> "Server":
    """Import the program and find its server. What the program itself raises becomes a SetupError."""
    try:
        return _load(target)
    except SetupError:
        raise
    except Exception as failure:
        raise BrokenProgram(f"{split_target(target)[0]} can't be loaded\n{traceback_of(failure)}") from failure


def _load(target: str) -> "Server":
    if missing := target_problem(target):
        raise BadTarget(missing)
    place, name = split_target(target)
    with importing(place):
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
        found = _named(module, name, place) if name else _only_server(module, place)
        if not isinstance(found, dovetail.Server) and callable(found):
            if needed := _needed(found):
                raise BadTarget(f"{place}:{name} is called without arguments, but needs {needed}; give them defaults")
            found = found()  # a function that makes one
    if iscoroutine(found):
        found.close()
    if not isinstance(found, dovetail.Server):
        kind = f"a {type(found).__qualname__}"
        raise BadTarget(f"{place}:{name} is {kind}, not a dovetail.Server or a plain function that makes one")
    return found


def _needed(factory: Callable[..., Any]) -> str:
    """The parameters that have to be given."""
    free = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    try:
        parameters = signature(factory).parameters.values()
    except ValueError:  # not all that is built in says it
        return ""
    return ", ".join(each.name for each in parameters if each.default is each.empty and each.kind not in free)


def _load_file(path: Path) -> ModuleType:
    """As `python server.py` does: other modules in its folder can be imported."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "dovetail_target"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(name: str) -> ModuleType:
    """As `python -m package.module` does."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return import_module(name)
    except ModuleNotFoundError as failure:
        if failure.name is None or not f"{name}.".startswith(f"{failure.name}."):
            raise  # it is there, but not what it imports
        raise BadTarget(f"there is no module {failure.name}") from None


def _only_server(module: ModuleType, place: str) -> Any:
    servers = {name: value for name, value in vars(module).items() if isinstance(value, dovetail.Server)}
    usual = [servers[name] for name in USUAL_NAMES if name in servers]
    candidates = list({id(one): one for one in usual or servers.values()}.values())
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise BadTarget(f"{place} has several servers: {', '.join(servers)}; say which, as in {place}:{min(servers)}")
    raise BadTarget(
        f"{place} has no server: it needs a line like `server = Server(...)` outside of functions, "
        f"or say which function makes one, as in {place}:create_server"
    )


def _named(module: ModuleType, name: str, place: str) -> Any:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            servers = [key for key, value in vars(module).items() if isinstance(value, dovetail.Server)]
            hint = f"; it has {', '.join(servers)}" if servers else ""
            raise BadTarget(f"{place} has no {name}{hint}") from None
    return found


def traceback_of(failure: BaseException) -> str:
    """As Python prints it, without the frames of Dovetail and of Python's import system."""
    from traceback import TracebackException  # late: programs are mostly right

    ours = (str(Path(dovetail.__file__).parent), str(Path(os.__file__).parent / "importlib"), "<frozen ")
    found = TracebackException.from_exception(failure)
    for each in _with_causes(found):
        each.stack[:] = [frame for frame in each.stack if not frame.filename.startswith(ours)][-MAX_FRAMES:]
    return "".join(found.format()).rstrip()


def _with_causes(found: "TracebackException") -> "Iterator[TracebackException]":
    yield found
    for other in (found.__cause__, found.__context__, *(found.exceptions or ())):
        if other is not None:
            yield from _with_causes(other)


def serve_stdio(target: str) -> None:
    try:
        load_target(target).run("stdio")
    except SetupError as failure:
        sys.stderr.write(f"Error: {failure}\n")
        sys.exit(NOT_FOUND if isinstance(failure, BadTarget) else LOAD_FAILED)


if __name__ == "__main__":
    serve_stdio(sys.argv[1])
