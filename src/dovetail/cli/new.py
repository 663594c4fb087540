"""`dovetail new`: a folder with a server, its tests and what they need, from the files in `templates/`."""

import re
import shlex
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

import click

import dovetail
from dovetail.cli.output import CommandExit, err, one_line, out

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")  # so that no line of the project is too long
TEMPLATES = Path(__file__).parent / "templates"
NEEDED = frozenset({"dovetail", "dovetail-mcp", "pytest", "pytest-asyncio", "ruff", "mypy"})  # by every project

EXAMPLES = """
\b
Examples:
  dovetail new weather
  dovetail new weather --with tool --with resource --transport http
  dovetail new weather --docker --ci github

Nothing is ever overwritten.
"""


class Feature(NamedTuple):
    """One kind of thing that a server offers: what is imported for it, and how to try it out."""

    in_server: tuple[str, ...]
    in_tests: tuple[str, ...]
    trial: str


FEATURES = {
    "tool": Feature(("ToolError",), ("ToolError",), 'dovetail call server.py count_words text="to be or not to be"'),
    "resource": Feature(("NotFound",), ("ServerError",), "dovetail read server.py poems://night"),
    "prompt": Feature((), ("Text",), 'dovetail prompt server.py write_poem about="the sea"'),
}


class ProjectPlan(NamedTuple):
    """What a project shall have."""

    name: str  # of the package
    parts: Collection[str] = tuple(FEATURES)
    transport: str = "stdio"
    has_docker: bool = False
    has_ci: bool = False

    @property
    def ordered(self) -> list[str]:
        return [part for part in FEATURES if part in self.parts]

    @property
    def trials(self) -> list[str]:
        """How to try what is offered."""
        return [FEATURES[part].trial for part in self.ordered]


@click.command("new", epilog=EXAMPLES)
@click.argument("name")
@click.option(
    "--with", "parts", multiple=True, type=click.Choice(list(FEATURES)),
    help="What the server offers at first. Repeat for more.  [default: one of each]",
)  # fmt: skip
@click.option("--transport", type=click.Choice(["stdio", "http"]), default="stdio", help="How it is served.")
@click.option("--docker/--no-docker", help="Add a Dockerfile.  [default: no]")
@click.option("--ci", type=click.Choice(["github", "none"]), default="none", help="Add a workflow that runs the tests.")
@click.option("--force", is_flag=True, help="Add what is missing to a folder that is not empty.")
@click.option("--yes", "-y", is_flag=True, hidden=True, help="Nothing is asked.")
def command(
    name: str, parts: tuple[str, ...], transport: str, docker: bool, ci: str, force: bool, **_ignored: bool
) -> None:
    """Begin a project in the folder NAME: a server with a tool, a resource and a prompt, and its tests."""
    folder = _folder_for(name, force)
    wanted = project_name(folder.resolve().name)
    free = available_name(wanted)
    if free != wanted:
        err(f"there is a package {wanted} already, so the project is called {free}", fg="yellow")
    plan = ProjectPlan(free, parts or list(FEATURES), transport, docker, ci == "github")
    _make(folder, project_files(plan))
    err("\nNow:", bold=True)
    for line in (f"cd {shlex.quote(str(folder))}", *plan.trials, "dovetail dev server.py"):
        err(f"  {line}")


def _folder_for(name: str, is_forced: bool) -> Path:
    folder = Path(name)
    with _failures_of(folder):
        called = folder.resolve().name
        if not NAME.fullmatch(called):
            raise click.UsageError(f"{called!r} can't be its name: use up to 40 letters, digits, - and _")
        if folder.exists() and not folder.is_dir():
            raise click.UsageError(f"{folder} is a file; choose another name")
        there = sorted({each.name for each in folder.iterdir()} - {"__pycache__"}) if folder.is_dir() else []
    if there and not is_forced:
        shown = one_line(", ".join(there), 100)
        raise click.UsageError(f"{folder} is not empty: {shown}. --force adds what is missing, and overwrites nothing")
    return folder


@contextmanager
def _failures_of(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as failure:  # of a link that leads to itself, RuntimeError up to Python 3.12
        raise CommandExit(f"{folder} can't be made: {getattr(failure, 'strerror', None) or failure}") from None


def _make(folder: Path, files: dict[str, str]) -> None:
    with _failures_of(folder):
        for path, text in files.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                with place.open("x", encoding="utf-8") as file:
                    file.write(text)
            except FileExistsError:
                err(f"{place} was there already, and is as it was", fg="yellow")
            else:
                out(str(place))


# ── its files ──


def project_files(plan: ProjectPlan) -> dict[str, str]:
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
    imported = sorted({"Server", *(name for part in plan.ordered for name in FEATURES[part].in_server)})
    head = f'"""An MCP server."""\n\nfrom dovetail import {", ".join(imported)}\n\n'
    pieces = [
        f'server = Server("{plan.name}", version="0.1.0")\n',
        *(_template(f"server_{part}.py") for part in plan.ordered),
    ]
    run = "server.run()" if plan.transport == "stdio" else 'server.run("http")'
    pieces.append(f'\nif __name__ == "__main__":\n    {run}\n')
    return head + "\n".join(pieces)


def _tests(plan: ProjectPlan) -> str:
    imported = sorted({"Client", *(name for part in plan.ordered for name in FEATURES[part].in_tests)})
    tests = "\n".join(_template(f"test_{part}.py") for part in plan.ordered)
    pytest = "import pytest\n" if "pytest." in tests else ""
    return f"{pytest}from dovetail import {', '.join(imported)}\n\nfrom server import server\n\n{tests}"


def _readme(plan: ProjectPlan) -> str:
    trials = "\n".join(f"$ uv run {trial}" for trial in plan.trials)
    serve = "$ uv run dovetail run server.py --transport http"
    if plan.has_docker:
        serve += f"\n$ docker build -t {plan.name} . && docker run --rm -p 127.0.0.1:8000:8000 {plan.name}"
    return _template("README.md", NAME=plan.name, TRIALS=trials, SERVE=serve)


# ── its name ──


def project_name(name: str) -> str:
    """As packages are called."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "server"


def available_name(name: str) -> str:
    """The same, or with `-server` behind it if there is such a package: a project can't need itself."""
    return f"{name}-server" if _is_taken(name) else name


def _is_taken(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return name in NEEDED or name.replace("-", "_") in sys.stdlib_module_names
    return True
