"""Imports of a peer's modules, rewritten by libcst to those of `dovetail.compat`."""

from collections.abc import Iterator, Mapping

from dovetail.cli.migrate import Unreadable, moved_path
from dovetail.cli.output import USAGE_ERROR, CommandExit

try:
    import libcst as cst
    from libcst import matchers
    from libcst.helpers import get_full_name_for_node_or_raise as full_name
except ImportError:
    raise CommandExit('to rewrite imports needs libcst: pip install "dovetail-mcp[migrate]"', USAGE_ERROR) from None


def rewrite(program: bytes, modules: Mapping[str, str]) -> bytes:
    """The program with its imports rewritten, and nothing else. Raises Unreadable."""

    def moved(node: cst.CSTNode, _: object) -> cst.CSTNode:
        if isinstance(node, cst.Import):
            return node.with_changes(names=[each for alias in node.names for each in _moved(alias, modules)])
        assert isinstance(node, cst.ImportFrom)
        path = None if node.relative or node.module is None else moved_path(full_name(node.module), modules)
        return node if path is None else node.with_changes(module=cst.parse_expression(path))

    try:
        tree = cst.parse_module(program)
        changed = matchers.replace(tree, matchers.Import() | matchers.ImportFrom(), moved)
    except (cst.ParserSyntaxError, RecursionError) as failure:
        raise Unreadable(f"it can't be parsed: {failure}") from None
    assert isinstance(changed, cst.Module)
    if tree.bytes != program:
        raise Unreadable("it was not rewritten: it holds characters, such as a form feed, that would be lost")
    return changed.bytes


def _moved(alias: cst.ImportAlias, modules: Mapping[str, str]) -> Iterator[cst.ImportAlias]:
    """What stands for a module of `import …` and binds the same name: `import mcp.types` binds `mcp`."""
    name = full_name(alias.name)
    bound = name.partition(".")[0]
    path, bound_path = moved_path(name, modules), moved_path(bound, modules)
    if path is None or (alias.asname is None and bound_path is None):
        yield alias
    elif alias.asname is not None:
        yield alias.with_changes(name=cst.parse_expression(path))
    else:
        assert bound_path is not None
        named = cst.AsName(name=cst.Name(bound))
        if name == bound:
            yield alias.with_changes(name=cst.parse_expression(path), asname=named)
        else:
            yield cst.ImportAlias(name=cst.ensure_type(cst.parse_expression(bound_path), cst.Attribute), asname=named)
            yield alias.with_changes(name=cst.parse_expression(path))
