"""`dovetail new`: creates a project with a server and its tests from the files in `templates/`."""

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
UNRELATED = {"__pycache__", ".git", ".venv"}  # what may lie in a folder that counts as empty
DEPENDENCIES = frozenset({"dovetail", "dovetail-mcp", "pytest", "pytest-asyncio", "ruff", "mypy"})

EXAMPLES = """
\b
Examples:
  dovetail new weather
  dovetail new weather --with tool --with resource --transport http
  dovetail new weather --docker --ci github

Nothing is ever overwritten.
"""


class Feature(NamedTuple):
    """One kind of definition: imports of the server and of the tests for it, and a command that tries it."""

    server_imports: tuple[str, ...]
    test_imports: tuple[str, ...]
    example: str


FEATURES = {
    "tool": Feature(("ToolError",), ("ToolError",), 'dovetail call server.py count_words text="to be or not to be"'),
    "resource": Feature(("NotFound",), ("ServerError",), "dovetail read server.py poems://night"),
    "prompt": Feature((), ("Text",), 'dovetail prompt server.py write_poem about="the sea"'),
}


class ProjectPlan(NamedTuple):
    """What a new project contains."""

    name: str  # of the package
    features: Collection[str] = tuple(FEATURES)
    transport: str = "stdio"
    has_docker: bool = False
    has_ci: bool = False

    @property
    def ordered(self) -> list[str]:
        return [feature for feature in FEATURES if feature in self.features]

    @property
    def examples(self) -> list[str]:
        return [FEATURES[feature].example for feature in self.ordered]


@click.command("new", epilog=EXAMPLES)
@click.argument("name")
@click.option(
    "--with", "features", multiple=True, type=click.Choice(list(FEATURES)),
    help="What the server offers at first. Repeat for more.  [default: one of each]",
)  # fmt: skip
@click.option("--transport", type=click.Choice(["stdio", "http"]), default="stdio", help="How it is served.")
@click.option("--docker/--no-docker", help="Add a Dockerfile.  [default: no]")
@click.option("--ci", type=click.Choice(["github", "none"]), default="none", help="Add a workflow that runs the tests.")
@click.option("--force", is_flag=True, help="Add what is missing to a folder that is not empty.")
@click.option("--yes", "-y", is_flag=True, hidden=True, help="Nothing is asked.")
def command(
    name: str, features: tuple[str, ...], transport: str, docker: bool, ci: str, force: bool, **_ignored: bool
) -> None:
    """Begin a project in the folder NAME: a server with a tool, a resource and a prompt, and its tests."""
    folder = _folder_for(name, force)
    wanted = available = project_name(folder.resolve().name)
    if _is_taken(wanted):  # a project can't depend on itself
        available = f"{wanted}-server"
        err(f"there is a package {wanted} already, so the project is called {available}", fg="yellow")
    plan = ProjectPlan(available, features or list(FEATURES), transport, docker, ci == "github")
    if "server.py" not in _write_files(folder, project_files(plan)):
        return
    go_there = [] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]
    err("\nNow:", bold=True)
    for line in (*go_there, *plan.examples, "dovetail dev server.py"):
        err(f"  {line}")


def _folder_for(name: str, is_forced: bool) -> Path:
    folder = Path(name)
    with _file_errors(folder):
        last = folder.resolve().name
        if not NAME.fullmatch(last):
            raise click.UsageError(f"{last!r} can't be its name: use up to 40 letters, digits, - and _")
        if folder.exists() and not folder.is_dir():
            raise click.UsageError(f"{folder} is a file; choose another name")
        existing = sorted({each.name for each in folder.iterdir()} - UNRELATED) if folder.is_dir() else []
    if existing and not is_forced:
        shown = one_line(", ".join(existing), 100)
        raise click.UsageError(f"{folder} is not empty: {shown}. --force adds what is missing, and overwrites nothing")
    return folder


@contextmanager
def _file_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as failure:  # RuntimeError: a symlink loop, up to Python 3.12
        raise CommandExit(f"{folder} can't be made: {getattr(failure, 'strerror', None) or failure}") from None


def _write_files(folder: Path, files: dict[str, str]) -> set[str]:
    """Returns which were not there before."""
    written = set()
    with _file_errors(folder):
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(text)
            except FileExistsError:
                err(f"{path} was there already, and is as it was", fg="yellow")
            else:
                out(str(path))
                written.add(name)
    return written


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
    imported = sorted({"Server", *(name for feature in plan.ordered for name in FEATURES[feature].server_imports)})
    head = f'"""An MCP server."""\n\nfrom dovetail import {", ".join(imported)}\n\n'
    server = f'server = Server("{plan.name}", version="0.1.0")\n'
    features = [_template(f"server_{feature}.py") for feature in plan.ordered]
    run = "server.run()" if plan.transport == "stdio" else 'server.run("http")'
    return head + "\n".join([server, *features, f'\nif __name__ == "__main__":\n    {run}\n'])


def _tests(plan: ProjectPlan) -> str:
    imported = sorted({"Client", *(name for feature in plan.ordered for name in FEATURES[feature].test_imports)})
    tests = "\n".join(_template(f"test_{feature}.py") for feature in plan.ordered)
    pytest = "import pytest\n" if "pytest." in tests else ""
    return f"{pytest}from dovetail import {', '.join(imported)}\n\nfrom server import server\n\n{tests}"


def _readme(plan: ProjectPlan) -> str:
    trials = "\n".join(f"$ uv run {example}" for example in plan.examples)
    serve = "$ uv run dovetail run server.py --transport http"
    if plan.has_docker:
        serve += f"\n$ docker build -t {plan.name} ."
        serve += f"\n$ docker run --rm --read-only --tmpfs /tmp -p 127.0.0.1:8000:8000 {plan.name}"
    return _template("README.md", NAME=plan.name, TRIALS=trials, SERVE=serve)


def project_name(name: str) -> str:
    """The name of the project, normalized as that of a package."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "server"


def _is_taken(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return name in DEPENDENCIES or name.replace("-", "_") in sys.stdlib_module_names
    return True
