"""How many example servers of the peers do the same here, by the harness in `scripts`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("peer", "share", "share_of_possible"), [("mcp", 0.92, 0.92), ("fastmcp", 0.65, 0.97)])
def test_most_examples_of_a_peer_do_the_same(peer: str, share: float, share_of_possible: float, tmp_path: Path) -> None:
    """The peer's own runs take ten minutes when they are not cached."""
    verdicts = tmp_path / "verdicts.json"
    command = [sys.executable, str(ROOT / "scripts" / "peer_examples.py"), "--only", peer, "--json", str(verdicts)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(command, env=environment, check=True)
    found = json.loads(verdicts.read_text())[peer]
    assert sum(how == "same" for _, how, *_ in found) >= share * len(found)
    possible = [how for _, how, _, lacking in found if not lacking]
    assert sum(how == "same" for how in possible) >= share_of_possible * len(possible)
