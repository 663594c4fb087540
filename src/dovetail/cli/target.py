"""What is to be served: `server.py`, `server.py:name` or `package.module:name` comes in, the Server in it goes out."""

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter, iscoroutine, signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import dovetail
from dovetail.cli.tracebacks import as_told
from dovetail.cli.whereabouts import split_target
from dovetail.errors import SetupError
from dovetail.transports.loading import loading

if TYPE_CHECKING:
    from dovetail.server import Server

USUAL_NAMES = ("server", "mcp", "app")


class BadTarget(SetupError):
    """There is no such thing to serve; the message says what to write instead."""


class BrokenProgram(SetupError):
    """What it raised while it was loaded, as it is told to who wrote it."""


def load_target(target: str) -> "Server":
    """Import the program and find its server. What the program itself raises becomes a SetupError."""
    try:
        return _load(target)
    except SetupError:
        raise
    except Exception as failure:
        raise BrokenProgram(f"{split_target(target)[0]} can't be loaded\n{as_told(failure)}") from failure


def _load(target: str) -> "Server":
    place, name = split_target(target)
    with loading(place):
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
        found = _named(module, name, place) if name else _only_server(module, place)
        if not isinstance(found, dovetail.Server) and callable(found):
            found = _made_by(found, f"{place}:{name}")
    if not isinstance(found, dovetail.Server):
        raise BadTarget(f"{place}:{name} is {_kind(found)}, not a dovetail.Server or a function that makes one")
    return found


def _load_file(path: Path) -> ModuleType:
    """As `python server.py` does: other modules in its folder can be imported."""
    if not path.is_file():
        raise BadTarget(f"there is no file {path}")
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
    if not all(part.isidentifier() for part in name.split(".")):
        raise BadTarget(f"{name!r} is neither a Python file nor a module; write server.py or package.module:name")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return import_module(name)
    except ModuleNotFoundError as failure:
        if failure.name is None or not f"{name}.".startswith(f"{failure.name}."):
            raise  # it is there, but not what it imports
        hint = f"; for a file write {name}.py" if Path(f"{name}.py").is_file() else ""
        raise BadTarget(f"there is no module {failure.name}{hint}") from None


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


def _made_by(factory: Any, label: str) -> Any:
    """A factory is called without arguments."""
    if needed := _needed_arguments(factory):
        advice = "name a dovetail.Server, or a function that makes one without any"
        raise BadTarget(f"{label} needs arguments ({', '.join(needed)}): {advice}")
    made = factory()
    if iscoroutine(made):
        made.close()
        raise BadTarget(f"{label} is an async function: make the server in a plain one")
    if not isinstance(made, dovetail.Server):
        raise BadTarget(f"{label}() gave {_kind(made)}, not a dovetail.Server")
    return made


def _needed_arguments(function: Any) -> list[str]:
    try:
        parameters = signature(function).parameters.values()
    except (ValueError, TypeError):  # not written in Python: calling it will tell
        return []
    various = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is Parameter.empty and each.kind not in various]


def _kind(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")
