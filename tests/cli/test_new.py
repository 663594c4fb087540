"""`dovetail new`: the project that it makes passes its own tests, is served and linted, and nothing is overwritten."""

import contextlib
import json
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from command_stage import BIN, PROMPTLY, environment, typed

import dovetail
from dovetail.cli.main import main
from dovetail.cli.new import FEATURES, ProjectPlan, project_files, project_name
from missing import demand
from processes import HttpProgram

MYPY_CACHE = Path(__file__).parents[2] / ".mypy_cache" / "of-new-projects"  # so that Dovetail is read once
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
    env = environment(PYTHONDONTWRITEBYTECODE="1", MYPY_CACHE_DIR=str(MYPY_CACHE))
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=env, capture_output=True, text=True, timeout=180, check=False
    )


@pytest.mark.slow
def test_the_project_passes_its_tests_and_its_own_checks_and_is_served(tmp_path: Path) -> None:
    """With the settings of its own pyproject.toml, as its workflow and its README run them."""
    done = new("Weather.Station", "--ci", "github", "--yes")
    assert done.exit_code == 0, done.output
    folder = tmp_path / "Weather.Station"
    workflow = ".github/workflows/test.yml"
    assert made(folder) == {*FILES, workflow}
    assert set(done.stdout.split()) == {f"Weather.Station/{path}" for path in (*FILES, workflow)}
    lines = [*(folder / workflow).read_text().splitlines(), *(folder / "README.md").read_text().splitlines()]
    steps = {line.partition("uv run ")[2].partition("#")[0].strip() for line in lines if "uv run " in line}
    commands = [shlex.split(step) for step in sorted(steps)]
    assert {words[0] for words in commands} == {"ruff", "mypy", "pytest", "dovetail"}
    for words in commands:
        if words[0] != "dovetail":
            checked = tool(folder, *words, *(["-p", "no:cacheprovider"] if words[0] == "pytest" else []))
            assert checked.returncode == 0, checked.stdout + checked.stderr
            continue
        more = {"dev": ["--help"], "run": ["--help"], "install": ["--dry-run"]}.get(words[1], [])
        ran = typed(folder, *words[1:], *more, HOME=str(tmp_path))
        assert ran.returncode == 0, (words, ran.stderr)


def test_every_plan_is_clean_code(tmp_path: Path) -> None:
    plans = [
        ProjectPlan("it", parts, transport)
        for parts in [("tool",), ("resource",), ("prompt",), ("prompt", "tool"), tuple(FEATURES)]
        for transport in ("stdio", "http")
    ]
    plans.append(ProjectPlan("n" * 47))  # the longest that there is, with `-server` behind it
    for number, plan in enumerate(plans):
        for path, text in project_files(plan).items():
            place = tmp_path / str(number) / path
            place.parent.mkdir(exist_ok=True, parents=True)
            place.write_text(text)
        is_http = 'server.run("http")' in project_files(plan)["server.py"]
        assert is_http == (plan.transport == "http")
    folders = [str(number) for number in range(len(plans))]
    for command in (["check", "--select", "E,F,I,B,UP,W"], ["format", "--check"]):
        done = subprocess.run(
            [BIN / "ruff", *command, "--isolated", "--no-cache", "--config", f"src={folders}", "."], cwd=tmp_path,
            capture_output=True, text=True, timeout=PROMPTLY, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["json", "Pytest_Asyncio"])
def test_a_project_is_not_called_like_a_package(tmp_path: Path, name: str) -> None:
    done = new(name, "--yes")
    assert done.exit_code == 0
    project = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())["project"]
    assert project["name"] == f"{project_name(name)}-server"
    assert project["dependencies"] == [f"dovetail-mcp>={dovetail.__version__}"]
    assert f"there is a package {project_name(name)} already, so the project is called" in done.stderr
    assert f'Server("{project_name(name)}-server"' in (tmp_path / name / "server.py").read_text()


