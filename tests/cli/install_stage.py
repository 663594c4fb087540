"""A stage for `dovetail install`: a home of its own with a program in a folder, where commands are run."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from command_stage import furnish

from dovetail.cli.main import main

CONFIGS = Path(__file__).parent / "configs"
RUN = [sys.executable, "-m", "dovetail.cli", "run"]
FILES = {
    ("claude-desktop", "user"): ".config/Claude/claude_desktop_config.json",
    ("claude-code", "user"): ".claude.json",
    ("claude-code", "project"): "weather/.mcp.json",
    ("cursor", "user"): ".cursor/mcp.json",
    ("cursor", "project"): "weather/.cursor/mcp.json",
    ("vscode", "user"): ".config/Code/User/mcp.json",
    ("vscode", "project"): "weather/.vscode/mcp.json",
    ("gemini", "user"): ".gemini/settings.json",
    ("gemini", "project"): "weather/.gemini/settings.json",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "weather"
    folder.mkdir()
    furnish(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    for name in ("XDG_STATE_HOME", "CLAUDE_CONFIG_DIR", "GEMINI_CLI_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def install(*words: str) -> Result:
    return CliRunner().invoke(main, ["install", *words])


def servers(path: Path, section: str = "mcpServers") -> Any:
    return json.loads(path.read_text())[section]


def place(home: Path, name: str) -> Path:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    shutil.copy(CONFIGS / name, path)
    return path
