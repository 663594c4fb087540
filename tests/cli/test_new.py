"""`dovetail new`: the project that it makes passes its own tests, is served and linted, and nothing is overwritten."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pexpect
import pytest
from click.testing import CliRunner, Result
from command_stage import BIN, PROMPTLY, environment, typed

import dovetail
from dovetail.cli.main import main
from dovetail.cli.project_files import CI, PARTS, PIECES, ProjectPlan, files_of
from dovetail.cli.project_names import NEEDED, free_name, project_name

FILES = {"pyproject.toml", "server.py", "tests/test_server.py", "README.md", ".gitignore"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def new(*words: str) -> Result:
    return CliRunner().invoke(main, ["new", *words])


def made(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def tool(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """What the project is checked with, as it is installed here."""
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment(PYTHONDONTWRITEBYTECODE="1"), capture_output=True,
        text=True, timeout=180, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_project_passes_its_tests_and_is_served(tmp_path: Path) -> None:
    done = new("Weather.Station", "--yes")
    assert done.exit_code == 0, done.output
    folder = tmp_path / "Weather.Station"
    assert set(done.stdout.split()) == {f"Weather.Station/{path}" for path in FILES}
    assert made(folder) == FILES
    tests = tool(folder, "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert "5 passed" in tests.stdout
    called = typed(folder, "call", "server.py", "count_words", "text=to be or not")
    assert (called.returncode, called.stdout.strip()) == (0, b"4"), called.stderr
    assert typed(folder, "lint", "server.py", "--fail-on", "note").returncode == 0


@pytest.mark.slow
def test_the_project_passes_its_own_checks(tmp_path: Path) -> None:
    """With the settings of its own pyproject.toml, as its workflow runs them."""
    assert new("it", "--ci", "github", "--yes").exit_code == 0
    steps = [line.split("uv run ")[1] for line in CI.splitlines() if "uv run " in line]
    checks = [step.split() for step in steps if step.split()[0] in ("ruff", "mypy")]
    assert [check[0] for check in checks] == ["ruff", "ruff", "mypy"]
    for check in checks:
        done = tool(tmp_path / "it", *check)
        assert done.returncode == 0, done.stdout + done.stderr
    for step in (step for step in steps if step.startswith("dovetail ")):
        assert typed(tmp_path / "it", *step.split()[1:]).returncode == 0


ENDLESS = {"dev", "run"}


@pytest.mark.slow
def test_the_commands_of_its_readme_work(tmp_path: Path) -> None:
    assert new("it", "--yes").exit_code == 0
    readme = (tmp_path / "it" / "README.md").read_text()
    lines = [line.partition("#")[0] for line in readme.splitlines() if line.startswith("$ uv run dovetail ")]
    commands = [shlex.split(line.removeprefix("$ uv run dovetail ")) for line in lines]
    assert {words[0] for words in commands} > ENDLESS
    for words in commands:
        more = ["--help"] if words[0] in ENDLESS else ["--dry-run"] if words[0] == "install" else []
        done = typed(tmp_path / "it", *words, *more, HOME=str(tmp_path))
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.parametrize("part", PARTS)
def test_what_is_tried_out_first_works(tmp_path: Path, part: str) -> None:
    assert new("it", "--with", part, "--yes").exit_code == 0
    program, *words = shlex.split(PIECES[part].trial)
    assert program == "dovetail"
    assert f"  {PIECES[part].trial}" in new("again", "--with", part, "--yes").stderr
    done = typed(tmp_path / "it", *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("parts", [("tool",), ("resource",), ("prompt",), ("prompt", "tool"), PARTS])
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_every_plan_is_clean_code(tmp_path: Path, parts: tuple[str, ...], transport: str) -> None:
    for path, text in files_of(ProjectPlan("it", parts, transport)).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    for command in (["check", "--select", "E,F,I,B,UP,W"], ["format", "--check"]):
        done = subprocess.run(
            [BIN / "ruff", *command, "--isolated", "--no-cache", "."], cwd=tmp_path, capture_output=True,
            text=True, timeout=PROMPTLY, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
    assert ('server.run("http")' in (tmp_path / "server.py").read_text()) == (transport == "http")


@pytest.mark.parametrize("length", [51, 52, 53, 64, 65, 66, 71, 80])
def test_a_long_name_is_clean_code_too(tmp_path: Path, length: int) -> None:
    (tmp_path / "server.py").write_text(files_of(ProjectPlan("n" * length))["server.py"])
    for command in (["check", "--select", "E"], ["format", "--check"]):
        done = subprocess.run(
            [BIN / "ruff", *command, "--isolated", "--no-cache", "."], cwd=tmp_path, capture_output=True,
            text=True, timeout=PROMPTLY, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_what_else_can_be_added(tmp_path: Path) -> None:
    done = new("it", "--docker", "--ci", "github", "--yes")
    assert done.exit_code == 0
    assert made(tmp_path / "it") == FILES | {"Dockerfile", ".dockerignore", ".github/workflows/test.yml"}
    assert "docker build -t it ." in (tmp_path / "it" / "README.md").read_text()


@pytest.mark.parametrize("name", ["weather", "My Server".replace(" ", "_"), "a.b", "UPPER"])
def test_the_project_has_a_proper_name(tmp_path: Path, name: str) -> None:
    assert new(name, "--yes").exit_code == 0
    project = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())
    assert project["project"]["name"] == project_name(name) == name.lower().replace("_", "-").replace(".", "-")


TAKEN = sorted([*NEEDED, "json", "ASYNCIO", "Pytest_Asyncio", "click", "msgspec", "hypothesis"])


@pytest.mark.parametrize("name", TAKEN)
def test_a_project_is_not_called_like_a_package(tmp_path: Path, name: str) -> None:
    done = new(name, "--yes")
    assert done.exit_code == 0
    project = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())["project"]
    assert project["name"] == f"{project_name(name)}-server"
    assert all(each.startswith("dovetail") for each in project["dependencies"])
    assert f"there is a package {project_name(name)} already, so the project is called" in done.stderr
    assert f'Server("{project_name(name)}-server"' in (tmp_path / name / "server.py").read_text()


@pytest.mark.parametrize("name", ["weather", "my-server", "server", "tests", "x"])
def test_a_free_name_is_kept(name: str) -> None:
    assert free_name(name) == name


@pytest.mark.parametrize(
    ("folder", "shown"), [("a b/we", "cd 'a b/we'"), ("$HOME/it", "cd '$HOME/it'"), ("it", "cd it")]
)
def test_the_way_into_the_folder_can_be_pasted(tmp_path: Path, folder: str, shown: str) -> None:
    done = new(folder, "--yes")
    assert (done.exit_code, (tmp_path / folder / "server.py").is_file()) == (0, True)
    assert f"  {shown}\n" in done.stderr


def test_the_project_asks_for_what_it_was_made_with(tmp_path: Path) -> None:
    assert new("it", "--yes").exit_code == 0
    project = tomllib.loads((tmp_path / "it" / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == [f"dovetail-mcp>={dovetail.__version__}"]
    assert {re.split(r"[\[>]", each)[0] for each in project["dependency-groups"]["dev"]} <= NEEDED


def test_the_container_has_what_the_project_needs(tmp_path: Path) -> None:
    assert new("it", "--docker", "--yes").exit_code == 0
    copied = re.findall(r"^COPY (?!--from)(.*) \./$", (tmp_path / "it" / "Dockerfile").read_text(), re.MULTILINE)
    let_in = (tmp_path / "it" / ".dockerignore").read_text().split()
    assert {f"!{path.rstrip('*')}" for line in copied for path in line.split()} == set(let_in) - {"*"}


def test_the_current_folder_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert new(".", "--yes").exit_code == 0
    assert 'Server("here"' in (tmp_path / "here" / "server.py").read_text()


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "server.py").write_text("mine")
    done = new("it", "--yes")
    assert done.exit_code == 2
    assert "it is not empty: server.py." in done.stderr
    assert made(tmp_path / "it") == {"server.py"}
    done = new("it", "--yes", "--force")
    assert done.exit_code == 0
    assert "it/server.py was there already" in done.stderr
    assert (tmp_path / "it" / "server.py").read_text() == "mine"
    assert made(tmp_path / "it") == FILES


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "what is it called?"),
        (["--yes"], 2, "what is it called?"),
        (["a b", "--yes"], 2, "can't be its name"),
        (["-x"], 2, "No such option"),
        (["it", "--with", "magic"], 2, "magic"),
        (["taken", "--yes"], 2, "taken is a file"),
        (["taken/it", "--yes"], 1, "can't be made"),
    ],
)
def test_what_can_not_be_made(tmp_path: Path, words: list[str], code: int, says: str) -> None:
    (tmp_path / "taken").write_text("")
    done = new(*words)
    assert (done.exit_code, done.stdout) == (code, "")
    assert says in done.stderr
    assert os.listdir(tmp_path) == ["taken"]


def test_a_link_to_itself_is_told(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in ("loop", "loop/it"):
        done = new(name, "--yes")
        assert (done.exit_code, done.stdout) == (1, "")
        assert f"Error: {name} can't be made: " in done.stderr


def test_a_person_is_asked(tmp_path: Path) -> None:
    child = pexpect.spawn(
        str(BIN / "dovetail"), ["new"], cwd=str(tmp_path), env=environment(NO_COLOR="1"), encoding="utf-8", timeout=20
    )
    for question, answer in [
        ("What is it called? [my-server] ", "oven"),
        ("or http? [stdio] ", "ftp"),
        ("or http? [stdio] ", "http"),
        ("Add a Dockerfile? [y/N] ", "y"),
        ("Add a workflow for GitHub? [y/N] ", ""),
    ]:
        child.expect_exact(question)
        child.sendline(answer)
    child.expect_exact("cd oven")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert made(tmp_path / "oven") == FILES | {"Dockerfile", ".dockerignore"}


def test_a_person_is_told_at_once_that_a_name_will_not_do(tmp_path: Path) -> None:
    (tmp_path / "oven").write_text("")
    child = pexpect.spawn(str(BIN / "dovetail"), ["new"], cwd=str(tmp_path), env=environment(), timeout=20)
    child.expect_exact("What is it called?")
    child.sendline("oven")
    child.expect_exact("oven is a file; choose another name")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 2


def test_a_person_can_leave(tmp_path: Path) -> None:
    child = pexpect.spawn(str(BIN / "dovetail"), ["new"], cwd=str(tmp_path), env=environment(), timeout=20)
    child.expect_exact("What is it called?")
    child.sendeof()
    child.expect_exact("nothing was made")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 5
    assert os.listdir(tmp_path) == []
