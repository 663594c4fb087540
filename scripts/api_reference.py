"""The reference of the public names, as Markdown: from signatures, docstrings, and the comments beside fields.

Nothing of it is committed: scripts/docs_site.py puts the pages into the site. api_reference.toml says
which names each page has; a public name that is on none is an error, and so is one that is on two.
"""

import ast
import functools
import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
MODULES = ("dovetail", "dovetail.auth", "dovetail.authserver", "dovetail.client", "dovetail.client.oauth")
RECORDS = {"Struct", "TypedDict", "NamedTuple"}  # bases of classes whose fields are their parameters
DEFAULTS = {"ServerOptions": "Options", "AsgiOptions": "HttpOptions", "RunOptions": "HttpOptions"}  # who has them
GUIDES = {  # the page whose tables describe these options; others have a comment in the source
    "ServerOptions": "server",
    "ResourceOptions": "resources",
    "UiOptions": "apps",
    **dict.fromkeys(("AsgiOptions", "RunOptions"), "http"),
    **dict.fromkeys(("CommonOptions", "CommonToolOptions", "ToolOptions"), "tools"),
    **dict.fromkeys(("HandlerOptions", "SharedOptions", "ClientOptions", "TokenSourceOptions"), "client"),
}
WIDTH = 88  # of a signature in one line
Function = ast.FunctionDef | ast.AsyncFunctionDef
_COMMENT = re.compile(r"  # (?!type:|noqa|fmt:)(.+)$")
_UNPACKED = re.compile(r"Unpack\[(\w+)\]")
_LATE = re.compile(r"""(: |-> )(["'])(.+?)\2""")  # an annotation in quotes


def pages() -> Iterator[tuple[str, str]]:
    """Their names and texts. Raises ValueError if a public name is on no page, or on two."""
    home = {name: module for module in MODULES for name in import_module(module).__all__}
    shown = [name for page in PAGES.values() for name in page["names"] if "." not in name]
    if wrong := sorted({*shown} ^ {*home}) or sorted({name for name in shown if shown.count(name) > 1}):
        raise ValueError(f"scripts/api_reference.toml must have each public name once: {', '.join(wrong)}")
    for file, page in PAGES.items():
        places = [(home.get(name) or name.rpartition(".")[0], name.rpartition(".")[2]) for name in page["names"]]
        sections = _sections({name: find(module, name) for module, name in places})
        yield file, "\n\n".join([f"# {page['title']}", page["summary"], *sections]) + "\n"


class Definition(NamedTuple):
    module: str
    node: ast.stmt
    lines: Sequence[str]  # of the file


@functools.cache
def _parsed(module: str) -> tuple[ast.Module, list[str]]:
    path = ROOT / "src" / module.replace(".", "/")
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    return ast.parse(text), text.splitlines()


def find(module: str, name: str) -> Definition | None:
    """Where a name is defined that a module defines or imports; None for a name of another package."""
    (tree, lines), (first, _, rest) = _parsed(module), name.partition(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dovetail"):
            for alias in node.names:
                if (alias.asname or alias.name) == first:
                    return find(f"{node.module}.{alias.name}", rest) if rest else find(f"{node.module}", alias.name)
        elif isinstance(node, ast.stmt) and name in _names(node):
            return Definition(module, node, lines)
    return None


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | Function):
        return [node.name]
    return [*map(ast.unparse, node.targets)] if isinstance(node, ast.Assign) else []


def _sections(definitions: dict[str, Definition | None]) -> Iterator[str]:
    """One for each name; then one for each group of keyword arguments that these take."""
    unpacked: dict[str, Definition | None] = {}
    for name, definition in definitions.items():
        assert definition is not None, f"{name} is not defined in the package"
        text = "\n\n".join([f"## {name}", *_parts(name, definition)])
        unpacked |= {each: find(definition.module, each) for each in _UNPACKED.findall(text)}
        yield _UNPACKED.sub(r"\1", text)
    if unpacked:
        yield from _sections(unpacked)


def _parts(name: str, definition: Definition) -> Iterator[str]:
    """The paragraphs of a section."""
    node = definition.node
    if isinstance(node, ast.ClassDef):
        yield from _class(name, node, [*_fields(definition)])
    elif isinstance(node, Function):
        yield from (_signatures(name, [node]), *_prose(node))
    else:
        yield _code(ast.unparse(node))


def _class(name: str, node: ast.ClassDef, fields: Sequence[str]) -> Iterator[str]:
    methods: dict[str, list[Function]] = {}  # each with its overloads
    for each in node.body:
        if isinstance(each, Function):
            methods.setdefault(each.name, []).append(each)
    if bases := {*map(ast.unparse, node.bases)} & {base for page in PAGES.values() for base in page["names"]}:
        yield f"It is a `{bases.pop()}`."
    if "__init__" in methods and not fields and f"{name}(" in _guides():
        yield _signatures(name, methods["__init__"])
    yield from _prose(node)
    if fields:
        yield "\n".join(["| | type | default | |", "| --- | --- | --- | --- |", *fields])
    for method, definitions in methods.items():
        if method[0] != "_" and re.search(rf"\.{method}\b", _guides()):  # others are there for Dovetail itself
            yield from (f"### {name}.{method}", _signatures(method, definitions), *_prose(definitions[-1]))


