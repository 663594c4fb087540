"""`dovetail pack`: what it makes is what the server is, valid by the published schemas, the same bytes each time."""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import node_tools
import pytest
from click.testing import CliRunner, Result
from command_stage import forgetting_programs

import nodejs
from dovetail import Client
from dovetail.cli.main import main
from missing import demand

ROOT = Path(__file__).parents[2]
REGISTRY = ROOT / ".cache/suites/skillsaw-0.22.0/src/skillsaw/schemas/mcp_registry/v2025_12_11/server.schema.json"
OFFICIAL = "3fba09590c99f61735d234822279f4223fab9e300c0a81e81c91ab62a4114de0"  # of the registry's file of 2025-12-11
MCPB = node_tools.TARGET / "node_modules" / "@anthropic-ai" / "mcpb"
NAME = "io.github.ann/weather"

PROJECT = """
[project]
name = "Weather.App"
version = "1.2.0"
description = "Forecasts for any city."
authors = [{email = "team@example.com"}, {name = "Ann Example"}]
readme = "README.md"
requires-python = ">=3.12"
license = "MIT"
keywords = ["weather", "forecast"]
dependencies = ["dovetail-mcp"]

[project.scripts]
weather-app = "server:server.run"

[project.urls]
Homepage = "https://weather.example.com"
Source = "https://github.com/ann/weather.git"
Issues = "https://github.com/ann/weather/issues"
Docs = "docs/index.md"

[build-system]
requires = ["hatchling"]

[tool.dovetail.variables]
WEATHER_API_KEY = {description = "The key of your account", default = "", secret = true}
WEATHER_UNITS = {description = "metric or imperial"}
WEATHER_PLACE = {description = "The city that is asked for most", default = "Rome"}
"""
PROGRAM = """
from dovetail import Icon, Server
from settings import UNITS

server = Server("weather", title="Weather", icons=[
    Icon("https://weather.example.com/icon.svg", mime_type="image/svg+xml", sizes=["any"], theme="dark"),
    Icon("data:image/png;base64,iVBORw0KGgo="),
    Icon("https://weather.example.com/icon", sizes=["1x1"]),
    Icon("https://weather.example.com/icon.avif", mime_type="image/avif"),
])

@server.tool
def forecast(city: str) -> str:
    "Tell tomorrow's weather in a city."
    return f"{city}: {UNITS}"

@server.tool(description="")
def plain() -> None: ...

@server.prompt
def plan(city: str, days: int = 3) -> str:
    "Plan a trip."
    return f"Plan {days} days in {city}."

"""
MEMBERS = {"README.md", "icon.png", "manifest.json", "pyproject.toml", "server.py", "settings.py"}
SETTINGS = "import os\nUNITS = os.environ['WEATHER_UNITS']\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the current folder, all of whose parts are used."""
    monkeypatch.setenv("WEATHER_UNITS", "metric")
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in {
        "pyproject.toml": PROJECT, "server.py": PROGRAM, "settings.py": SETTINGS,
        "README.md": f"# Weather\n\n<!-- mcp-name: {NAME} -->\n",
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    (folder / "icon.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(autouse=True)
def _forget_programs(tmp_path: Path) -> Iterator[None]:
    with forgetting_programs(tmp_path):
        yield


def pack(*words: "str | Path") -> Result:
    return CliRunner().invoke(main, ["pack", *map(str, words)])


def packed(*words: "str | Path") -> tuple[dict[str, Any], dict[str, Any]]:
    """The server.json and the manifest of the project in this folder, which both schemas take."""
    done = pack("server.py", *words)
    assert done.exit_code == 0, done.output
    registry = json.loads(Path("server.json").read_text())
    manifest = json.loads(bundled()["manifest.json"])
    demand(None if REGISTRY.exists() else "NO SCHEMA OF THE REGISTRY: run `python scripts/fetch_suites.py`")
    assert hashlib.sha256(REGISTRY.read_bytes()).hexdigest() == OFFICIAL
    schema(REGISTRY).validate(registry)
    nodejs.demand()
    schema(MCPB / "schemas" / f"mcpb-manifest-v{manifest['manifest_version']}.schema.json").validate(manifest)
    return registry, manifest


def schema(path: Path) -> Any:
    return jsonschema_rs.validator_for(json.loads(path.read_text()), validate_formats=True)


def bundled() -> dict[str, bytes]:
    (path,) = Path().glob("*.mcpb")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


# ── what they say ──


def test_both_say_what_the_server_and_its_project_say(project: Path) -> None:
    url = "https://github.com/ann/weather/releases/download/v1.2.0/weather-app.mcpb"
    registry, manifest = packed("--url", "https://weather.example.com/mcp", "--bundle-url", url)
    variables = [
        {"name": "WEATHER_API_KEY", "description": "The key of your account", "isRequired": False, "isSecret": True},
        {"name": "WEATHER_UNITS", "description": "metric or imperial", "isRequired": True, "isSecret": False},
        {"name": "WEATHER_PLACE", "description": "The city that is asked for most", "isRequired": False,
         "isSecret": False, "default": "Rome"},
    ]  # fmt: skip
    how = {"transport": {"type": "stdio"}, "environmentVariables": variables}
    assert registry == {
        "$schema": schema_id(),
        "name": NAME,
        "title": "Weather",
        "description": "Forecasts for any city.",
        "version": "1.2.0",
        "websiteUrl": "https://weather.example.com",
        "repository": {"url": "https://github.com/ann/weather", "source": "github"},
        "icons": [
            {"src": "https://weather.example.com/icon.svg", "mimeType": "image/svg+xml", "theme": "dark",
             "sizes": ["any"]},
            {"src": "https://weather.example.com/icon", "sizes": ["1x1"]},
        ],
        "packages": [
            {"registryType": "pypi", "identifier": "weather-app", "version": "1.2.0", "runtimeHint": "uvx", **how},
            {"registryType": "mcpb", "identifier": url, "fileSha256": sha256("weather-app.mcpb"), **how},
        ],
        "remotes": [{"type": "streamable-http", "url": "https://weather.example.com/mcp"}],
    }  # fmt: skip
    assert manifest == {
        "manifest_version": "0.4",
        "name": "weather-app",
        "display_name": "Weather",
        "version": "1.2.0",
        "description": "Forecasts for any city.",
        "author": {"name": "Ann Example"},
        "repository": {"type": "git", "url": "https://github.com/ann/weather.git"},
        "homepage": "https://weather.example.com",
        "support": "https://github.com/ann/weather/issues",
        "icon": "icon.png",
        "server": {
            "type": "uv",
            "entry_point": "server.py",
            "mcp_config": {
                "command": "uv",
                "args": ["run", "--no-dev", "--directory", "${__dirname}", "dovetail", "run", "server.py"],
                "env": {
                    "WEATHER_API_KEY": "${user_config.WEATHER_API_KEY}",
                    "WEATHER_UNITS": "${user_config.WEATHER_UNITS}",
                    "WEATHER_PLACE": "${user_config.WEATHER_PLACE}",
                },
            },
        },
        "tools": [
            {"name": "forecast", "description": "Tell tomorrow's weather in a city."},
            {"name": "plain", "description": ""},
        ],
        "prompts_generated": True,
        "keywords": ["weather", "forecast"],
        "license": "MIT",
        "compatibility": {"platforms": ["darwin", "linux", "win32"], "runtimes": {"python": ">=3.12"}},
        "user_config": {
            "WEATHER_API_KEY": {"type": "string", "title": "WEATHER_API_KEY", "required": False, "sensitive": True,
                                "description": "The key of your account", "default": ""},
            "WEATHER_UNITS": {"type": "string", "title": "WEATHER_UNITS", "required": True, "sensitive": False,
                              "description": "metric or imperial"},
            "WEATHER_PLACE": {"type": "string", "title": "WEATHER_PLACE", "required": False, "sensitive": False,
                              "description": "The city that is asked for most", "default": "Rome"},
        },
    }  # fmt: skip
    assert bundled().keys() == MEMBERS


def schema_id() -> str:
    found: str = json.loads(REGISTRY.read_text())["$id"]
    return found


def sha256(name: str) -> str:
    return hashlib.sha256(Path(name).read_bytes()).hexdigest()


def test_the_page_shows_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "commands" / "pack.md").read_text()
    blocks = dict(re.findall(r"^```(text|python|json)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    (command,) = re.findall(r"^`dovetail (pack .*?)` writes", page, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text(blocks["text"])
    Path("server.py").write_text(blocks["python"])
    _, manifest = packed(*command.split()[2:])
    assert Path("server.json").read_text() == blocks["json"]
    assert manifest["user_config"]["WEATHER_UNITS"]["default"] == "metric"


def test_a_new_project_needs_an_author_and_a_name_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["new", "weather"]).exit_code == 0
    monkeypatch.chdir(tmp_path / "weather")
    assert "write authors = " in pack("server.py", "--name", NAME).stderr
    text = Path("pyproject.toml").read_text()
    Path("pyproject.toml").write_text(text.replace("[project]", '[project]\nauthors = [{name = "Ann"}]'))
    assert "give --name" in pack("server.py").stderr
    registry, manifest = packed("--name", NAME)
    assert registry.keys() == {"$schema", "name", "description", "version"}
    assert "says nowhere how to get it" in pack("server.py", "--name", NAME).stderr
    assert [tool["name"] for tool in manifest["tools"]] == ["count_words"]
    assert manifest["prompts_generated"] is True
    assert "icon" not in manifest
    assert bundled().keys() == {"README.md", "manifest.json", "pyproject.toml", "server.py"}


def by_official_tool(*words: str | Path) -> None:
    command = [node_tools.node(), MCPB / "dist" / "cli" / "cli.js", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
async def test_the_official_tool_takes_the_bundle_and_what_it_unpacks_is_the_server(project: Path) -> None:
    _, manifest = packed()
    unpacked = project.parent / "unpacked"
    by_official_tool("unpack", "weather-app.mcpb", unpacked)
    by_official_tool("validate", unpacked)
    config = manifest["server"]["mcp_config"]
    started = config["args"][config["args"].index("dovetail") + 1 :]  # what uv would start there
    env = {**os.environ, "WEATHER_UNITS": "imperial"}
    with contextlib.chdir(unpacked):
        client = Client([sys.executable, "-m", "dovetail.cli", *started], env=env, timeout=30)
    async with client:
        assert [tool.name for tool in await client.list_tools()] == [tool["name"] for tool in manifest["tools"]]
        assert (await client.call_tool("forecast", {"city": "Rome"})).data == "Rome: imperial"


def test_a_server_that_is_named_and_one_that_mounts_others(project: Path) -> None:
    with Path("server.py").open("a") as program:
        program.write("\nparent = Server('all')\nparent.mount(server, namespace='w')\nserver = [server]\n")
    done = pack("server.py:parent")
    assert done.exit_code == 0, done.output
    manifest = json.loads(bundled()["manifest.json"])
    assert manifest["server"]["mcp_config"]["args"][-1] == "server.py:parent"
    assert [tool["name"] for tool in manifest["tools"]] == ["w_forecast", "w_plain"]
    assert (manifest["tools_generated"], manifest["prompts_generated"]) == (True, True)


def test_what_is_no_part_of_the_program_stays_outside(project: Path) -> None:
    others = """.env .git/config env/pyvenv.cfg env/x.py tests/test_server.py dist/a.whl old.mcpb __pycache__/a.pyc
    prod.env deploy/tls.key deploy/tls.pem
    data/big.csv data/kept.txt draft.md docs/draft.md docs/deep/x.txt notes/a.md notes/b.md server.json a.log"""
    for name in others.split():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    (project / ".mcpbignore").write_text("# what we leave out\n*.csv\n/docs/\n\ndraft.md  # not yet\nnotes/b.md\n")
    (project / "link.py").symlink_to("/etc/hostname")
    (project / "loop").symlink_to(project)
    Path("old.mcpb").unlink()
    packed()
    assert bundled().keys() - MEMBERS == {"data/kept.txt", "notes/a.md"}


def test_without_a_pyproject_there_is_a_server_json_of_the_program_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()  # nothing above it is asked
    Path("server.py").write_text("from dovetail import Server\nit = Server('a', version='1', description='b')\n")
    done = pack("server.py", "--name", NAME, "--only", "server.json", "--url", "https://a.example.com/mcp")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "server.json\n", "")
    assert json.loads(Path("server.json").read_text())["version"] == "1"
    done = pack("server.py", "--name", NAME)
    assert (done.exit_code, "a bundle needs a pyproject.toml" in done.stderr) == (2, True)


# ── the same bytes, and drift ──


def test_the_same_project_gives_the_same_bytes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pack("server.py").exit_code == 0
    first = {name: Path(name).read_bytes() for name in ("server.json", "weather-app.mcpb")}
    copy = project.parent / "copy"
    copy.mkdir()
    for path in sorted(project.iterdir(), reverse=True):  # in another order, with other dates and modes
        if path.suffix in (".py", ".toml", ".md", ".png"):
            (copy / path.name).write_bytes(path.read_bytes())
            (copy / path.name).chmod(0o600)
            os.utime(copy / path.name, (1e9, 1e9))
    assert pack(copy / "server.py", "--output", "elsewhere/deep").exit_code == 0
    assert {name: Path("elsewhere/deep", name).read_bytes() for name in first} == first
    with zipfile.ZipFile("weather-app.mcpb") as archive:
        assert [each.filename for each in archive.infolist()] == sorted(archive.namelist())
        assert {(each.date_time, each.compress_type) for each in archive.infolist()} == {((1980, 1, 1, 0, 0, 0), 0)}


def test_check_fails_on_drift_names_it_and_writes_nothing(project: Path) -> None:
    assert pack("server.py", "--check").exit_code == 1  # there is no server.json
    assert pack("server.py").exit_code == 0
    done = pack("server.py", "--check")
    assert (done.exit_code, done.output) == (0, "")
    before = {path: path.read_bytes() for path in (Path("server.json"), Path("weather-app.mcpb"))}
    Path("server.py").write_text(PROGRAM.replace("forecast", "predict"))
    done = pack("server.py", "--check")
    assert done.exit_code == 1
    assert done.stdout == "weather-app.mcpb would change: manifest.json, server.py\n"
    assert {path: path.read_bytes() for path in before} == before
    Path("pyproject.toml").write_text(PROJECT.replace("1.2.0", "1.3.0"))
    assert pack("server.py", "--check", "--only", "server.json").stdout == "server.json would change\n"


def test_check_without_a_bundle_or_with_a_damaged_one(project: Path) -> None:
    assert pack("server.py", "--only", "server.json").exit_code == 0
    assert not Path("weather-app.mcpb").exists()
    assert pack("server.py", "--check", "--only", "server.json").exit_code == 0
    everything = f"weather-app.mcpb would change: {', '.join(sorted(MEMBERS))}\n"
    done = pack("server.py", "--check")
    assert (done.exit_code, done.stdout) == (1, everything)
    Path("weather-app.mcpb").write_bytes(b"PK\x03\x04 and then nothing")
    done = pack("server.py", "--check")
    assert (done.exit_code, done.stdout) == (1, everything)
    assert pack("server.py").exit_code == 0
    assert pack("server.py", "--check").exit_code == 0


# ── what is refused ──


@pytest.mark.parametrize(
    "name",
    ["weather", "ann/weather/app", "/weather", "ann/", "io.github.ann/we ather", ".ann/weather", "com.ann/-weather",
     "io.github.ann-/weather", "io_github/weather", "io.github.ann/wetter\u00e4", f"io.github.ann/{'w' * 200}", ""],
    ids=lambda name: name[:30],
)  # fmt: skip
def test_a_name_that_the_registry_refuses_is_refused(project: Path, name: str) -> None:
    (project / "README.md").write_text("")
    (project / "pyproject.toml").write_text(PROJECT.replace("github.com", "example.com"))
    done = pack("server.py", "--name", name)
    assert (done.exit_code, f"not {name!r}: give --name" in done.stderr) == (2, True)
    assert not list(project.glob("server.json"))


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("server.py", "from settings", "from nowhere", "No module named 'nowhere'"),
        ("server.py", "def forecast(city: str)", "def forecast(city: str", "can't be loaded"),
        ("server.py", "server = Server(", "thing = Server(", "server.py"),
        ("pyproject.toml", 'version = "1.2.0"', "", "it has no version"),
        ("server.py", 'title="Weather"', 'version="1.3.0"', "the server says version 1.3.0, pyproject.toml 1.2.0"),
        ("pyproject.toml", 'description = "Forecasts for any city."', "", "it has no description"),
        ("pyproject.toml", "any city", "any city" * 20, "takes 100 characters"),
        ("server.py", '"Weather"', f'"{"Weather" * 20}"', "takes 100 characters"),
        ("pyproject.toml", '{name = "Ann Example"}', "", "write authors = "),
        ("pyproject.toml", 'name = "Weather.App"', "", "a bundle needs a pyproject.toml with [project] name"),
        ("pyproject.toml", "[project]", "[project", "pyproject.toml can't be read"),
        ("pyproject.toml", '"1.2.0"', "1.2", "Expected `str`, got `float` - at `$.project.version`"),
        ("pyproject.toml", 'default = ""', 'default = "sk-1"', "the default of a secret would be published"),
        ("pyproject.toml", "secret =", "secrets =", "unknown field `secrets`"),
        ("pyproject.toml", "WEATHER_API_KEY =", '"WEATHER-API-KEY" =', "'WEATHER-API-KEY' is no name of a variable"),
        ("pyproject.toml", '{description = "metric or imperial"}', "{}", "missing required field `description`"),
        ("README.md", "mcp-name", "name", f"add the line <!-- mcp-name: {NAME} -->"),
    ],
)  # fmt: skip
def test_what_has_to_change_first_is_said(project: Path, file: str, old: str, new: str, message: str) -> None:
    text = (project / file).read_text()
    assert old in text
    (project / file).write_text(text.replace(old, new))
    if file == "server.py" and old == "server = Server(":
        (project / file).write_text(text.replace(old, new).replace("@server", "@thing") + "\nother = Server('b')\n")
    done = pack("server.py", "--name", NAME)
    assert (done.exit_code, message in done.stderr) == (2, True), done.output
    assert not [*project.glob("server.json"), *project.glob("*.mcpb")]


