"""Targets: the Server object of `server.py`, `server.py:name` or `package.module:name`; OpenAPI; a folder of skills.

`python -m dovetail.cli.target server.py` is `dovetail run server.py` over stdio without importing the command line:
commands start the programs that they talk to like this.
"""

import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from inspect import Parameter, iscoroutine, signature
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from msgspec import DecodeError

import dovetail
from dovetail.errors import SetupError
from dovetail.protocol.jsonrpc import members
from dovetail.transports import importing

if TYPE_CHECKING:
    from traceback import TracebackException

    from dovetail.server import Server

USUAL_NAMES = ("server", "mcp", "app")
NOT_FOUND, LOAD_FAILED = 222, 223  # exit codes of `serve_stdio`, after an error on stderr
JSON_SUFFIX = ".json"
MAX_FRAMES = 12  # of a traceback


class BadTarget(SetupError):
    """The target names no server; the message says what to write instead."""


class BrokenProgram(SetupError):
    """The program raised an error while it was loaded; the message is a traceback without frames of Dovetail."""


def stdio_command(target: str) -> list[str]:
    return [sys.executable, "-m", "dovetail.cli.target", target]


def is_openapi(target: str) -> bool:
    """Whether the target is the file of an OpenAPI document: YAML, or JSON that says so; `swagger` is refused later."""
    if target.endswith((".yaml", ".yml")):
        return "://" not in target
    try:
        return target.endswith(JSON_SUFFIX) and bool(members(Path(target).read_bytes()).keys() & {"openapi", "swagger"})
    except (OSError, ValueError, DecodeError, RecursionError):  # a reader of the file will say more
        return False


def is_skills(target: str) -> bool:
    """Whether the target is a folder of skills, or of one skill."""
    return any(True for pattern in ("SKILL.md", "*/SKILL.md") for _ in Path(target).glob(pattern))


def split_config_target(target: str) -> tuple[str, str] | None:
    """The file and the server name of `mcp.json:weather`; the name may be empty. None for other targets."""
    stem, divided, name = target.partition(f"{JSON_SUFFIX}:")
    if divided:
        return f"{stem}{JSON_SUFFIX}", name
    return (target, "") if target.endswith(JSON_SUFFIX) and not is_openapi(target) else None


def split_target(target: str) -> tuple[str, str]:
    """The file or module, and the name in it. The colon of a Windows drive does not count."""
    source, colon, name = target.rpartition(":")
    is_divided = colon and all(part.isidentifier() for part in name.split("."))
    return (source, name) if is_divided else (target, "")


def target_problem(target: str, *, elsewhere: bool = False) -> str | None:
    """Why there is no such program; None if there may be one. `elsewhere`: a module may be in another environment."""
    if is_skills(target):
        return None
    source, _ = split_target(target)
    if source.endswith(".py") or is_openapi(target):
        return None if os.path.isfile(source) else f"there is no file {source}"
    if not all(part.isidentifier() for part in source.split(".")):
        return f"{source!r} is neither a Python file nor a module"
    if elsewhere:
        return None
    hint = f"; for a file write {source}.py" if os.path.isfile(f"{source}.py") else ""
    top = source.partition(".")[0]
    try:
        found = PathFinder.find_spec(top, [os.getcwd()]) or find_spec(top)  # as `python -m` does
    except (ImportError, AttributeError, ValueError):  # of a custom finder: the import will report it
        return None
    return None if found else f"there is no module {top}{hint}"


def load_target(target: str) -> "Server":
    """Import the program and find its server. Errors of the program become a SetupError."""
    try:
        return _load(target)
    except SetupError:
        raise
    except Exception as failure:
        raise BrokenProgram(f"{split_target(target)[0]} can't be loaded\n{traceback_of(failure)}") from failure


def _load(target: str) -> "Server":
    if problem := target_problem(target):
        raise BadTarget(problem)
    if is_openapi(target):
        return dovetail.OpenApi(target)
    if is_skills(target):
        server = dovetail.Server(Path(target).resolve().name)
        server.add_skills(target)
        return server
    source, name = split_target(target)
    with importing(source):
        module = _load_file(Path(source)) if source.endswith(".py") else _load_module(source)
        found = _named(module, name, source) if name else _only_server(module, source)
        if not isinstance(found, dovetail.Server) and callable(found):
            if needed := _required_parameters(found):
                raise BadTarget(f"{source}:{name} is called without arguments, but needs {needed}; give them defaults")
            found = found()
    if iscoroutine(found):
        found.close()
    if not isinstance(found, dovetail.Server):
        kind = f"a {type(found).__qualname__}"
        raise BadTarget(f"{source}:{name} is {kind}, not a dovetail.Server or a plain function that makes one")
    return found


def _required_parameters(factory: Callable[..., Any]) -> str:
    free = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    try:
        parameters = signature(factory).parameters.values()
    except ValueError:  # some builtins have no signature
        return ""
    return ", ".join(each.name for each in parameters if each.default is each.empty and each.kind not in free)


def _load_file(path: Path) -> ModuleType:
    """Load a file as `python server.py` does: its folder is on `sys.path`."""
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
    """Load a module as `python -m package.module` does."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return import_module(name)
    except ModuleNotFoundError as failure:
        if failure.name is None or not f"{name}.".startswith(f"{failure.name}."):
            raise  # the module exists, but one that it imports does not
        raise BadTarget(f"there is no module {failure.name}") from None


def _only_server(module: ModuleType, source: str) -> Any:
    servers = {name: value for name, value in vars(module).items() if isinstance(value, dovetail.Server)}
    usual = [servers[name] for name in USUAL_NAMES if name in servers]
    candidates = list({id(one): one for one in usual or servers.values()}.values())
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise BadTarget(f"{source} has several servers: {', '.join(servers)}; say which, as in {source}:{min(servers)}")
    raise BadTarget(
        f"{source} has no server: it needs a line like `server = Server(...)` outside of functions, "
        f"or say which function makes one, as in {source}:create_server"
    )


def _named(module: ModuleType, name: str, source: str) -> Any:
    try:
        return attrgetter(name)(module)
    except AttributeError:
        servers = [key for key, value in vars(module).items() if isinstance(value, dovetail.Server)]
        hint = f"; it has {', '.join(servers)}" if servers else ""
        raise BadTarget(f"{source} has no {name}{hint}") from None


def traceback_of(failure: BaseException) -> str:
    """The traceback as Python prints it, without the frames of Dovetail and of Python's import system."""
    from traceback import TracebackException  # late: needed for a broken program only

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
