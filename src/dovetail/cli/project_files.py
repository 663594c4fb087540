"""The files of a new project: what it shall have comes in, their paths and texts go out."""

from collections.abc import Collection
from typing import NamedTuple

import dovetail

PARTS = ("tool", "resource", "prompt")
PYTHON = "3.13"  # of the container
LONGEST_LINE = 88  # that ruff allows, unless told otherwise


class ProjectPlan(NamedTuple):
    """What a project shall have."""

    name: str  # of the package
    parts: Collection[str] = PARTS
    transport: str = "stdio"
    has_docker: bool = False
    has_ci: bool = False


class _Piece(NamedTuple):
    """One kind of thing that a server offers, the test of it, and how to try it out."""

    code: str
    test: str
    trial: str


PIECES = {
    "tool": _Piece(
        code='''
@server.tool(annotations={"readOnlyHint": True})
def count_words(text: str, longer_than: int = 0) -> int:
    """Count the words of a text.

    Args:
        text: What to count in.
        longer_than: Leave out words that have no more letters than this.
    """
    if longer_than < 0:
        raise ToolError("longer_than must be 0 or more")
    return sum(len(word) > longer_than for word in text.split())
''',
        test="""
async def test_words_are_counted() -> None:
    async with Client(server) as client:
        arguments = {"text": "to be or not to be", "longer_than": 2}
        assert (await client.call_tool("count_words", arguments)).data == 1


async def test_a_wrong_length_is_explained() -> None:
    async with Client(server) as client:
        with pytest.raises(ToolError, match="0 or more"):
            await client.call_tool("count_words", {"text": "be", "longer_than": -1})
""",
        trial='dovetail call server.py count_words text="to be or not to be"',
    ),
    "resource": _Piece(
        code='''
POEMS = {"night": "The night is young, the moon is old."}


@server.resource("poems://{name}", mime_type="text/plain")
def poem(name: str) -> str:
    """A poem of the collection."""
    if name not in POEMS:
        raise NotFound(f"There is no poem {name}")
    return POEMS[name]
''',
        test="""
async def test_a_poem_is_read() -> None:
    async with Client(server) as client:
        (contents,) = await client.read_resource("poems://night")
        assert contents.text == "The night is young, the moon is old."


async def test_a_poem_that_is_not_there() -> None:
    async with Client(server) as client:
        with pytest.raises(ServerError, match="no poem day"):
            await client.read_resource("poems://day")
""",
        trial="dovetail read server.py poems://night",
    ),
    "prompt": _Piece(
        code='''
@server.prompt
def write_poem(about: str, lines: int = 4) -> str:
    """Ask for a poem.

    Args:
        about: What it is about.
        lines: How long it is.
    """
    return f"Write a poem of {lines} lines about {about}."
''',
        test="""
async def test_the_prompt_asks_for_a_poem() -> None:
    async with Client(server) as client:
        result = await client.get_prompt("write_poem", {"about": "the sea"})
        (message,) = result.messages
        assert message.content == Text("Write a poem of 4 lines about the sea.")
""",
        trial='dovetail prompt server.py write_poem about="the sea"',
    ),
}
IN_SERVER = {"tool": ("ToolError",), "resource": ("NotFound",), "prompt": ()}  # what is imported for each
IN_TESTS = {"tool": ("ToolError",), "resource": ("ServerError",), "prompt": ("Text",)}

