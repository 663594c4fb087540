"""What the tests of the command line share: a folder with what the examples need."""

from pathlib import Path

import pytest
from command_stage import furnish


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    furnish(tmp_path)
    return tmp_path
