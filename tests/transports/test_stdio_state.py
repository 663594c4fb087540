"""`run(state=…)`, `--state` and DOVETAIL_STATE on stdio: what calls have stored outlives the process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import official
import state_program
from dovetail import Client
from server_requests import CAPABILITIES, MODERN, is_input_required, retry
from state_program import SURE

PATHS = {"PYTHONPATH": os.pathsep.join(sys.path)}
RUN = "import sys, state_program; state_program.create_server().run(state=sys.argv[1])"
COMMANDS = {
    "run": [sys.executable, "-c", RUN],
    "command": [sys.executable, "-m", "dovetail.cli", "run", f"{state_program.__file__}:create_server", "--state"],
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path.as_posix()}/state.db"


@pytest.mark.parametrize("way", COMMANDS)
@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_state_outlives_the_process(way: str, revision: str, url: str, witness: official.Witness) -> None:
    env = {**os.environ, **PATHS, "DOVETAIL_STATE": "memory:"}  # the option wins
    client = Client([*COMMANDS[way], url], env=env, protocol_version=revision, transcript=witness.see, timeout=20)
    for n in ("1", "2"):
        async with client:
            assert (await client.call_tool("count")).text == n


async def test_a_call_goes_on_in_the_next_process(url: str, witness: official.Witness) -> None:
    """Its state can be opened, because the secret is in the store, and its steps run once."""
    client = Client(
        [*COMMANDS["run"], url], env={**os.environ, **PATHS}, protocol_version=MODERN, capabilities=CAPABILITIES,
        transcript=witness.see, timeout=20,
    )  # fmt: skip
    async with client:
        asked = await client.request("tools/call", {"name": "order"})
        assert is_input_required(asked)
    texts = []
    for _ in range(2):
        async with client:
            again = {"name": "order", **retry(asked, {SURE: True})}
            texts.append((await client.request("tools/call", again))["content"][0]["text"])
    assert texts[0].startswith("1 2 ['first', 'second']")
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("'nonsense:'", "state (DOVETAIL_STATE): nonsense: is not known"),
        ("'sqlite:' + __file__", "state: "),
        ("5", 'Server.run: state=5 is not possible; it must be a URL, such as "sqlite:state.db"'),
        ("'memory:', port=1", 'Server.run: only for transport="http": port'),
    ],
)
def test_a_state_that_is_not_possible_is_said_on_stderr(state: str, text: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import state_program\nstate_program.create_server().run(state={state})\n" + "#" * 4096)
    env = {**os.environ, **PATHS}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL)
    assert done.returncode == 1
    assert f"SetupError: {text}" in done.stderr
    assert done.stdout == ""