PROJECT = f"""\
[project]
name = "@NAME@"
version = "0.1.0"
description = "An MCP server."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["dovetail-mcp>={dovetail.__version__}"]

[dependency-groups]
dev = ["dovetail-mcp[client,watch]", "mypy>=1.17", "pytest>=8", "pytest-asyncio>=1", "ruff>=0.12"]

[tool.uv]
package = false

[tool.pytest.ini_options]
asyncio_mode = "auto"
asyncio_default_fixture_loop_scope = "function"
pythonpath = ["."]
testpaths = ["tests"]

[tool.ruff.lint]
select = ["E", "F", "W", "I", "B", "UP"]

[tool.mypy]
strict = true
"""
README = """\
# @NAME@

An MCP server, made with Dovetail. The code is in `server.py`.

```console
$ uv sync
$ uv run pytest
$ uv run dovetail dev server.py          # serve it while you work on it, with a console in the browser
```

Without uv: `pip install "dovetail-mcp[client,watch]" pytest pytest-asyncio ruff mypy`, and leave out `uv run`.

## Try it

```console
@TRIALS@
```

## Check it

```console
$ uv run ruff check
$ uv run mypy .
$ uv run dovetail lint server.py         # what clients would stumble over
```

## Use it

```console
$ uv run dovetail install server.py --host claude-desktop
@SERVE@
```
"""
IGNORED = """\
__pycache__/
*.py[cod]
.mypy_cache/
.pytest_cache/
.ruff_cache/
.venv/
.env
dist/
"""
DOCKER = f"""\
FROM python:{PYTHON}-slim
COPY --from=ghcr.io/astral-sh/uv:latest /uv /bin/
RUN useradd --system --create-home app
WORKDIR /app
COPY pyproject.toml uv.lock* ./
RUN uv sync --no-dev --no-cache
COPY server.py ./
USER app
# Set DOVETAIL_ALLOWED_HOSTS to the names under which clients reach it, as in mcp.example.com
ENV PATH=/app/.venv/bin:$PATH DOVETAIL_TRANSPORT=http DOVETAIL_HOST=0.0.0.0 DOVETAIL_PORT=8000
EXPOSE 8000
CMD ["dovetail", "run", "server.py"]
"""
DOCKER_IGNORED = """\
*
!pyproject.toml
!server.py
!uv.lock
"""
CI = """\
name: test
on: [push, pull_request]
permissions:
  contents: read
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: astral-sh/setup-uv@v6
      - run: uv run ruff check
      - run: uv run ruff format --check
      - run: uv run mypy .
      - run: uv run pytest
      - run: uv run dovetail lint server.py --fail-on warning
"""


def files_of(plan: ProjectPlan) -> dict[str, str]:
    """The text of each file, by its path in the project."""
    files = {
        "pyproject.toml": PROJECT.replace("@NAME@", plan.name),
        "server.py": _server(plan),
        "tests/test_server.py": _tests(plan),
        "README.md": _readme(plan),
        ".gitignore": IGNORED,
    }
    if plan.has_docker:
        files |= {"Dockerfile": DOCKER, ".dockerignore": DOCKER_IGNORED}
    if plan.has_ci:
        files[".github/workflows/test.yml"] = CI
    return files


def _server(plan: ProjectPlan) -> str:
    imported = sorted({"Server", *(name for part in _ordered(plan) for name in IN_SERVER[part])})
    head = f'"""An MCP server."""\n\nfrom dovetail import {", ".join(imported)}\n\n'
    pieces = [_making(plan.name)]
    pieces += [PIECES[part].code for part in _ordered(plan)]
    run = "server.run()" if plan.transport == "stdio" else 'server.run("http")'
    pieces.append(f'\nif __name__ == "__main__":\n    {run}\n')
    return head + "\n".join(pieces)


def _making(name: str) -> str:
    """Broken over lines as ruff does it, if the name is long."""
    arguments = (f'"{name}"', 'version="0.1.0"')
    row = ", ".join(arguments)
    if len(line := f"server = Server({row})") <= LONGEST_LINE:
        return f"{line}\n"
    rows = [row] if len(row) + 4 <= LONGEST_LINE else [f"{argument}," for argument in arguments]
    return "".join(("server = Server(\n", *(f"    {each}\n" for each in rows), ")\n"))


def _tests(plan: ProjectPlan) -> str:
    imported = sorted({"Client", *(name for part in _ordered(plan) for name in IN_TESTS[part])})
    tests = "\n".join(PIECES[part].test for part in _ordered(plan))
    pytest = "import pytest\n" if "pytest." in tests else ""
    return f"{pytest}from dovetail import {', '.join(imported)}\n\nfrom server import server\n\n{tests}"


def _readme(plan: ProjectPlan) -> str:
    trials = "\n".join(f"$ uv run {PIECES[part].trial}" for part in _ordered(plan))
    serve = "$ uv run dovetail run server.py --transport http"
    if plan.has_docker:
        serve += f"\n$ docker build -t {plan.name} . && docker run --rm -p 127.0.0.1:8000:8000 {plan.name}"
    return README.replace("@NAME@", plan.name).replace("@TRIALS@", trials).replace("@SERVE@", serve)


def _ordered(plan: ProjectPlan) -> list[str]:
    return [part for part in PARTS if part in plan.parts]
