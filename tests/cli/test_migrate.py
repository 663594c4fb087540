"""`dovetail migrate`: imports of the peers become those of `dovetail.compat`, nothing else changes, all is told."""

import ast
import inspect
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from peer_examples import PEERS, fetch

import dovetail.auth
import dovetail.authserver
import dovetail.client
from dovetail import OpenApi, Server, cli
from dovetail.cli.files import FileChanged, replace_file
from dovetail.cli.main import main
from dovetail.cli.migrate import MODULES, NAMES, Unreadable
from dovetail.cli.moved_imports import rewrite
from dovetail.engine.options import ServerOptions
from dovetail.registry.prompts import PromptOptions
from dovetail.registry.resources import ResourceOptions
from dovetail.registry.tools import ToolOptions
from dovetail.transports.http.options import RunOptions
from stable_ids import stable

ROOT = Path(__file__).parents[2]


def migrate(*words: "str | Path") -> Result:
    return CliRunner().invoke(main, ["migrate", *map(str, words)])


def report(done: Result) -> list[str]:
    """Its lines, without the path."""
    return [line.partition(".py:")[2] for line in done.stdout.splitlines()]


# ── imports ──


def rewritten(text: str, peer: str) -> str:
    return rewrite(text.encode(), MODULES[peer]).decode()


