"""`dovetail migrate`: rewrites imports of FastMCP and the official SDK to `dovetail.compat`, and tells what is left.

Python's own parser finds what a program takes from a peer; libcst, in `moved_imports.py`, rewrites the imports, so that
all else stays as it is.
"""

import ast
import tomllib
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click

from dovetail import cli
from dovetail.cli.files import list_files, replace_file
from dovetail.cli.output import FAILED, CommandExit, err, out, sanitize, styled

FASTMCP, SDK = "dovetail.compat.fastmcp", "dovetail.compat.mcp"
TYPES = f"{SDK}.types"
MODULES = {  # of each peer, and what stands for them; all that is below goes with them
    "fastmcp": {"fastmcp": FASTMCP, "fastmcp_tasks": f"{FASTMCP}.tasks", "mcp.types": TYPES, "mcp_types": TYPES},
    "mcp": {"mcp": SDK, "mcp_types": TYPES},
}
PAGES = {FASTMCP: '"From FastMCP", docs/from-fastmcp.md', SDK: '"From the official SDK", docs/from-the-sdk.md'}
COMPAT, NATIVE, MISSING, FAILURE = "compat", "native", "missing", "failed"
COLOURS = {COMPAT: "green", NATIVE: "cyan", MISSING: "yellow", FAILURE: "red"}
NAMES = Path(__file__).with_name("peer_names.toml")
IMPORTERS = {"import_module", "__import__", "importorskip", "find_spec", "patch"}  # functions that take a module's name

EXAMPLES = """
\b
Examples:
  dovetail migrate server.py
  dovetail migrate . --from fastmcp --write

\b
What it says of a line:
  compat   dovetail.compat does it
  native   it could be written for Dovetail itself, and how
  missing  dovetail.compat does not have it, or it is to be rewritten by hand
  failed   the file can't be read, parsed or written, and is as it was

\b
Exit codes:
  0  nothing is missing: dovetail.compat does all of it, or there is nothing to do
  1  something is missing, or a file failed
  2  the command line is wrong, or --write needs: pip install "dovetail-mcp[migrate]"
"""


class Finding(NamedTuple):
    """What is to be said of a line."""

    line: int
    kind: str
    text: str


class Unreadable(Exception):
    """The file is no program, or can't be rewritten without a loss; the message says why."""


@click.command("migrate", epilog=EXAMPLES)
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--from", "peer", type=click.Choice(list(MODULES)), help="Only imports of this library.  [default: both]")
@click.option("--write", is_flag=True, help="Rewrite the imports; without it the files stay as they are.")
def command(path: Path, peer: str | None, write: bool) -> None:
    """Move the program or folder at PATH from FastMCP or the official SDK to Dovetail.

    Imports become those of dovetail.compat, and the report tells line by line what is left to do. What is hidden,
    virtual environments and links in a folder are left alone.
    """
    modules = {name: target for each in ([peer] if peer else MODULES) for name, target in MODULES[each].items()}
    if write:
        _ = cli.moved_imports  # without libcst nothing is begun
    counts: Counter[str] = Counter()
    for file in _programs(path):
        try:
            imports, findings = _migrate(file, modules, is_writing=write)
        except (Unreadable, OSError) as problem:
            imports, findings = 0, [Finding(1, FAILURE, str(getattr(problem, "strerror", None) or problem))]
        for finding in findings:
            kind = styled(f"{finding.kind:8}", fg=COLOURS[finding.kind])
            out(f"{sanitize(str(file))}:{finding.line}: {kind}{sanitize(finding.text)}")
        counts.update([finding.kind for finding in findings], imports=imports, files=imports > 0)
    done = "rewritten" if write else "to rewrite, which --write does"
    err(f"{counts['imports']} imports in {counts['files']} files {done}" if counts["files"] else "no import to rewrite")
    err(", ".join(f"{counts[kind]} {kind}" for kind in COLOURS if counts[kind]) or "nothing more to do")
    if counts[MISSING] or counts[FAILURE]:
        raise click.exceptions.Exit(FAILED)


def _programs(path: Path) -> list[Path]:
    """The program at the path, or those below it."""
    if not path.is_dir():
        return [path.resolve() if path.is_symlink() else path]
    try:
        return [file for file in list_files(path) if file.suffix == ".py"]
    except OSError as failure:
        raise CommandExit(f"{failure.filename} can't be read: {failure.strerror}") from None


def _migrate(file: Path, modules: Mapping[str, str], *, is_writing: bool) -> tuple[int, list[Finding]]:
    """The number of imports to rewrite, and what to say of the file. Raises Unreadable or OSError."""
    content = file.read_bytes()
    if b"mcp" not in content:
        return 0, []
    uses = _Uses(content, modules)
    if uses.imports and is_writing:
        replace_file(file, cli.moved_imports.rewrite(content, modules), content)
    return uses.imports, uses.findings()


