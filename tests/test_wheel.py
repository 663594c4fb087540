"""How it is installed: what the packages hold, and that the README and a new project work with nothing but them."""

import contextlib
import email
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from server_process import serving

import dovetail
from processes import HttpProgram

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "dovetail"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = {  # that no import would miss
    "dovetail/cli/peer_names.toml",
    "dovetail/cli/templates/pyproject.toml.txt",
    "dovetail/py.typed",
    "dovetail/reference/notes.md",
    "dovetail/console/static/index.html",
    "dovetail/console/static/style.css",
    "dovetail/console/static/app.js",
}
UNWANTED = re.compile(r"(^|/)(tests?|__pycache__|\.[^/]*|build|dist)/|\.py[cod]$|\.sqlite")


def give_up(reason: str) -> None:
    pytest.fail(f"CI: {reason}") if os.environ.get("CI") == "true" else pytest.skip(f"! {reason}")


def build(folder: Path, *options: str, source: Path = ROOT) -> None:
    """Here and now, without the network."""
    if find_spec("hatchling") is None:
        give_up("NO HATCHLING: `pip install hatchling`, so the packages were not looked into")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder), *options]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution, as pip takes them with --find-links."""
    folder = tmp_path_factory.mktemp("index")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def wheel(index: Path) -> Path:
    (built,) = index.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def packed(wheel: Path) -> dict[str, bytes]:
    """Its files."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


class Environment:
    """An environment of Python that knows nothing of this one; commands in it find no sources of ours."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.bin = home / "bin"
        without = ("PYTHONPATH", "DOVETAIL_", "VIRTUAL_ENV")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(without)}
        self.env = {**inherited, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "HOME": str(home)}

    def run(self, *words: str | Path, cwd: Path | None = None, **env: str) -> "subprocess.CompletedProcess[str]":
        command = [shutil.which(words[0], path=self.env["PATH"]) or words[0], *words[1:]]
        return subprocess.run(
            command, cwd=cwd or self.home, env={**self.env, **env}, capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def installed(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Installed by its name from the local index, without the network; what it depends on is borrowed from here."""
    home = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, timeout=60)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet"]
    environment = Environment(home)
    done = environment.run(*pip, "--no-index", "--no-deps", "--find-links", index, "dovetail-mcp")
    assert done.returncode == 0, done.stderr
    (site,) = home.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))  # behind its own packages
    return environment


def in_the_tree() -> dict[str, bytes]:
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(SOURCE).as_posix(): path.read_bytes() for path in files}


@pytest.mark.slow
def test_every_file_of_the_package_is_in_the_wheel_as_it_is_and_nothing_else(packed: dict[str, bytes]) -> None:
    """Neither tests nor what lies about in the tree, but what says what it is."""
    tree = in_the_tree()
    assert tree.keys() >= NEEDED
    assert {name for name, body in tree.items() if packed.get(name) != body} == set()
    foreign = packed.keys() - tree.keys()
    assert {name.split("/")[0].split("-")[0] for name in foreign} == {"dovetail_mcp"}
    expected = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    assert {name.partition("/")[2] for name in foreign} == expected


@pytest.mark.slow
def test_the_wheel_says_what_it_is(packed: dict[str, bytes]) -> None:
    (name,) = (name for name in packed if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(packed[name])
    assert (metadata["Name"], metadata["Version"]) == ("dovetail-mcp", dovetail.__version__)
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("MIT", ">=3.11")
    assert packed[name].endswith((ROOT / "README.md").read_bytes())
    entry_points = packed[name.replace("METADATA", "entry_points.txt")].decode()
    assert entry_points == "[console_scripts]\ndovetail = dovetail.cli.main:main\n"
    assert [name for name in packed if UNWANTED.search(name)] == []


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(index: Path, wheel: Path, tmp_path: Path) -> None:
    """Byte for byte, so a tree gives the same wheel twice; and it holds what that takes, and nothing else."""
    (archive,) = index.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {member.name.partition("/")[2] for member in tar if member.isfile()}
        tar.extractall(tmp_path, filter="data")
    others = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}
    assert names == {f"src/{name}" for name in in_the_tree()} | others
    build(tmp_path, "--target", "wheel", source=tmp_path / archive.name.removesuffix(".tar.gz"))
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_version_stands_in_one_place() -> None:
    assert "version" in PROJECT["dynamic"]
    assert dovetail.__version__ == re.findall(r'^__version__ = "(.*)"$', (PACKAGE / "__init__.py").read_text(), re.M)[0]
    texts = {path: path.read_text() for path in [*PACKAGE.rglob("*.py"), ROOT / "pyproject.toml"]}
    elsewhere = [path.name for path, text in texts.items() if f'version = "{dovetail.__version__}"' in text]
    assert elsewhere == ["new.py"] * any(path == "new.py" for path in elsewhere)  # that of a new project


