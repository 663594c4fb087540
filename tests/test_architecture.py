"""The rules of docs/architecture.md: which modules import which, the pure floor, names, and the style of the prose."""

import ast
import functools
import re
import sys
from collections import Counter
from pathlib import Path

import dovetail

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = SOURCE / "dovetail"

LEVELS = {
    "errors": 0,
    "_lazy": 0,
    "protocol": 1,
    "schema": 2,
    "registry": 3,
    "state": 3,
    "auth": 3,
    "engine": 4,
    "transports": 5,
    "extensions": 5,
    "server": 6,
    "toolregistry": 6,
    "__init__": 6,
    "client": 7,
    "authserver": 7,
    "reference": 8,
    "cli": 8,
    "console": 8,
    "gateway": 8,
    "openapi": 8,
    "compat": 9,
}
SAME_LEVEL = {"registry", "state", "auth"}  # they do not import each other
PURE_STDLIB = {
    "base64", "binascii", "bisect", "codecs", "collections", "datetime", "enum", "functools", "hashlib", "hmac",
    "itertools", "json", "math", "operator", "re", "string", "struct", "types", "typing", "unicodedata", "urllib.parse",
}  # fmt: skip
WRAPPED = {
    "jsonschema_rs": {"dovetail.schema.validate"},
    "watchfiles": {"dovetail.engine.file_watcher"},
    "cryptography": {"dovetail.engine.request_state"},
    "joserfc": {"dovetail.auth.jose"},
    "httptools": {"dovetail.transports.http11.parser"},
    "uvloop": {"dovetail.transports.serve"},
    "aiohttp": {"dovetail.client.transports.aiohttp", "dovetail.auth.fetch", "dovetail.openapi.openapi"},
    "yaml": {"dovetail.openapi.document"},
    "libcst": {"dovetail.cli.moved_imports"},
    "redis": {"dovetail.state.redis"},
    "opentelemetry": {"dovetail.engine.telemetry"},
}
# modules that are loaded only where their package is needed
LAZY_AS_A_WHOLE = {
    "dovetail.state.redis", "dovetail.transports.http11.parser", "dovetail.engine.telemetry",
    "dovetail.cli.moved_imports",
}  # fmt: skip
PEERS_PACKAGES = {"mcp_types", "pydantic", "pydantic_core", "starlette"}  # those of programs for `compat`
OPTIONAL_TYPES = {"pydantic", "attrs", "annotated_types", "pydantic_core"}  # accepted, never required
RIDDLES = re.compile(r"\b(whoever|whatever|whichever|somebody|nobody|anybody)\b", re.IGNORECASE)
IN_AND_OUT = re.compile(r"\b((come|go)(es|s)? (in|out)|in, .* out)\b", re.IGNORECASE)
VAGUE_CONSTANTS = re.compile(r"^_?(PATIENCE|LOOK_SECONDS|AGAIN_SECONDS|CERTAIN_SECONDS)\b", re.MULTILINE)


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def folder_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(path: Path) -> list[tuple[str, bool, bool]]:
    """(imported module, inside a function, only for the type checker)"""
    tree = ast.parse(path.read_text())
    found = []

    def visit(node: ast.AST, inside: bool, typing_only: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend((alias.name, inside, typing_only) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: imports are absolute"
                base = child.module or ""
                found.extend(
                    (f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base, inside, typing_only)
                    for alias in child.names
                )
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                visit(child, inside or function, typing_only or checking)

    visit(tree, False, False)
    return found


@functools.cache
def all_imports() -> list[tuple[str, str, bool, bool]]:
    """(module, imported module, inside a function, only for the type checker)"""
    return [(module, *row) for module, path in sorted(MODULES.items()) for row in imports(path)]


@functools.cache
def own_imports() -> list[tuple[str, str, bool, bool]]:
    return [row for row in all_imports() if row[1].split(".")[0] == "dovetail"]


def is_wrong(module: str, target: str, inside: bool, typing_only: bool) -> bool:
    """Folders import downward only, neighbours do not know each other, and nothing is imported inside a function."""
    here, there = folder_of(module), folder_of(target)
    if inside or (here == "reference" and target != "dovetail" and there != "reference"):  # which uses public names
        return True
    is_up = not typing_only and LEVELS[there] >= LEVELS[here] and not LEVELS[there] == LEVELS["server"] == LEVELS[here]
    return here != there and (is_up or {here, there} <= SAME_LEVEL)


def test_folders_import_downward_only() -> None:
    assert not [f"{row[0]} imports {row[1]}" for row in own_imports() if is_wrong(*row)]


def lazily_offered(folder: str) -> list[str]:
    """What a folder's `__init__` offers through `lazy_modules(__name__, …)`."""
    calls = [node for node in ast.walk(ast.parse(MODULES[folder].read_text())) if isinstance(node, ast.Call)]
    return [
        f"{folder}.{ast.literal_eval(name)}"
        for call in calls
        if ast.unparse(call.func) == "lazy_modules"
        for name in call.args[1:]
    ]


@functools.cache
def lazy_by_folder() -> dict[str, list[str]]:
    return {module: lazily_offered(module) for module, target, _, _ in own_imports() if target == "dovetail._lazy"}


def test_only_folders_have_lazy_modules() -> None:
    """So the staircase holds: a module that may import the folder may import its lazy modules."""
    assert {"dovetail.registry", "dovetail.engine", "dovetail.transports"} <= lazy_by_folder().keys()
    for folder, offered in lazy_by_folder().items():
        assert MODULES[folder].name == "__init__.py", f"{folder} is no folder"
        assert offered == sorted(offered)
        assert set(offered) <= MODULES.keys()
        seen = {target for target, _, typing_only in imports(MODULES[folder]) if typing_only}
        assert set(offered) == seen, f"{folder}: the type checker sees something else"
    loaders = {module for module, target, _, _ in all_imports() if target == "importlib"}
    # of public names, of folders, of the user's program, of the peers' names that `dovetail migrate` asks for
    assert loaders <= {
        "dovetail", "dovetail.auth", "dovetail.client", "dovetail.compat", "dovetail._lazy", "dovetail.cli.target",
        "dovetail.cli.migrate",
    }  # fmt: skip


def test_lazy_modules_are_not_loaded_with_a_server() -> None:
    """One ordinary import on the way would load it early again, without any other sign."""
    edges: dict[str, set[str]] = {}
    for module, target, _, typing_only in own_imports():
        if not typing_only:
            edges.setdefault(module, set()).add(target)
    reached: set[str] = set()
    waiting = ["dovetail.server", "dovetail.transports.stdio"]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += edges.get(module, ())
    lazy = {module for offered in lazy_by_folder().values() for module in offered} - {"dovetail.transports.stdio"}
    assert not reached & lazy


def test_no_cycles_among_modules() -> None:
    edges: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, target, _, typing_only in own_imports():
        if not typing_only and target in MODULES and target != module:
            edges[module].add(target)
    done: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail[trail.index(module) :], module))
        if module not in done:
            for target in edges[module]:
                walk(target, (*trail, module))
            done.add(module)

    for module in edges:
        walk(module, ())


