"""What is fetched for the tests: without npm nothing is, a sentence says so, and CI fails."""

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import fetch_specifications
import fetch_tools
import pytest

import missing


@pytest.mark.parametrize("script", [fetch_specifications, fetch_tools], ids=lambda script: script.__name__)
def test_without_npm_a_sentence_says_so(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    assert script.main(tmp_path) == 0
    assert "npm is not on the PATH" in capsys.readouterr().err
    with pytest.raises(pytest.skip.Exception, match=f"python scripts/{script.__name__}.py"):
        missing.demand(script.why_missing(tmp_path))
    monkeypatch.setenv("CI", "true")
    assert script.main(tmp_path) == 1
    with pytest.raises(pytest.fail.Exception, match="NO "):
        missing.demand(script.why_missing(tmp_path))
    assert not os.listdir(tmp_path)
