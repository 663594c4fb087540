"""How it is installed: the wheel holds all that the package needs, and what the README says is enough to use it."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from server_process import serving

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "dovetail"
NEEDED = {  # that no import would miss
    "dovetail/cli/templates/pyproject.toml.txt",
    "dovetail/py.typed",
    "dovetail/reference/notes.md",
    "dovetail/console/static/index.html",
    "dovetail/console/static/style.css",
    "dovetail/console/static/app.js",
}


def give_up(reason: str) -> None:
    pytest.fail(f"CI: {reason}") if os.environ.get("CI") == "true" else pytest.skip(f"! {reason}")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built here and now, without the network."""
    if find_spec("hatchling") is None:
        give_up("NO HATCHLING: `pip install hatchling`, so the wheel was not looked into")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def packed(wheel: Path) -> dict[str, bytes]:
    """Its files."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


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
def test_what_the_readme_says_to_install_lists_a_server_behind_a_url(wheel: Path, tmp_path: Path) -> None:
    """In an empty environment, for the server and for the client."""
    (extras,) = re.findall(r'^\$ pip install "\.(\[.+\])"', (ROOT / "README.md").read_text(), re.MULTILINE)
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", home], check=True, timeout=60)
    pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, f"{wheel}{extras}"], capture_output=True, text=True, timeout=100, check=False)
    if done.returncode:
        give_up(f"NO PACKAGE REGISTRY: {done.stderr.strip()[-300:]}")
    become = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    with serving(["-c", become, str(home / "bin" / "dovetail"), "run"], tmp_path / "log.txt") as served:
        listing = [home / "bin" / "dovetail", "list", f"{served.origin}/mcp", "tools"]
        listed = subprocess.run(listing, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (listed.returncode, listed.stderr, served.complaints) == (0, "", [])
    assert listed.stdout.startswith("Tools\n")


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
