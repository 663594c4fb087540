"""The examples of the documentation and of `--help`, run as they are written; and shell completion."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import example_server
import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner
from command_stage import PROMPTLY, environment, serve_in_process, typed

from documented import load
from dovetail import Server
from dovetail.cli.main import COMMANDS, main
from dovetail.cli.run import command as run

LASTING = {"run", "dev"}  # they run until a signal
ALLOWED = {"lint": {0, 1}, "doctor": {0, 1}, "task": {1}, "pack": {0, 1}}  # they say what they found; there is no task
# with the id ID, and nothing packed that --check could compare
REPLACED = {
    "npx -y @modelcontextprotocol/server-everything": "python server.py",
    "redis://127.0.0.1:6379/0": "sqlite:state.db",
}
pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates:DeprecationWarning")


def examples() -> list[tuple[str, str]]:
    """The name of each command, and a line of its own."""
    group = main.make_context("dovetail", [], resilient_parsing=True)
    epilogs = {"": main.epilog, **{name: main.get_command(group, name).epilog for name in COMMANDS}}  # type: ignore[union-attr]
    return [
        (name, re.split(r"\s{2,}", line.strip())[0])
        for name, epilog in epilogs.items()
        for line in (epilog or "").splitlines()
        if line.strip().startswith("dovetail ")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("line", list(dict.fromkeys(line for _, line in examples() if line.split()[1] not in LASTING)))
def test_an_example_does_what_it_says(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    serve_in_process(example_server.server, monkeypatch)
    for words, others in REPLACED.items():
        line = line.replace(words, others)
    program, *words = shlex.split(line.partition(" > ")[0])
    done = typed(folder, *words, HOME=str(folder), XDG_CONFIG_HOME=str(folder))
    assert (program, done.returncode in ALLOWED.get(words[0], {0})) == ("dovetail", True), done.stderr
    assert done.stdout or "--output" in line or done.stderr


@pytest.mark.parametrize("line", list(dict.fromkeys(line for _, line in examples() if line.split()[1] == "run")))
def test_an_example_that_lasts_serves_what_it_says(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    served: list[Any] = []
    monkeypatch.setattr(Server, "run", lambda self, transport, **options: served.append((self.name, transport)))
    done = typed(folder, *shlex.split(line)[1:])
    assert done.returncode == 0, done.stderr
    assert served[0][1] == ("http" if "--transport http" in line or line.endswith("run") else "stdio")


# ── pages ──


ROOT = Path(__file__).parent.parent.parent
PAGES = sorted((ROOT / "docs" / "commands").glob("*.md"))
BLOCK = re.compile(r"^<!-- (?P<program>\w+\.py) -->\n```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)(?P<path>[^)#]*)(#(?P<place>[^)]+))?\)")
BLOCKS = [(page.stem, match["program"], match["body"]) for page in PAGES for match in BLOCK.finditer(page.read_text())]


def test_every_command_has_a_page_that_the_index_names() -> None:
    assert [page.stem for page in PAGES] == sorted(COMMANDS)
    index = (ROOT / "docs" / "command.md").read_text()
    assert re.findall(r"^\| \[(\w+)\]\(commands/\1\.md\)", index, re.MULTILINE) == list(COMMANDS)
    assert all(page.read_text().startswith(f"# dovetail {page.stem}\n") for page in PAGES)


def test_every_command_has_examples_and_those_that_talk_to_a_server_show_what_they_print() -> None:
    assert {(command, line.split()[1]) for command, line in examples() if command} == {
        (name, name) for name in COMMANDS
    }
    assert {"call", "complete", "list", "prompt", "read"} <= {page for page, *_ in BLOCKS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.finditer(page.read_text()):
        target = page.parent / link["path"] if link["path"] else page
        assert target.exists(), link[0]
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
        assert link["place"] in [None, *(heading.lower().replace(" ", "-") for heading in headings)], link[0]


@pytest.mark.parametrize(("page", "program", "body"), BLOCKS, ids=[f"{page}: {program}" for page, program, _ in BLOCKS])
def test_what_a_page_shows_is_real(
    page: str, program: str, body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(ROOT / "docs" / "programs" / program, tmp_path / "server.py")
    serve_in_process(load(program.removesuffix(".py")).server, monkeypatch)
    _, *pieces = re.split(r"^\$ ", body, flags=re.MULTILINE)
    for piece in pieces:
        command, _, expected = piece.partition("\n")
        assert printed(tmp_path, command).rstrip("\n") == expected.rstrip("\n"), command


def printed(folder: Path, command: str) -> str:
    """By the command in this process, or by a shell where the line has more than one."""
    first, *words = shlex.split(command)
    if first == "dovetail" and not set("|>&;") & set(command):
        with contextlib.chdir(folder):
            return CliRunner().invoke(main, words, env=environment()).output
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=PROMPTLY, check=False,
    ).stdout  # fmt: skip


# ── Tab ──


TRAP = "import pathlib\npathlib.Path('imported.txt').write_text('it was')\n"
NEVER_LOADED = ("dovetail.server", "dovetail.client", "dovetail.engine")


def offered(typed: str, monkeypatch: pytest.MonkeyPatch, shell: str = "bash") -> list[str]:
    """What the script in the shell gets, a line each."""
    words = typed.split(" ")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words) - 1))
    kind = get_completion_class(shell)
    assert kind is not None
    found = kind(main, {}, "dovetail", "_DOVETAIL_COMPLETE").complete().split()
    assert not Path("imported.txt").exists()
    return found


@pytest.fixture
def trapped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that leave a trace if they are imported."""
    for name in ("server.py", "shop.py"):
        (folder / name).write_text(TRAP)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("dovetail li", ["plain,list", "plain,lint"]),
        ("dovetail call ser", ["file,ser"]),  # by the shell
        ("dovetail run ", ["file,"]),
        ("dovetail list server.py t", ["plain,tools", "plain,templates"]),
        ("dovetail call server.py add --output ", ["file,"]),
        ("dovetail call server.py add --log-level w", ["plain,warning"]),
        ("dovetail call server.py a", []),
        ("dovetail call -- ", []),
    ],
)
def test_what_is_offered(trapped: Path, monkeypatch: pytest.MonkeyPatch, typed: str, expected: list[str]) -> None:
    assert sorted(offered(typed, monkeypatch)) == sorted(expected)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_as_a_bash_does_it_with_the_line_of_the_documentation(trapped: Path) -> None:
    line = 'eval "$(_DOVETAIL_COMPLETE=bash_source dovetail)"'
    assert line in (ROOT / "docs" / "command.md").read_text()
    script = (
        f"{line}; COMP_WORDS=(dovetail li); COMP_CWORD=1; _dovetail_completion dovetail; "
        'echo "${COMPREPLY[@]}"; complete -p dovetail'
    )
    env = environment(HOME=os.devnull, PYTHONPROFILEIMPORTTIME="1")
    done = subprocess.run(
        ["bash", "-c", script], cwd=trapped, env=env, capture_output=True, text=True, timeout=PROMPTLY, check=False
    )
    assert done.stdout.splitlines() == ["list lint", "complete -o nosort -F _dovetail_completion dovetail"], done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "dovetail.cli.main" in loaded
    assert not loaded.intersection(NEVER_LOADED)


def test_the_page_of_run_shows_flags_that_there_are() -> None:
    known = {flag for option in run.params for flag in (*option.opts, *option.secondary_opts)} | {"--help"}
    assert set(re.findall(r"--[a-z][a-z-]+", (ROOT / "docs" / "commands" / "run.md").read_text())) <= known