@functools.cache
def _guides() -> str:
    return "".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))


def _signatures(name: str, definitions: Sequence[Function]) -> str:
    """Of overloads all but the last one, which is there for Python alone."""
    return _code("\n".join(_signature(name, each) for each in definitions[:-1] or definitions))


def _signature(name: str, node: Function) -> str:
    """In one line, or with a line for each parameter."""
    returns = ast.unparse(node.returns) if node.returns and node.name != "__init__" else ""
    if {"property", "cached_property"} & {ast.unparse(mark) for mark in node.decorator_list}:
        return _LATE.sub(r"\1\3", f"{name}: {returns}")
    parameters = [each for each in _split(ast.unparse(node.args)) if each not in ("self", "cls")]
    start, end = "await " * isinstance(node, ast.AsyncFunctionDef) + name, f" -> {returns}" * bool(returns)
    line = f"{start}({', '.join(parameters)}){end}"
    lines = [f"{start}(", *(f"    {each}," for each in parameters), f"){end}"]
    return _LATE.sub(r"\1\3", line if len(line) <= WIDTH else "\n".join(lines))


def _split(parameters: str) -> Iterator[str]:
    """At the commas outside of brackets."""
    depth = start = 0
    for place, character in enumerate(parameters):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and character == ",":
            yield _spaced(parameters[start:place])
            start = place + 2
    if parameters:
        yield _spaced(parameters[start:])


def _spaced(parameter: str) -> str:
    """With blanks around the sign of a default, which `ast.unparse` leaves out."""
    return re.sub(r"^(\w+: [^=]+)=", r"\1 = ", parameter)


def _fields(definition: Definition) -> Iterator[str]:
    """The rows of a record's fields, those of its bases first; none for a class that is no record."""
    module, node = definition.module, definition.node
    bases = [ast.unparse(base).removeprefix("msgspec.") for base in getattr(node, "bases", ())]
    inherited = [row for home in (find(module, base) for base in bases) if home for row in _fields(home)]
    if isinstance(node, ast.ClassDef) and (inherited or RECORDS & {*bases}):
        yield from inherited
        record = find(module, DEFAULTS.get(node.name, node.name))
        described = dict(_annotated(record.node)) if record else {}
        for name, field in _annotated(node):
            told = described.get(name, field)
            comment = _COMMENT.search(definition.lines[(told.end_lineno or 1) - 1])
            about = _in_guide(name, GUIDES.get(node.name)) or (comment[1] if comment else "")
            type_, default = (f"`{text}`" if text else "" for text in (_type(field, module), _default(told)))
            yield "| " + " | ".join(text.replace("|", "\\|") for text in (f"`{name}`", type_, default, about)) + " |"


def _annotated(node: ast.AST) -> Iterator[tuple[str, ast.AnnAssign]]:
    """The public fields of a class, also those in an `if TYPE_CHECKING:`."""
    for each in getattr(node, "body", ()):
        if isinstance(each, ast.If):
            yield from _annotated(each)
        elif isinstance(each, ast.AnnAssign) and not ast.unparse(each.target).startswith("_"):
            yield ast.unparse(each.target), each


def _type(field: ast.AnnAssign, module: str) -> str:
    """With the values of a Literal that has a name."""
    text = _LATE.sub(r"\1\3", f": {ast.unparse(field.annotation)}").removeprefix(": ")
    return re.sub(r"[A-Za-z_.]+", lambda name: _literal(find(module, name[0])) or name[0], text)


def _literal(definition: Definition | None) -> str:
    value = getattr(definition.node, "value", None) if definition else None
    text = ast.unparse(value) if value else ""
    return text if text.startswith("Literal[") else ""


def _default(field: ast.AnnAssign) -> str:
    value = field.value
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "msgspec.field":
        value = next((each.value for each in value.keywords if (each.arg or "").startswith("default")), None)
    return ast.unparse(value) if value else ""


def _in_guide(name: str, page: str | None) -> str:
    """What a guide's table says in the last cell of the row that begins with this name, with links from here."""
    row = rf"^\| [^|]*`{name}(?:=[^`]*)?`.*\| (.*) \|$"
    found = re.search(row, (ROOT / "docs" / f"{page}.md").read_text(), re.MULTILINE) if page else None
    return re.sub(r"\]\((?=\w)(?!https?:)", "](../", found[1]).replace("](#", f"](../{page}.md#") if found else ""


def _prose(node: ast.ClassDef | Function) -> Iterator[str]:
    """The paragraphs of a docstring; those that are Python become code."""
    text = ast.get_docstring(node) or ""
    marked = "\n\n".join(_code(each) if _is_python(each) else each for each in text.split("\n\n"))
    yield from filter(None, [marked.replace("\n```\n\n```python\n", "\n\n")])


def _is_python(paragraph: str) -> bool:
    try:
        return "(" in paragraph and bool(ast.parse(paragraph).body)
    except SyntaxError:
        return False


def _code(text: str) -> str:
    return f"```python\n{text}\n```"
