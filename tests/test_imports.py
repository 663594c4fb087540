"""`import dovetail` stays light: what it loads, and above all what it does not."""

import json
import subprocess
import sys

import pytest

HEAVY = {
    "pydantic", "uvicorn", "starlette", "jsonschema_rs", "cryptography", "click", "redis", "watchfiles", "anyio",
}  # fmt: skip


def loaded_after(code: str) -> set[str]:
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


def test_import_dovetail() -> None:
    loaded = loaded_after("import dovetail")
    assert not loaded & HEAVY
    assert len(loaded) <= 200


PLAIN_SERVER = """
from dovetail import Context, Server
server = Server("plain")

@server.tool
async def add(a: int, b: int, ctx: Context) -> int:
    return a + b
"""


def test_a_plain_server_loads_nothing_heavy() -> None:
    loaded = loaded_after(PLAIN_SERVER)
    assert not loaded & HEAVY
    ours = {name for name in loaded if name.startswith("dovetail")}
    assert len(loaded - ours) <= 200
    assert not any(name.startswith("dovetail.client") for name in ours)


@pytest.mark.parametrize("name", __import__("dovetail").__all__)
def test_every_public_name_is_there(name: str) -> None:
    dovetail = __import__("dovetail")
    assert getattr(dovetail, name) is not None
    assert name in dir(dovetail)


def test_an_unknown_name_says_so() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        __import__("dovetail").Nonsense  # noqa: B018