def test_extras_are_documented_asked_for_and_in_all() -> None:
    extras = PROJECT["optional-dependencies"]
    users = extras.keys() - {"dev", "all"}
    assert extras["all"] == [f"dovetail-mcp[{','.join(sorted(users))}]"]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    brought = {
        extra: [re.split(r"[\[>=]", each)[0] for each in wanted] + ["hiredis"] * ("hiredis" in str(wanted))
        for extra, wanted in extras.items()
    }
    assert dict(rows) == {"all": "all of the above", **{extra: ", ".join(brought[extra]) for extra in users}}
    asked = {
        found for path in PACKAGE.rglob("*.py") for found in re.findall(r"dovetail-mcp\[(\w+)\]", path.read_text())
    }
    assert asked == users - {"watch"}  # which nothing fails without
    development = {re.split(r"[>=]", each)[0] for each in extras["dev"]}
    assert {re.split(r"[>=]", each)[0] for extra in users for each in extras[extra]} <= development


@pytest.mark.slow
def test_the_installed_package_makes_a_project_that_works(installed: Environment, tmp_path: Path) -> None:
    """The short form of what a new user does; the long one is below."""
    where = "import dovetail, importlib.metadata as m; print(dovetail.__file__, m.version('dovetail-mcp'))"
    file, version = installed.run("python", "-c", where).stdout.split()
    assert (installed.home in Path(file).parents, version) == (True, dovetail.__version__)
    assert installed.run("dovetail", "new", "weather", "--yes", cwd=tmp_path).returncode == 0
    project = tmp_path / "weather"
    done = installed.run("dovetail", "call", "server.py", "count_words", "text=to be or not to be", cwd=project)
    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr
    done = installed.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_of_the_package_is_ignored_by_git() -> None:
    """What git ignores is not packed, and would be missed by others only."""
    names = "\n".join(str(SOURCE / name) for name in in_the_tree())
    try:
        ignored = subprocess.run(
            ["git", "check-ignore", "--stdin"], input=names, cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("! NO GIT")
    if ignored.returncode == 128:
        pytest.skip("! NO REPOSITORY")
    assert ignored.stdout == ""


@pytest.mark.soak
def test_the_tests_that_a_release_runs_pass_on_the_wheel(installed: Environment) -> None:
    """By the line of its workflow."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    (script,) = (step["run"] for step in workflow["jobs"]["test"]["steps"] if "python -m pytest tests" in str(step))
    where = installed.run("python", "-c", "import dovetail; print(dovetail.__file__)", cwd=ROOT).stdout
    assert installed.home in Path(where).parents
    command = script[script.index("python -m pytest") :]
    done = installed.run("bash", "-c", f"{command.strip()} -q -p no:cacheprovider", cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.fixture
def empty(index: Path, tmp_path: Path) -> Environment:
    """An empty environment with pip, which finds our package in the local index and all others where pip finds them."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=60)
    environment = Environment(tmp_path / "venv")
    links = f"{index} {os.environ.get('PIP_FIND_LINKS', '')}".strip()
    environment.env |= {"PIP_FIND_LINKS": links, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_QUIET": "1"}
    return environment


def install(environment: Environment, *words: str) -> None:
    done = environment.run("python", "-m", "pip", "install", *words)
    if done.returncode:
        give_up(f"NO PACKAGE REGISTRY: {done.stderr.strip()[-300:]}")


@pytest.mark.soak
def test_what_the_readme_says_to_install_lists_a_server_behind_a_url(
    wheel: Path, empty: Environment, tmp_path: Path
) -> None:
    (extras,) = re.findall(r'^\$ pip install "\.(\[.+\])"', (ROOT / "README.md").read_text(), re.MULTILINE)
    install(empty, f"{wheel}{extras}")
    become = "import os, sys; os.environ.pop('PYTHONPATH', None); os.execv(sys.argv[1], sys.argv[1:])"
    with serving(["-c", become, str(empty.bin / "dovetail"), "run"], tmp_path / "log.txt") as served:
        listed = empty.run("dovetail", "list", f"{served.origin}/mcp", "tools")
    assert (listed.returncode, listed.stderr, served.complaints) == (0, "", [])
    assert listed.stdout.startswith("Tools\n")


def lasting(environment: Environment, words: list[str], folder: Path) -> None:
    """A command that serves until it is ended."""
    given = [f"{name}={value}" for name, value in environment.env.items()]
    with contextlib.closing(HttpProgram(["env", "-i", "-C", str(folder), *given, "DOVETAIL_PORT=0", *words])) as server:
        server.until(lambda: re.search(r"http://127\.0\.0\.1:\d+/mcp", server.said))
        server.signal(signal.SIGINT)
        assert server.exits() == 0, server.said


def readme_commands(folder: Path) -> Iterator[list[str]]:
    text = (folder / "README.md").read_text()
    for line in re.findall(r"^\$ (.*)$", text, re.MULTILINE):
        words = shlex.split(line, comments=True)
        yield words[2:] if words[:2] == ["uv", "run"] else words


@pytest.mark.soak
def test_every_command_of_a_new_project_works_in_an_empty_environment(empty: Environment, tmp_path: Path) -> None:
    """With the line of its README for those who have no uv, and the wheel from the local index."""
    install(empty, "dovetail-mcp")
    assert empty.run("dovetail", "new", "weather", cwd=tmp_path).returncode == 0
    project = tmp_path / "weather"
    ((_, _, *wanted),) = map(shlex.split, re.findall(r"`(pip install .*?)`", (project / "README.md").read_text()))
    install(empty, *wanted)
    ran = set()
    for words in readme_commands(project):
        if words == ["uv", "sync"]:  # in the place of which pip has installed it
            continue
        ran.add(" ".join(words[:2]))
        if words[:2] in (["dovetail", "dev"], ["dovetail", "run"]):
            lasting(empty, words, project)
            continue
        more = ["--dry-run"] if words[:2] == ["dovetail", "install"] else []
        done = empty.run(*words, *more, cwd=project)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    dovetails = {f"dovetail {name}" for name in ("call", "dev", "install", "lint", "prompt", "read", "run")}
    assert ran == {"pytest", "ruff check", "mypy .", *dovetails}


@pytest.mark.soak
def test_all_brings_what_every_extra_needs(empty: Environment) -> None:
    install(empty, "dovetail-mcp[all]")
    modules = (ROOT / "tests" / "test_architecture.py").read_text().partition("WRAPPED = {")[2].partition("}\n")[0]
    names = sorted(set(re.findall(r'^    "(\w+)":', modules + "", re.MULTILINE)))
    assert {"aiohttp", "joserfc", "libcst", "opentelemetry", "redis", "watchfiles", "yaml"} <= set(names)
    done = empty.run("python", "-c", f"import {', '.join(names)}, hiredis")
    assert (done.returncode, done.stderr) == (0, "")
    done = empty.run("dovetail", "doctor")
    assert "not installed" not in done.stdout


def test_everything_names_the_package_as_it_is_called_at_the_registry() -> None:
    """Another package is called `dovetail` there."""
    places = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *PACKAGE.rglob("*.py"), ROOT / "pyproject.toml"]
    wrong = re.compile(
        r"""(?<![\w-])dovetail(\[|[<>=~]=)|^name = "dovetail"$|(install|uv add) ['"]?dovetail(?!-mcp)\b""", re.M
    )
    assert [str(place) for place in places if wrong.search(place.read_text())] == []


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_running_needs_no_development_tools(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "scripts/setup"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)

    def installs(*goals: str) -> list[str]:
        text = subprocess.run(["make", "-n", *goals], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        return re.findall(r"scripts/setup (\w+)", text)

    assert (installs("run"), installs("lint")) == (["client"], ["dev"])
    (tmp_path / ".venv").mkdir()
    for stamp in (".installed", ".installed-dev"):  # as the installation for development leaves them
        (tmp_path / ".venv" / stamp).touch()
    assert installs("run", "lint") == []
