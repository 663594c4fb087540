"""The wheel holds all that the package needs at run time: the tree comes in, what a wheel of it holds goes out."""

import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "dovetail"
NEEDED = {  # that no import would miss
    "dovetail/py.typed",
    "dovetail/reference/notes.md",
    "dovetail/console/static/index.html",
    "dovetail/console/static/style.css",
    "dovetail/console/static/app.js",
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a wheel that is built here and now, without the network."""
    if find_spec("hatchling") is None:
        reason = "NO HATCHLING: `pip install hatchling`, so the wheel was not looked into"
        pytest.fail(f"CI: {reason}") if os.environ.get("CI") == "true" else pytest.skip(f"! {reason}")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def in_the_tree() -> dict[str, bytes]:
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(SOURCE).as_posix(): path.read_bytes() for path in files}


@pytest.mark.slow
def test_every_file_of_the_package_is_in_the_wheel_as_it_is(packed: dict[str, bytes]) -> None:
    tree = in_the_tree()
    assert tree.keys() >= NEEDED
    assert {name for name, body in tree.items() if packed.get(name) != body} == set()


@pytest.mark.slow
def test_nothing_else_is_in_the_wheel(packed: dict[str, bytes]) -> None:
    """Neither tests nor what lies about in the tree, but what says what it is."""
    foreign = {name for name in packed if not name.startswith("dovetail/")}
    assert {name.split("/")[0].split("-")[0] for name in foreign} == {"dovetail"}
    assert {name.partition("/")[2] for name in foreign} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"
    }  # fmt: skip
    assert packed.keys() - foreign == in_the_tree().keys()


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
