"""`dovetail new`: a folder with a server, its tests and what they need, from the files in `templates/`."""

import re
import shlex
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click

import dovetail
from dovetail import cli
from dovetail.cli.output import DECLINED, CommandExit, can_ask, finish, in_line, out, tell

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
USUAL_NAME = "my-server"
MAX_NAMED = 8  # files that a refusal names
TEMPLATES = Path(__file__).parent / "templates"
LONGEST_LINE = 88  # that ruff allows, unless told otherwise
NEEDED = frozenset({"dovetail", "dovetail-mcp", "pytest", "pytest-asyncio", "ruff", "mypy"})  # by every project

EXAMPLES = """
\b
Examples:
  dovetail new weather --yes
  dovetail new weather --with tool --with resource --transport http --yes
  dovetail new weather --docker --ci github --yes

On a terminal it asks for what is not given; --yes takes what is usual. Nothing is ever overwritten.
"""


class OfferedPart(NamedTuple):
    """One kind of thing that a server offers: what is imported for it, and how to try it out."""

    in_server: tuple[str, ...]
    in_tests: tuple[str, ...]
    trial: str


PARTS = {
    "tool": OfferedPart(
        ("ToolError",), ("ToolError",), 'dovetail call server.py count_words text="to be or not to be"'
    ),
    "resource": OfferedPart(("NotFound",), ("ServerError",), "dovetail read server.py poems://night"),
    "prompt": OfferedPart((), ("Text",), 'dovetail prompt server.py write_poem about="the sea"'),
}


class ProjectPlan(NamedTuple):
    """What a project shall have."""

    name: str  # of the package
    parts: Collection[str] = tuple(PARTS)
    transport: str = "stdio"
    has_docker: bool = False
    has_ci: bool = False

    @property
    def ordered(self) -> list[str]:
        return [part for part in PARTS if part in self.parts]


@click.command("new", epilog=EXAMPLES)
@click.argument("name", required=False)
@click.option(
    "--with", "parts", multiple=True, type=click.Choice(list(PARTS)),
    help="What the server offers at first. Repeat for more.  [default: one of each]",
)  # fmt: skip
@click.option("--transport", type=click.Choice(["stdio", "http"]), help="How it is served.  [default: stdio]")
@click.option("--docker/--no-docker", default=None, help="Add a Dockerfile.  [default: no]")
@click.option(
    "--ci", type=click.Choice(["github", "none"]), help="Add a workflow that runs the tests.  [default: none]"
)
@click.option("--force", is_flag=True, help="Add what is missing to a folder that is not empty.")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing.")
def command(
    name: str | None,
    parts: tuple[str, ...],
    transport: str | None,
    docker: bool | None,
    ci: str | None,
    force: bool,
    yes: bool,
) -> None:
    """Begin a project in the folder NAME: a server with a tool, a resource and a prompt, and its tests."""
    is_asked = can_ask() and not yes
    if name is None and is_asked:
        name = finish(_words(f"What is it called? [{USUAL_NAME}] ")) or USUAL_NAME
    folder = _folder_for(name, force)  # before anything else is asked
    if is_asked:
        transport, docker, ci = finish(_asked(transport, docker, ci))
    plan = ProjectPlan(_name_for(folder), parts or list(PARTS), transport or "stdio", bool(docker), ci == "github")
    _make(folder, files_of(plan))
    _tell_how_to_go_on(folder, plan)


def _folder_for(name: str | None, is_forced: bool) -> Path:
    if not name:
        raise click.UsageError("what is it called? Write `dovetail new weather`")
    folder = Path(name)
    called = _last_name(folder)
    if not NAME.fullmatch(called):
        raise click.UsageError(f"{called!r} can't be its name: use letters, digits, - and _")
    with _failures_of(folder):
        _refuse_if_taken(folder, is_forced)
    return folder


def _last_name(folder: Path) -> str:
    with _failures_of(folder):
        return folder.resolve().name


def _name_for(folder: Path) -> str:
    called = _last_name(folder)
    wanted, free = project_name(called), free_name(called)
    if free != wanted:
        tell(f"there is a package {wanted} already, so the project is called {free}", fg="yellow")
    return free


async def _asked(transport: str | None, docker: bool | None, ci: str | None) -> tuple[str, bool, str]:
    """What is not given yet; Ctrl-D ends it all."""
    while transport not in ("stdio", "http"):
        transport = await _words("How is it served: stdio (started by its host) or http? [stdio] ") or "stdio"
    docker = await _choice("Add a Dockerfile?") if docker is None else docker
    ci = ("github" if await _choice("Add a workflow for GitHub?") else "none") if ci is None else ci
    return transport, docker, ci


async def _words(question: str) -> str:
    given = await cli.ask.ask(question)
    if given is None:
        raise CommandExit("nothing was made", DECLINED)
    return given