def moved_path(module: str, modules: Mapping[str, str]) -> str | None:
    """The module of `dovetail.compat` that stands for a peer's; None for any other module."""
    for known, path in modules.items():
        if f"{module}.".startswith(f"{known}."):
            return path + module.removeprefix(known)
    return None


# ── the report ──


class _Uses:
    """What a program takes from the peers, or from `dovetail.compat` if it was rewritten before."""

    def __init__(self, content: bytes, modules: Mapping[str, str]) -> None:
        """Raises Unreadable."""
        self._modules = modules
        self._all = {**modules, **{path: path for path in modules.values()}}
        self._names: dict[tuple[str, str], int] = {}  # (module, name): its first line
        self._bound: dict[str, str] = {}  # names in the program that stand for modules
        self._findings: set[Finding] = set()
        self.imports = 0  # that are to be rewritten
        nodes = _nodes(content)
        inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        chains = [
            (node.lineno, chain) for node in nodes if id(node) not in inner and len(chain := _name_chain(node)) > 1
        ]
        self._roots = {chain[0] for _, chain in chains}
        for node in nodes:
            if isinstance(node, ast.Import):
                self._add_modules(node)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                self._add_names(node)
            elif isinstance(node, ast.Call):
                self._add_call(node)
        for line, (root, *parts) in chains:
            if root in self._bound:
                self._names.setdefault(_found(self._bound[root], parts), line)
        for node in nodes if self._names else ():
            if isinstance(node, ast.Attribute) and (name := f".{node.attr}") in _spellings():
                self._findings.add(Finding(node.lineno, NATIVE, name + _spellings()[name]))

    def _add_modules(self, node: ast.Import) -> None:
        self.imports += any(moved_path(alias.name, self._modules) for alias in node.names)
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            if path := moved_path(name, self._all):
                self._bound[alias.asname or name] = path

    def _add_names(self, node: ast.ImportFrom) -> None:
        path = moved_path(node.module or "", self._all)
        if path is None:
            return
        self.imports += moved_path(node.module or "", self._modules) is not None
        for alias in node.names:
            name = alias.asname or alias.name
            if alias.name.islower() and name in self._roots and not _compat_has(path, alias.name):
                self._bound[name] = f"{path}.{alias.name}"
            elif alias.name != "*":
                self._names.setdefault((path, alias.name), node.lineno)

    def _add_call(self, node: ast.Call) -> None:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        given = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if name in IMPORTERS and isinstance(given, str) and (path := moved_path(given, self._modules)):
            self._findings.add(Finding(node.lineno, MISSING, f'{name}("{given}"): write {path} by hand'))

    def findings(self) -> list[Finding]:
        return sorted({*self._findings, *(_finding(line, *name) for name, line in self._names.items())})


def _finding(line: int, path: str, name: str) -> Finding:
    """What is to be said of a name that is taken from a module of `dovetail.compat`."""
    natively = _spellings().get(name, "")
    if not _compat_has(path, name):
        return Finding(line, MISSING, f"{name}{natively}; see {PAGES[SDK if path.startswith(SDK) else FASTMCP]}")
    return Finding(line, NATIVE, name + natively) if natively else Finding(line, COMPAT, f"{name}: {path}")


def _nodes(content: bytes) -> list[Any]:
    """All nodes of a program that have a line, in their order. Raises Unreadable."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that are none; they are the author's
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as failure:
        raise Unreadable(f"it can't be parsed: {failure}") from None
    return sorted(
        (node for node in ast.walk(tree) if hasattr(node, "lineno")), key=lambda node: (node.lineno, node.col_offset)
    )


def _name_chain(node: ast.AST) -> list[str]:
    """`["mcp", "types", "Tool"]` for the expression `mcp.types.Tool`; nothing for one that is not of names alone."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []


def _found(path: str, parts: Sequence[str]) -> tuple[str, str]:
    """The module and the name in it of a chain that begins at a module."""
    for part in parts[:-1]:
        if not part.islower() or _compat_has(path, part):
            return path, part
        path = f"{path}.{part}"
    return path, parts[-1]


@cache
def _compat_has(path: str, name: str) -> bool:
    """Whether `dovetail.compat` has the name. Modules don't count, because any path below a peer's is one."""
    try:
        return not isinstance(getattr(import_module(path), name), ModuleType)
    except Exception:  # what has no equal may say so by any error
        return False


@cache
def _spellings() -> dict[str, str]:
    """How a peer's name is written natively, and the page that shows it."""
    pages: dict[str, dict[str, str]] = tomllib.loads(NAMES.read_text(encoding="utf-8"))
    return {
        name: f': {spelling}, as in "{page}"'
        for page, rows in pages.items()
        for spelling, names in rows.items()
        for name in names.split()
    }