def test_the_container_has_what_the_project_needs(tmp_path: Path) -> None:
    done = new("a b/we", "--with", "tool")
    assert f"  cd 'a b/we'\n  {FEATURES['tool'].example}\n" in done.stderr
    assert new("it", "--docker", "--ci", "github", "--yes").exit_code == 0
    assert made(tmp_path / "it") == FILES | {"Dockerfile", ".dockerignore", ".github/workflows/test.yml"}
    assert "docker build -t it ." in (tmp_path / "it" / "README.md").read_text()
    copied = re.findall(r"^COPY (?!--from)(.*) \./$", (tmp_path / "it" / "Dockerfile").read_text(), re.MULTILINE)
    let_in = (tmp_path / "it" / ".dockerignore").read_text().split()
    assert {f"!{path.rstrip('*')}" for line in copied for path in line.split()} == set(let_in) - {"*"}


DOCKERFILE = project_files(ProjectPlan("it", has_docker=True))["Dockerfile"].replace("\\\n", "")


def instruction(name: str) -> str:
    (found,) = re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)
    return found


def test_the_dockerfile_is_clean_to_its_linter() -> None:
    linter = BIN / "hadolint"
    demand(None if linter.exists() else "there is no hadolint, which PyPI has for Linux: the Dockerfile was not linted")
    done = subprocess.run(
        [linter, "--no-color", "-"], input=DOCKERFILE, capture_output=True, text=True, timeout=PROMPTLY, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.long
def test_the_commands_of_the_container(tmp_path: Path) -> None:
    """Without a container: they serve with its environment, are healthy, and end within the time of `docker stop`."""
    assert new("it", "--docker", "--yes").exit_code == 0
    env = dict(
        word.split("=", 1) for line in re.findall(r"^ENV (.*)$", DOCKERFILE, re.MULTILINE) for word in line.split()
    )
    assert env.pop("PATH") == "/app/.venv/bin:$PATH"
    assert (env.pop("DOVETAIL_HOST"), env.pop("DOVETAIL_PORT")) == ("0.0.0.0", instruction("EXPOSE"))
    assert float(env["DOVETAIL_DRAIN_TIMEOUT"]) < 10
    given = [f"{name}={value}" for name, value in env.items()]
    here = ["env", "-C", str(tmp_path / "it"), f"PATH={BIN}:/usr/bin:/bin", "DOVETAIL_PORT=0", *given]
    with contextlib.closing(HttpProgram([*here, *json.loads(instruction("CMD"))])) as server:
        server.ready()
        check = json.loads(instruction("HEALTHCHECK").partition(" CMD ")[2])
        for port, code in [(server.port, 0), (1, 1)]:
            done = subprocess.run(
                ["env", f"DOVETAIL_PORT={port}", sys.executable, *check[1:]], capture_output=True, check=False
            )
            assert (check[0], done.returncode) == ("python", code)
        server.signal(signal.SIGTERM)
        assert server.exits() == 0
        assert all(json.loads(line)["logger"].startswith("dovetail") for line in server.said.splitlines())


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "server.py").write_text("mine")
    done = new("it", "--yes")
    assert (done.exit_code, "it is not empty: server.py." in done.stderr) == (2, True)
    assert made(tmp_path / "it") == {"server.py"}
    done = new("it", "--yes", "--force")
    assert (done.exit_code, "it/server.py was there already" in done.stderr) == (0, True)
    assert (tmp_path / "it" / "server.py").read_text() == "mine"
    assert made(tmp_path / "it") == FILES


def test_nothing_is_said_of_a_server_that_was_there_and_no_one_is_sent_where_they_are(tmp_path: Path) -> None:
    said = new(".", "--yes").stderr
    assert "cd " not in said
    assert FEATURES["tool"].example in said
    again = new(".", "--force", "--docker")
    assert again.stdout.split() == ["Dockerfile", ".dockerignore"]
    assert all(line.endswith("was there already, and is as it was") for line in again.stderr.splitlines())


def test_a_folder_with_a_repository_and_an_environment_counts_as_empty(tmp_path: Path) -> None:
    for name in (".git", ".venv"):
        (tmp_path / "it" / name).mkdir(parents=True)
    assert new("it", "--yes").exit_code == 0
    assert made(tmp_path / "it") == FILES


def test_a_symlink_loop_is_reported(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in ("loop", "loop/it"):
        done = new(name, "--yes")
        assert (done.exit_code, done.stdout) == (1, "")
        assert f"Error: {name} can't be made: " in done.stderr
