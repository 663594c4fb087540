"""`dovetail new`: a name and a few answers come in; a folder with a server, its tests and all they need goes out."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from dovetail.cli.exits import DECLINED, Ending, finish
from dovetail.cli.keyboard import ask, confirm
from dovetail.cli.project_files import PARTS, PIECES, ProjectPlan, files_of
from dovetail.cli.project_names import free_name, project_name
from dovetail.cli.terminal import can_ask, in_line, out, tell

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
USUAL_NAME = "my-server"
MAX_NAMED = 8  # files that a refusal names

EXAMPLES = """
\b
Examples:
  dovetail new weather --yes
  dovetail new weather --with tool --with resource --transport http --yes
  dovetail new weather --docker --ci github --yes

On a terminal it asks for what is not given; --yes takes what is usual. Nothing is ever overwritten.
"""


@click.command("new", epilog=EXAMPLES)
@click.argument("name", required=False)
@click.option(
    "--with", "parts", multiple=True, type=click.Choice(PARTS),
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
    plan = ProjectPlan(_name_for(folder), parts or PARTS, transport or "stdio", bool(docker), ci == "github")
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
    given = await ask(question)
    if given is None:
        raise Ending("nothing was made", DECLINED)
    return given


async def _choice(question: str) -> bool:
    given = await confirm(question)
    if given is None:
        raise Ending("nothing was made", DECLINED)
    return given


@contextmanager
def _failures_of(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise Ending(f"{folder} can't be made: {failure.strerror or failure}") from None
    except RuntimeError:  # up to Python 3.12
        raise Ending(f"{folder} can't be made: a link in it leads to itself") from None


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
        *(PIECES[part].trial for part in PARTS if part in plan.parts),
        "dovetail dev server.py",
    ):
        tell(f"  {line}")