@pytest.mark.parametrize(
    ("peer", "before", "after"),
    [
        ("fastmcp", "import fastmcp", "import dovetail.compat.fastmcp as fastmcp"),
        ("fastmcp", "import fastmcp as f", "import dovetail.compat.fastmcp as f"),
        ("fastmcp", "import os, fastmcp  # both", "import os, dovetail.compat.fastmcp as fastmcp  # both"),
        ("fastmcp", "import fastmcp , os", "import dovetail.compat.fastmcp as fastmcp , os"),
        ("fastmcp", "import fastmcp.client",
         "import dovetail.compat.fastmcp as fastmcp, dovetail.compat.fastmcp.client"),
        ("fastmcp", "import fastmcp.client as c; x = 1", "import dovetail.compat.fastmcp.client as c; x = 1"),
        ("fastmcp", "from fastmcp import FastMCP", "from dovetail.compat.fastmcp import FastMCP"),
        ("fastmcp", "from fastmcp import *", "from dovetail.compat.fastmcp import *"),
        ("fastmcp", "from fastmcp_tasks import TasksExtension",
         "from dovetail.compat.fastmcp.tasks import TasksExtension"),
        ("fastmcp", "from fastmcp . server import (\n    Context,  # ctx\n    FastMCP as F,\n)",
         "from dovetail.compat.fastmcp.server import (\n    Context,  # ctx\n    FastMCP as F,\n)"),
        ("fastmcp", "from fastmcp import \\\n  Context", "from dovetail.compat.fastmcp import \\\n  Context"),
        ("fastmcp", "from mcp.types import Icon", "from dovetail.compat.mcp.types import Icon"),
        ("fastmcp", "from mcp import McpError", "from mcp import McpError"),  # it needs the SDK still
        ("fastmcp", "import mcp.types", "import mcp.types"),  # `mcp` is the SDK's here
        ("mcp", "from fastmcp import FastMCP", "from fastmcp import FastMCP"),
        ("mcp", "from mcp import types", "from dovetail.compat.mcp import types"),
        ("mcp", "import mcp.types as types", "import dovetail.compat.mcp.types as types"),
        ("mcp", "import mcp.types, mcp.server.stdio",
         "import dovetail.compat.mcp as mcp, dovetail.compat.mcp.types, "
         "dovetail.compat.mcp as mcp, dovetail.compat.mcp.server.stdio"),
        ("mcp", "from mcp.server.mcpserver import MCPServer",
         "from dovetail.compat.mcp.server.mcpserver import MCPServer"),
        ("mcp", "import mcp_types", "import dovetail.compat.mcp.types as mcp_types"),
        ("mcp", "from mcp_types.version import LATEST", "from dovetail.compat.mcp.types.version import LATEST"),
        ("mcp", "from .mcp import a\nfrom . import mcp", "from .mcp import a\nfrom . import mcp"),
        ("mcp", "import mcpx\nfrom mcp_server import a", "import mcpx\nfrom mcp_server import a"),
        ("mcp", "def f():\n\timport mcp", "def f():\n\timport dovetail.compat.mcp as mcp"),
        ("mcp", "if TYPE_CHECKING:\n  from mcp import A\nelse: import mcp",
         "if TYPE_CHECKING:\n  from dovetail.compat.mcp import A\nelse: import dovetail.compat.mcp as mcp"),
        ("mcp", "try:\n    import mcp\nexcept ImportError:\n    mcp = None\n",
         "try:\n    import dovetail.compat.mcp as mcp\nexcept ImportError:\n    mcp = None\n"),
        ("mcp", "# import mcp\nx = 'from mcp import y'", "# import mcp\nx = 'from mcp import y'"),
    ],
    ids=stable,
)  # fmt: skip
def test_an_import_is_rewritten_and_nothing_else(peer: str, before: str, after: str) -> None:
    assert rewritten(before, peer) == after
    assert rewritten(after, peer) == after


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("import mcp", "mcp.MCPServer"),
        ("import mcp.server.mcpserver", "mcp.server.mcpserver.MCPServer"),
        ("import mcp.server.mcpserver as m", "m.MCPServer"),
        ("import mcp.types, mcp.server", "mcp.server.MCPServer"),
        ("from mcp import server", "server.MCPServer"),
        ("from mcp.server import MCPServer as M", "M"),
    ],
)
def test_the_same_name_is_bound(program: str, name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(rewritten(program, "mcp"), namespace)
    assert eval(name, namespace).__name__ == "MCPServer"


MODULE = st.sampled_from(
    [
        "mcp",
        "fastmcp",
        "mcp_types",
        "fastmcp_tasks",
        "mcp.types",
        "fastmcp.server.auth",
        "os",
        "dovetail",
        "mcpx",
        "a.mcp",
    ]
)
NAME = st.from_regex(r"[a-zA-Z_]\w{0,4}", fullmatch=True).filter(
    lambda name: name.isascii() and not name.startswith("__")
)
SPACE = st.sampled_from([" ", "  ", "\t", " \\\n "])
ALIAS = st.tuples(NAME, st.none() | NAME)


@st.composite
def import_statements(draw: st.DrawFn) -> str:
    def alias(name: str, other: str | None) -> str:
        return name if other is None else f"{name}{draw(SPACE)}as{draw(SPACE)}{other}"

    space = draw(SPACE)
    if draw(st.booleans()):
        modules = draw(st.lists(st.tuples(MODULE, st.none() | NAME), min_size=1, max_size=3))
        return f"import{space}" + f",{draw(st.sampled_from(['', ' ']))}".join(alias(*each) for each in modules)
    module = draw(st.sampled_from(["", "", ".", ".."])) + draw(MODULE)
    names = [alias(*each) for each in draw(st.lists(ALIAS, min_size=1, max_size=3))]
    forms = ["*", ", ".join(names), f"({', '.join(names)},)", "(  # why\n  " + ",\n  # and\n".join(names) + "\n)"]
    return f"from{space}{module}{draw(SPACE)}import{draw(SPACE)}{draw(st.sampled_from(forms))}"


@st.composite
def programs(draw: st.DrawFn) -> str:
    heads = ["", "", "if x:\n    ", "try: ", "def f():\n\t", "class C:  # c\n  ", "async def f(): ", "x = 1; "]
    lines = []
    for statement in draw(st.lists(import_statements(), min_size=1, max_size=4)):
        head = draw(st.sampled_from(heads)) if "*" not in statement else ""
        tail = "\nexcept ImportError: pass" if head.startswith("try") else ""
        lines.append(head + statement + draw(st.sampled_from(["", "  # type: ignore", "; y = 'mcp'"])) + tail)
    text = draw(st.sampled_from(["\n", "\n\n\n", "\n# mcp\n"])).join(lines) + draw(st.sampled_from(["", "\n"]))
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


def is_keyword_free(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:  # a name is a keyword
        return False
    return True


def mentions(text: str) -> list[str]:
    """The modules that a program imports, and the names that it binds."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [f"{alias.name} as {alias.asname}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{alias.name} as {alias.asname}" for alias in node.names]
            found.append(f"{'.' * node.level}{node.module} {names}")
    return found


@given(programs().filter(is_keyword_free), st.sampled_from(list(MODULES)))
def test_any_form_of_import_is_rewritten_once(text: str, peer: str) -> None:
    after = rewritten(text, peer)
    assert rewritten(after, peer) == after
    left = [each for each in mentions(after) if re.match(rf"{peer}(_t\w+)?[. ]", each)]
    assert left == []
    others = re.compile(r"(os|dovetail|mcpx|a\.mcp|\.)\S* ")  # what has nothing to do with it
    assert [each for each in mentions(after) if others.match(each) and "compat" not in each] == [
        each for each in mentions(text) if others.match(each)
    ]
    lines = re.compile(r"(^|\s)#.*|'mcp'|\r\n")
    assert [found[0] for found in lines.finditer(after)] == [found[0] for found in lines.finditer(text)]


def example_programs() -> list[tuple[str, Path]]:
    for peer in PEERS:
        fetch(peer)
    return [(peer.name, path) for peer in PEERS for path in sorted(peer.folder.rglob("*.py"))]


def check_example(peer: str, path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    try:
        ast.parse(text)
    except SyntaxError:  # pages show parts of programs
        with pytest.raises(Unreadable):
            rewritten(text, peer)
        return False
    after = rewritten(text, peer)
    ast.parse(after)
    assert rewritten(after, peer) == after, path
    return after != text


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_every_example_of_the_peers_is_rewritten_once() -> None:
    assert sum(check_example(*each) for each in example_programs()) > 2000


# ── the report ──


def test_the_page_shows_what_is_reported_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "commands" / "migrate.md").read_text()
    before, after = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("notes.py").write_text(before)
    done = migrate("notes.py")
    assert (done.exit_code, done.output, Path("notes.py").read_text()) == (1, shown, before)
    done = migrate("notes.py", "--write")
    assert (done.exit_code, Path("notes.py").read_text()) == (1, after)
    assert done.stdout == "".join(shown.splitlines(keepends=True)[:-2])
    again = migrate("notes.py", "--write")
    assert (again.exit_code, Path("notes.py").read_text(), again.stdout) == (1, after, done.stdout)
    assert again.stderr == "no import to rewrite\n2 native, 1 missing\n"


@pytest.mark.parametrize(
    ("program", "code", "lines"),
    [
        ("from mcp.server import MCPServer as M\n", 0,
         ['1: native  MCPServer: from dovetail import Server, as in "The server"']),
        ("from mcp.types import TextContent, Tool\n", 0,
         ["1: compat  Tool: dovetail.compat.mcp.types",
          '1: native  TextContent: from dovetail import Text, as in "Tools"']),
        ("import fastmcp as f\n\n\nf.FastMCP('a')\nf.FastMCP('b')\n", 0,
         ['4: native  FastMCP: from dovetail import Server, as in "The server"']),
        ("import mcp.server.mcpserver\nmcp.server.mcpserver.MCPServer.run\n", 0,
         ['2: native  MCPServer: from dovetail import Server, as in "The server"']),
        ("from mcp import server\ndef f():\n    return server.MCPServer\n", 0,
         ['3: native  MCPServer: from dovetail import Server, as in "The server"']),
        ("from fastmcp import Unheard\n", 1, ['1: missing Unheard; see "From FastMCP", docs/from-fastmcp.md']),
        ("import mcp.types as t\nt.Unheard\n", 1,
         ['2: missing Unheard; see "From the official SDK", docs/from-the-sdk.md']),
        ("import importlib\nimportlib.import_module('fastmcp.server')\n", 1,
         ['2: missing import_module("fastmcp.server"): write dovetail.compat.fastmcp.server by hand']),
        ("import os\nos.http_app('mcp')\n", 0, []),
        ("from .mcp import thing\nthing.get_state()\n", 0, []),
    ],
    ids=stable,
)  # fmt: skip
def test_what_is_told_of_a_program(tmp_path: Path, program: str, code: int, lines: list[str]) -> None:
    (tmp_path / "a.py").write_text(program)
    done = migrate(tmp_path)
    assert (done.exit_code, report(done)) == (code, lines)
    assert migrate(tmp_path, "--write").exit_code == code
    again = migrate(tmp_path)  # what was rewritten is told again, but for what only a person can rewrite
    assert report(again) == lines
    assert again.stderr.startswith("no import to rewrite\n")


def test_one_library_alone(tmp_path: Path) -> None:
    program = tmp_path / "a.py"
    program.write_text("from fastmcp import FastMCP\nfrom mcp import Unheard\n")
    assert migrate(program, "--from", "fastmcp", "--write").exit_code == 0
    assert program.read_text() == "from dovetail.compat.fastmcp import FastMCP\nfrom mcp import Unheard\n"
    done = migrate(program, "--from", "mcp", "--write")
    assert (done.exit_code, [line[:10] for line in report(done)]) == (1, ["2: missing"])
    assert program.read_text().endswith("from dovetail.compat.mcp import Unheard\n")


# ── the table ──


TABLE = tomllib.loads(NAMES.read_text())
ROWS = [(names, spelling, page) for page, rows in TABLE.items() for spelling, names in rows.items()]
TITLES = {path.read_text().partition("\n")[0].removeprefix("# ") for path in (ROOT / "docs").glob("*.md")}
DECORATORS = {name for each in (ToolOptions, ResourceOptions, PromptOptions) for name in each.__annotations__}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_could_be_written_natively_is_there(row: tuple[str, ...]) -> None:
    _, spelling, page = row
    assert page in TITLES
    context = {*dir(dovetail.Context), *inspect.get_annotations(dovetail.Context)}
    checks = {
        r"from ([\w.]+) import (\w+)": lambda module, name: hasattr(sys.modules[module], name),
        r"Server\((\w+)=.*": lambda name: name in ServerOptions.__annotations__,
        r"run\(…, (\w+)=.*": lambda name: name in RunOptions.__annotations__,
        r"(\w+)=.* of a decorator": lambda name: name in DECORATORS,
        r"(?:await )?ctx\.(\w+).*": lambda name: name in context,
        r"server\.(\w+)\(.*": lambda name: hasattr(Server, name),
        r"OpenApi\.(\w+)\(.*": lambda name: hasattr(OpenApi, name),
        r"SignIn\.(\w+)\(.*": lambda name: hasattr(dovetail.authserver.SignIn, name),
        r"(DOVETAIL_\w+)=.*": lambda name: name in (ROOT / "docs" / "observability.md").read_text(),
        r"a parameter `ctx: (Context)`": lambda name: hasattr(dovetail, name),
    }
    verdicts = [check(*found.groups()) for form, check in checks.items() if (found := re.fullmatch(form, spelling))]
    assert verdicts == [True], spelling


# ── files ──


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"import mcp\nprint 'mcp'\n", "1: failed  it can't be parsed: "),
        (b"import mcp\nx = '\xe9'\n", "1: failed  it can't be parsed: "),
        (b"# coding: nonsense\nimport mcp\n", "1: failed  it can't be parsed: "),
        (b"import mcp\nx = '\0'\n", "1: failed  it can't be parsed: "),
        (b"import mcp\nx = " + b"-" * 20_000 + b"1\n", "1: failed  it can't be parsed: "),
        (b"\x0cimport mcp\n", "1: failed  it was not rewritten: it holds characters, such as a form feed"),
    ],
    ids=["Python 2", "no UTF-8", "unknown encoding", "null", "deep", "form feed"],
)
def test_a_file_that_cannot_be_rewritten_is_left_alone_and_the_others_go_on(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "a.py").write_bytes(content)
    (tmp_path / "b.py").write_text("from mcp import MCPServer\n")
    done = migrate(tmp_path, "--write")
    assert done.exit_code == 1
    assert report(done)[0].startswith(message)
    assert (tmp_path / "a.py").read_bytes() == content
    assert (tmp_path / "b.py").read_text() == "from dovetail.compat.mcp import MCPServer\n"


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfimport mcp as m\n",
        "# -*- coding: latin-1 -*-\nimport mcp as m\nx = 'é'\n".encode("latin-1"),
        b"import mcp as m\r\nx = 1\r\n",
        b"import mcp as m\rx = 1",
        "import mcp as m; größe = '\N{LINE SEPARATOR}'".encode(),
        b"import mcp as m\n\n\x0c\nclass C:\n\t'''d'''\n    \n",
    ],
    ids=["mark", "latin-1", "CRLF", "CR", "no end", "blanks"],
)
def test_a_file_keeps_its_encoding_its_ends_of_line_and_its_mode(tmp_path: Path, content: bytes) -> None:
    program = tmp_path / "a.py"
    program.write_bytes(content)
    program.chmod(0o640)
    assert migrate(program, "--write").exit_code == 0
    assert program.read_bytes() == content.replace(b"import mcp", b"import dovetail.compat.mcp")
    assert program.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["a.py"]


def test_a_folder_that_cannot_be_listed_is_reported_and_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("import mcp\n")
    (tmp_path / "b").mkdir()
    listed = Path.iterdir

    def refused(path: Path) -> Any:
        if path.name == "b":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    done = migrate(tmp_path, "--write")
    assert (done.exit_code, done.stderr) == (1, f"Error: {tmp_path / 'b'} can't be read: Permission denied\n")
    assert (tmp_path / "a.py").read_text() == "import mcp\n"


def test_a_file_that_another_program_writes_meanwhile_is_left_alone(tmp_path: Path) -> None:
    program = tmp_path / "a.py"
    program.write_text("theirs")
    with pytest.raises(FileChanged, match="by another program meanwhile"):
        replace_file(program, b"mine", b"as it was")
    assert (program.read_text(), [each.name for each in tmp_path.iterdir()]) == ("theirs", ["a.py"])


def test_links_hidden_folders_and_environments_are_left_alone_but_a_link_that_is_named(tmp_path: Path) -> None:
    text = "import mcp\n"
    skipped = [".hidden/a.py", "env/lib/a.py", "node_modules/a.py", "x/site-packages/a.py", "outside.py", "a.txt"]
    tree = tmp_path / "tree"
    for name in ("outside.py", "tree/b.py", "tree/sub/c.py", *(f"tree/{name}" for name in skipped[:4]), "tree/a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tree / "env" / "pyvenv.cfg").touch()
    (tree / "link.py").symlink_to(tmp_path / "outside.py")
    (tree / "loop").symlink_to(tree)
    (tree / "dead.py").symlink_to("nowhere")
    done = migrate(tree, "--write")
    assert (done.exit_code, done.stderr.splitlines()[0]) == (0, "2 imports in 2 files rewritten")
    changed = {path.name for path in tmp_path.rglob("*.py") if path.is_file() and path.read_text() != text}
    assert changed == {"b.py", "c.py"}
    assert migrate(tree / "link.py", "--write").exit_code == 0
    assert (tree / "link.py").is_symlink()
    assert (tmp_path / "outside.py").read_text() == "import dovetail.compat.mcp as mcp\n"


def test_a_large_tree_with_few_programs(tmp_path: Path) -> None:
    for number in range(60):
        folder = tmp_path / f"f{number}"
        folder.mkdir()
        for name in range(20):
            (folder / f"m{name}.py").write_text("x = 1\n")
    (tmp_path / "f7" / "m3.py").write_text("import mcp\n")
    done = migrate(tmp_path, "--write")
    assert (done.exit_code, done.stderr) == (0, "1 imports in 1 files rewritten\nnothing more to do\n")


@pytest.mark.parametrize("words", [(), ("nowhere",), (".", "--from", "django")], ids=str)
def test_a_wrong_command_line(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert migrate(*words).exit_code == 2


def test_without_libcst_it_reports_and_says_how_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "a.py"
    program.write_text("import mcp\n")
    monkeypatch.setitem(sys.modules, "libcst", None)
    monkeypatch.delitem(sys.modules, "dovetail.cli.moved_imports")
    monkeypatch.delattr(cli, "moved_imports")
    assert migrate(program).exit_code == 0
    done = migrate(program, "--write")
    assert (done.exit_code, 'pip install "dovetail-mcp[migrate]"' in done.stderr) == (2, True)
    assert program.read_text() == "import mcp\n"