@pytest.mark.parametrize(
    "url",
    ["http://weather.example.com/mcp", "https://localhost/mcp", "https://127.0.0.1:8000/mcp", "weather.example.com",
     "https://{tenant}.example.com/mcp", "https://me:secret@example.com/mcp", "https://[::1]/mcp", "https://a b.com/"],
)  # fmt: skip
def test_a_url_that_is_not_for_all_is_refused(project: Path, url: str) -> None:
    done = pack("server.py", "--url", url)
    assert (done.exit_code, "takes public URLs" in done.stderr) == (2, True)
    done = pack("server.py", "--bundle-url", url)
    assert (done.exit_code, "the registry takes releases" in done.stderr) == (2, True)


def test_a_project_without_a_script_of_its_name_is_no_package(project: Path) -> None:
    (project / "pyproject.toml").write_text(PROJECT.replace("weather-app =", "other ="))
    registry, _ = packed()
    assert "packages" not in registry
    assert "says nowhere how to get it" in pack("server.py").stderr


def test_a_folder_that_cannot_be_written_is_reported(project: Path) -> None:
    (project / "taken").write_text("a file")
    done = pack("server.py", "--output", "taken")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: a file can't be read or written: ")
    assert "'taken'" in done.stderr
    (project / "server.json").mkdir()
    assert pack("server.py", "--check", "--only", "server.json").exit_code == 1
    assert pack("server.py", "--only", "server.json").exit_code == 1


def test_a_bundle_with_data_beside_the_program_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "dump.csv").write_text("x" * 9000)
    monkeypatch.setattr("dovetail.cli.pack.MAX_BUNDLE_BYTES", 9000)
    done = pack("server.py")
    assert (done.exit_code, "in .mcpbignore what is no part of it, such as dump.csv" in done.stderr) == (2, True)
    (project / ".mcpbignore").write_text("dump.csv")
    assert pack("server.py").exit_code == 0


def test_a_file_that_cannot_be_read_is_reported(project: Path) -> None:
    (project / "secret.txt").touch()
    (project / "secret.txt").chmod(0)
    done = pack("server.py")
    assert os.geteuid() == 0 or (done.exit_code, "can't be read or written: [Errno 13]" in done.stderr) == (1, True)


def test_a_file_name_that_is_no_text_is_reported(project: Path) -> None:
    Path(os.fsdecode(b"caf\xe9.txt")).touch()
    done = pack("server.py")
    assert (done.exit_code, "can't be read or written: 'utf-8' codec" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("target", ["nowhere.py", "json", "https://example.com/mcp", "README.md"])
def test_what_is_no_program_is_refused(project: Path, target: str) -> None:
    assert pack(target).exit_code == 2