async def _choice(question: str) -> bool:
    given = await cli.ask.confirm(question)
    if given is None:
        raise CommandExit("nothing was made", DECLINED)
    return given


@contextmanager
def _failures_of(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise CommandExit(f"{folder} can't be made: {failure.strerror or failure}") from None
    except RuntimeError:  # up to Python 3.12
        raise CommandExit(f"{folder} can't be made: a link in it leads to itself") from None


def _make(folder: Path, files: dict[str, str]) -> None:
    with _failures_of(folder):
        for path, text in files.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                with place.open("x", encoding="utf-8") as file:
                    file.write(text)
            except FileExistsError:
                tell(f"{place} was there already, and is as it was", fg="yellow")
            else:
                out(str(place))


def _refuse_if_taken(folder: Path, is_forced: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise click.UsageError(f"{folder} is a file; choose another name")
    there = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
    if there and not is_forced:
        shown = in_line(", ".join(there[:MAX_NAMED])) + (", …" if len(there) > MAX_NAMED else "")
        raise click.UsageError(f"{folder} is not empty: {shown}. --force adds what is missing, and overwrites nothing")


def _tell_how_to_go_on(folder: Path, plan: ProjectPlan) -> None:
    tell("\nNow:", bold=True)
    for line in (
        f"cd {shlex.quote(str(folder))}",
        *(PARTS[part].trial for part in plan.ordered),
        "dovetail dev server.py",
    ):
        tell(f"  {line}")


# ── its files ──


def files_of(plan: ProjectPlan) -> dict[str, str]:
    """The text of each file, by its path in the project."""
    files = {
        "pyproject.toml": _template("pyproject.toml", NAME=plan.name, VERSION=dovetail.__version__),
        "server.py": _server(plan),
        "tests/test_server.py": _tests(plan),
        "README.md": _readme(plan),
        ".gitignore": _template("gitignore"),
    }
    if plan.has_docker:
        files |= {"Dockerfile": _template("Dockerfile"), ".dockerignore": _template("dockerignore")}
    if plan.has_ci:
        files[".github/workflows/test.yml"] = _template("workflow.yml")
    return files


def _template(name: str, **values: str) -> str:
    text = (TEMPLATES / f"{name}.txt").read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def _server(plan: ProjectPlan) -> str:
    imported = sorted({"Server", *(name for part in plan.ordered for name in PARTS[part].in_server)})
    head = f'"""An MCP server."""\n\nfrom dovetail import {", ".join(imported)}\n\n'
    pieces = [_server_line(plan.name), *(_template(f"server_{part}.py") for part in plan.ordered)]
    run = "server.run()" if plan.transport == "stdio" else 'server.run("http")'
    pieces.append(f'\nif __name__ == "__main__":\n    {run}\n')
    return head + "\n".join(pieces)


def _server_line(name: str) -> str:
    """Broken over lines as ruff does it, if the name is long."""
    arguments = (f'"{name}"', 'version="0.1.0"')
    row = ", ".join(arguments)
    if len(line := f"server = Server({row})") <= LONGEST_LINE:
        return f"{line}\n"
    rows = [row] if len(row) + 4 <= LONGEST_LINE else [f"{argument}," for argument in arguments]
    return "".join(("server = Server(\n", *(f"    {each}\n" for each in rows), ")\n"))


def _tests(plan: ProjectPlan) -> str:
    imported = sorted({"Client", *(name for part in plan.ordered for name in PARTS[part].in_tests)})
    tests = "\n".join(_template(f"test_{part}.py") for part in plan.ordered)
    pytest = "import pytest\n" if "pytest." in tests else ""
    return f"{pytest}from dovetail import {', '.join(imported)}\n\nfrom server import server\n\n{tests}"


def _readme(plan: ProjectPlan) -> str:
    trials = "\n".join(f"$ uv run {PARTS[part].trial}" for part in plan.ordered)
    serve = "$ uv run dovetail run server.py --transport http"
    if plan.has_docker:
        serve += f"\n$ docker build -t {plan.name} . && docker run --rm -p 127.0.0.1:8000:8000 {plan.name}"
    return _template("README.md", NAME=plan.name, TRIALS=trials, SERVE=serve)


# ── its name ──


def project_name(name: str) -> str:
    """As packages are called."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "server"


def free_name(name: str) -> str:
    """The same, or with `-server` behind it if there is such a package: a project can't need itself."""
    free = project_name(name)
    while _is_taken(free):
        free += "-server"
    return free


def _is_taken(name: str) -> bool:
    module = name.replace("-", "_")
    return name in NEEDED or module in sys.stdlib_module_names or _is_installed(name) or _is_importable(module)


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _is_importable(module: str) -> bool:
    """From where packages are installed; a folder that happens to be on the way is none."""
    spec = find_spec(module)
    return spec is not None and "site-packages" in (spec.origin or "")
