"""The reference of the public names, as Markdown: from signatures, docstrings, and the comments beside fields.

Nothing of it is committed: scripts/docs_site.py puts the pages into the site. api_reference.toml says
which names each page has; a public name that is on none is an error, and so is one that is on two. All public
methods of a class are shown, but for those that api_reference.toml calls internal.
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
INTERNAL = {*PAGES.pop("internal")["names"]}  # a class stands for its constructor
MODULES = ("dovetail", "dovetail.auth", "dovetail.authserver", "dovetail.client", "dovetail.client.oauth")
RECORDS = {"Struct", "TypedDict", "NamedTuple"}  # bases of classes whose fields are their parameters
DEFAULTS = {"ServerOptions": "Options", "AsgiOptions": "HttpOptions", "RunOptions": "HttpOptions"}  # who has them
GUIDES = {  # the page whose tables describe these options; others have a comment in the source
    "ServerOptions": "server",
    **dict.fromkeys(("ResourceOptions", "UiOptions"), "resources"),
    **dict.fromkeys(("AsgiOptions", "RunOptions"), "http"),
    **dict.fromkeys(("CommonOptions", "CommonToolOptions", "ToolOptions"), "tools"),
    "PromptOptions": "prompts",
    **dict.fromkeys(("HandlerOptions", "SharedOptions", "ClientOptions"), "client"),
    **dict.fromkeys(("CallOptions", "TokenSourceOptions"), "client"),
}
WIDTH = 88  # of a signature in one line
MAX_ALIAS = 60  # characters of a type that stands in the place of its alias; longer ones are listed below
Function = ast.FunctionDef | ast.AsyncFunctionDef
_COMMENT = re.compile(r"  # (?!type:|noqa|fmt:)(.+)$")
_UNPACKED = re.compile(r"Unpack\[(\w+)\]")
_NAME = re.compile(r"(?<![\w'\"])(?:[a-z_]+\.)?[A-Z]\w*")  # of a type or a constant, perhaps with its module
_TYPED = re.compile(r"^```python\n.*?^```|^\| `\w+` \| `[^`]*`", re.MULTILINE | re.DOTALL)  # signatures, and cells
_CORO = re.compile(r"^Coro\[(.+)\]$")
_LATE = re.compile(r"""(: |-> )(["'])(.+?)\2""")  # an annotation in quotes


def pages() -> Iterator[tuple[str, str]]:
    """Their names and texts. Raises ValueError if a public name is on no page, or on two."""
    home = {name: module for module in MODULES for name in import_module(module).__all__}
    seen: set[str] = set()
    shown = [name for page in PAGES.values() for name in page["names"] if "." not in name]
    if wrong := sorted({*shown} ^ {*home}) or sorted({name for name in shown if shown.count(name) > 1}):
        raise ValueError(f"scripts/api_reference.toml must have each public name once: {', '.join(wrong)}")
    for file, page in PAGES.items():
        places = [(home.get(name) or name.rpartition(".")[0], name.rpartition(".")[2]) for name in page["names"]]
        sections = _sections({name: find(module, name) for module, name in places}, seen)
        text = "\n\n".join([f"# {page['title']}", page["summary"], *sections])
        yield file, "\n\n".join([text, *_types(text)]) + "\n"
    if stale := sorted(INTERNAL - seen):
        raise ValueError(f"scripts/api_reference.toml has internal names that are not there: {', '.join(stale)}")


class Definition(NamedTuple):
    module: str
    node: ast.stmt
    lines: Sequence[str]  # of the file


_aliases: dict[str, Definition] = {}  # of long types, by their names; filled while signatures are written


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


def _sections(definitions: dict[str, Definition | None], seen: set[str]) -> Iterator[str]:
    """One for each name; then one for each group of keyword arguments that these take."""
    unpacked: dict[str, Definition | None] = {}
    for name, definition in definitions.items():
        assert definition is not None, f"{name} is not defined in the package"
        text = "\n\n".join([f"## {name}", *_parts(name, definition, seen)])
        unpacked |= {each: find(definition.module, each) for each in _UNPACKED.findall(text)}
        yield _UNPACKED.sub(r"\1", text)
    if unpacked:
        yield from _sections(unpacked, seen)


def _types(text: str) -> Iterator[str]:
    """A section with the types that are too long for signatures and tables, which have their names."""
    wanted = [name for code in _TYPED.findall(text) for name in _NAME.findall(code)]
    found = {}
    for name in wanted:  # it grows
        if name in _aliases and name not in found:
            found[name] = _plain(_value(_aliases[name]), _aliases[name].module)
            wanted += _NAME.findall(found[name])
    if found:
        yield "## Types\n\n" + _code("\n".join(f"{name} = {found[name]}" for name in sorted(found)))


def _parts(name: str, definition: Definition, seen: set[str]) -> Iterator[str]:
    """The paragraphs of a section."""
    node = definition.node
    if isinstance(node, ast.ClassDef):
        yield from _class(name, definition, seen)
    elif isinstance(node, Function):
        yield from (_signatures(name, [node], definition.module), *_prose(node))
    else:
        yield _code(ast.unparse(node))


def _class(name: str, definition: Definition, seen: set[str]) -> Iterator[str]:
    node, fields = definition.node, [*_fields(definition)]
    assert isinstance(node, ast.ClassDef)
    methods = _methods(node)
    seen |= {name, *(f"{name}.{method}" for method in methods)}
    if bases := {*map(ast.unparse, node.bases)} & {base for page in PAGES.values() for base in page["names"]}:
        yield f"It is a `{bases.pop()}`."
    if not fields and name not in INTERNAL and (constructors := _constructors(definition)):
        yield _signatures(name, constructors, definition.module)
    yield from _prose(node)
    if fields:
        yield _table(fields)
    for method, definitions in methods.items():
        if method[0] != "_" and f"{name}.{method}" not in INTERNAL:
            signatures = _signatures(method, definitions, definition.module)
            yield from (f"### {name}.{method}", signatures, *_prose(definitions[-1]))


def _methods(node: ast.AST) -> dict[str, list[Function]]:
    """Each with its overloads."""
    found: dict[str, list[Function]] = {}
    for each in getattr(node, "body", ()):
        if isinstance(each, Function):
            found.setdefault(each.name, []).append(each)
    return found


def _constructors(definition: Definition) -> list[Function]:
    """Its own, or that of a base which is not public."""
    bases = [base for base in map(ast.unparse, getattr(definition.node, "bases", ())) if base.startswith("_")]
    inherited = [_constructors(home) for base in bases if (home := find(definition.module, base))]
    return next(filter(None, [_methods(definition.node).get("__init__", []), *inherited]), [])


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Without the column of defaults if there are none."""
    columns = [0, 1, 2, 3] if any(row[2] for row in rows) else [0, 1, 3]
    lines = [("", "type", "default", ""), ("---",) * 4, *rows]
    return "\n".join("| " + " | ".join(line[column] for column in columns) + " |" for line in lines)


def _signatures(name: str, definitions: Sequence[Function], module: str) -> str:
    """Of overloads all but the last one, which is there for Python alone, and those with types that are private."""
    texts = [_signature(name, each, module) for each in definitions[:-1] or definitions]
    code = _code("\n".join(text for text in texts if len(texts) == 1 or not re.search(r"\b_[A-Z]", text)))
    links = [f"[{each}](#{each.lower()})" for each in dict.fromkeys(_UNPACKED.findall(code))]
    return "\n\n".join([code, *(f"Options: {link}" for link in links)])


def _signature(name: str, node: Function, module: str) -> str:
    """In one line, or with a line for each parameter."""
    returns = _plain(ast.unparse(node.returns), module) if node.returns and node.name != "__init__" else ""
    marks = {ast.unparse(mark) for mark in node.decorator_list}
    if {"property", "cached_property"} & marks:
        return f"{name}: {returns}"
    is_awaited = isinstance(node, ast.AsyncFunctionDef) or _CORO.search(returns) is not None
    if "asynccontextmanager" in marks:
        is_awaited, returns = False, returns.replace("AsyncIterator", "AbstractAsyncContextManager", 1)
    parameters = [_plain(each, module) for each in _split(ast.unparse(node.args))]
    parameters = [each for each in parameters if each not in ("self", "cls") and not each.startswith("self: ")]
    returned = _CORO.sub(r"\1", returns)
    start, end = "await " * is_awaited + name, f" -> {returned}" * bool(returned)
    line = f"{start}({', '.join(parameters)}){end}"
    return line if len(line) <= WIDTH else "\n".join([f"{start}(", *(f"    {each}," for each in parameters), f"){end}"])


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


def _fields(definition: Definition) -> Iterator[tuple[str, ...]]:
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
            usual, about = _in_guide(name, GUIDES.get(node.name))
            type_, default = _plain(ast.unparse(field.annotation), module), _default(told, module) or usual
            about = about or (comment[1] if comment else "")
            cells = (f"`{name}`", f"`{type_}`", f"`{default}`" if default else "", about)
            yield tuple(text.replace("|", "\\|") for text in cells)


def _annotated(node: ast.AST) -> Iterator[tuple[str, ast.AnnAssign]]:
    """The public fields of a class, also those in an `if TYPE_CHECKING:`."""
    for each in getattr(node, "body", ()):
        if isinstance(each, ast.If):
            yield from _annotated(each)
        elif isinstance(each, ast.AnnAssign) and not re.match(r"_|\w+: ClassVar", ast.unparse(each)):
            yield ast.unparse(each.target), each


def _plain(text: str, module: str) -> str:
    """As a reader wants it: names without modules, the values of constants, and short types in place of their names."""
    text = _LATE.sub(r"\1\3", f": {text}").removeprefix(": ")
    return _NAME.sub(lambda name: _written_out(name[0], module), text)


def _written_out(name: str, module: str) -> str:
    definition = find(module, name)
    if definition is None:
        return name
    value, own = _value(definition), name.rpartition(".")[2]
    if not value or len(value) > MAX_ALIAS:
        if value and _aliases.setdefault(own, definition) != definition:
            raise ValueError(f"{own} of {definition.module} is another type in {_aliases[own].module}")
        return own
    return _plain(value, definition.module)


def _value(definition: Definition) -> str:
    """Of a constant, or of a name for a type; empty for classes and type variables."""
    value = getattr(definition.node, "value", None)
    return "" if value is None or isinstance(value, ast.Call) else ast.unparse(value)


def _default(field: ast.AnnAssign, module: str) -> str:
    value = field.value
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "msgspec.field":
        value = next((each.value for each in value.keywords if (each.arg or "").startswith("default")), None)
    return _plain(ast.unparse(value), module) if value else ""


def _in_guide(name: str, page: str | None) -> tuple[str, str]:
    """What a guide's table has in the row of this name: its default, if a number, and the last cell with its links."""
    row = rf"^\| [^|]*`{name}(?:=(\d+)?[^`]*)?`.*\| (.*) \|$(?!\n\| ---)"
    found = re.search(row, (ROOT / "docs" / f"{page}.md").read_text(), re.MULTILINE) if page else None
    if found is None:
        return "", ""
    text = re.sub(r"\]\((?=\w)(?!https?:)", "](../", found[2]).replace("](#", f"](../{page}.md#")
    text = re.sub(r"\bsee (?:above|below)\b", f"see [{page}](../{page}.md)", text).replace("[below]", "[there]")
    return found[1] or "", text


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