def test_the_floor_is_pure() -> None:
    wrong = []
    for module, target, _, _ in all_imports():
        if folder_of(module) != "protocol":
            continue
        top = target.split(".")[0]
        fine = top in {"dovetail", "msgspec"} or top in PURE_STDLIB or target in PURE_STDLIB
        if not fine:
            wrong.append(f"{module} imports {target}")
    assert not wrong
    for module, path in MODULES.items():
        if folder_of(module) == "protocol":
            kinds = {type(node) for node in ast.walk(ast.parse(path.read_text()))}
            assert not kinds & {ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith}, module


def test_third_party_packages_are_imported_late_and_in_one_place() -> None:
    wrong = []
    for module, target, inside, typing_only in all_imports():
        top = target.split(".")[0]
        if top in sys.stdlib_module_names or top in {"dovetail", "msgspec"} or typing_only:
            continue
        if folder_of(module) == "compat" and top in PEERS_PACKAGES:
            continue
        if top in OPTIONAL_TYPES:
            allowed = inside and folder_of(module) == "schema"
        else:
            allowed = ((inside or module in LAZY_AS_A_WHOLE) and module in WRAPPED.get(top, ())) or (
                top == "click" and folder_of(module) == "cli"
            )
        if not allowed:
            wrong.append(f"{module} imports {target}")
    assert not wrong


def test_a_public_name_is_one_class() -> None:
    """Inside, two folders may each have their own `TokenEndpoint`; the peers' names are in `compat`."""
    homes: dict[str, list[str]] = {}
    for module, path in ((name, path) for name, path in MODULES.items() if folder_of(name) != "compat"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name in dovetail.__all__:
                homes.setdefault(node.name, []).append(module)
    assert homes
    assert not {name: found for name, found in homes.items() if len(found) > 1}


def test_every_module_says_what_it_is_for_and_none_is_named_after_nothing() -> None:
    assert not [name for name, path in MODULES.items() if not ast.get_docstring(ast.parse(path.read_text()))]
    nothing = {"utils", "helpers", "manager", "misc", "common"}
    assert not [module for module in MODULES if any(word in module.split(".")[-1] for word in nothing)]


def test_the_source_names_its_actors_and_things() -> None:
    """The style of CONTRIBUTING.md: no riddles for the client, caller or worker; modules open with their subject."""
    texts = {module: path.read_text() for module, path in MODULES.items()}
    riddles = {module: len(found) for module, text in texts.items() if (found := RIDDLES.findall(text))}
    assert sum(riddles.values()) <= 60, riddles
    openings = {module: (ast.get_docstring(ast.parse(text)) or "").split("\n")[0] for module, text in texts.items()}
    assert not {module: line for module, line in openings.items() if IN_AND_OUT.search(line) or len(line) > 120}
    assert not [module for module, text in texts.items() if VAGUE_CONSTANTS.search(text)]
    names = Counter(path.stem for path in MODULES.values() if not path.stem.startswith("__"))
    assert not {name: count for name, count in names.items() if count > 3}
