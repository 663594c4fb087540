"""What an mcp.json may say, and what is said of one that can't be used."""

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail import Clients, SetupError
from dovetail.client.mcp_json import MAX_BYTES, ListedServer, read_servers


def one(**entry: Any) -> ListedServer:
    return read_servers({"mcpServers": {"it": entry}})["it"]


def test_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PLACE", "Rome")
    monkeypatch.delenv("NOWHERE", raising=False)
    listed = one(
        command="${userHome}/bin/server",
        args=["--place", "${PLACE}", "${env:PLACE}/${NOWHERE:-x y}", "$PLACE {PLACE}"],
        env={"CITY": "${PLACE}!", "LIMIT": 7, "LOUD": True, "EMPTY": None},
        alwaysAllow=["everything"],
    )
    assert listed.target == [f"{tmp_path}/bin/server", "--place", "Rome", "Rome/x y", "$PLACE {PLACE}"]
    assert listed.options == {"env": {"CITY": "Rome!", "LIMIT": "7", "LOUD": "true"}, "cwd": None}


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"url": "http://x/mcp"}, None),
        ({"url": "http://x/mcp", "type": "http"}, "http"),
        ({"url": "http://x/mcp", "type": "streamable-http"}, "http"),
        ({"url": "http://x/mcp", "type": "streamableHttp"}, "http"),
        ({"url": "http://x/mcp", "type": "sse"}, "sse"),
        ({"httpUrl": "http://x/mcp"}, "http"),
    ],
)
def test_a_url(entry: dict[str, str], transport: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    listed = one(**entry, headers={"Authorization": "Bearer ${TOKEN}"})
    assert listed.target == "http://x/mcp"
    assert listed.options == {"headers": {"Authorization": "Bearer s3cret"}, "transport": transport}


@pytest.mark.parametrize("key", ["mcpServers", "servers"])
def test_a_file(tmp_path: Path, key: str) -> None:
    path = tmp_path / "mcp.json"
    servers = {"a": {"command": "x", "cwd": "sub"}, "b": {"url": "http://b"}, "c": {"command": "y", "disabled": True}}
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({key: servers, "inputs": []}).encode())
    found = read_servers(str(path))
    assert list(found) == ["a", "b"]
    assert found["a"].options["cwd"] == tmp_path / "sub"


def test_a_home_that_nobody_has() -> None:
    assert not one(command="x", cwd="~no-such-person/x").problem


def test_a_file_as_people_write_it(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(
        """{
        // the servers, of which "one" is for /* tests
        "servers": {
            "a": {"url": "http://a/mcp//x"}, /* not
            "b": {"command": "gone"}, */
            "c": {"command": "say", "args": ["// \\"no/*", "a,]", "}",], }, // the last one
        },
    }"""
    )
    found = read_servers(path)
    assert list(found) == ["a", "c"]
    assert found["a"].target == "http://a/mcp//x"
    assert found["c"].target == ["say", '// "no/*', "a,]", "}"]


@pytest.mark.parametrize("content", [b'"' + b'\\"' * 400_000, b"/*" * 400_000, b"[," * 400_000, b"/" * 900_000])
def test_a_strange_file_is_read_soon(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(content)
    with pytest.raises(SetupError, match="is no JSON object"):
        read_servers(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${NOWHERE:-${PLACE}}", "Rome"),
        ("<${NOWHERE:-in ${env:PLACE}, here}>", "<in Rome, here>"),
        ("${PLACE:-${NO_SUCH}}", "Rome"),  # which is not needed
        ('${NOWHERE:-{"a": 1}}', '{"a": 1}'),
        ("${ODD}", "${PLACE}"),
        ("${" * 200_000, "${" * 200_000),
    ],
    ids=str.__len__,
)
def test_references(text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "Rome")
    monkeypatch.setenv("ODD", "${PLACE}")
    for name in ("NOWHERE", "NO_SUCH"):
        monkeypatch.delenv(name, raising=False)
    assert one(command="x", args=[text]).target == ["x", expected]


@pytest.mark.parametrize(
    "url", ["http://x/?key=${KEY}\n", "${KEY}", "http://${KEY} /", "ftp://x/${KEY}", "http://u:${KEY}@x"]
)
async def test_a_url_that_is_wrong_is_not_repeated(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "s3cret")
    async with Clients({"mcpServers": {"bad": {"url": url}, "worse": {"url": "http://x/#${KEY}"}}}) as clients:
        assert list(clients.failures) == ["bad", "worse"]
        assert all(isinstance(failure, SetupError) for failure in clients.failures.values())
        assert "s3cret" not in str(clients.failures)


@pytest.mark.parametrize(("folder", "about"), [(".vscode", "."), (".cursor", "."), ("conf", "conf")])
def test_the_folder_that_a_file_is_about(tmp_path: Path, folder: str, about: str) -> None:
    path = tmp_path / folder / "mcp.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"servers": {"a": {"command": "${workspaceFolder}/run"}}}))
    assert read_servers(path)["a"].target == [f"{(tmp_path / about).resolve()}/run"]


UNREADABLE: dict[str, tuple[bytes, str]] = {
    "no quotes": (b'{\n// servers\n"mcpServers": {a: 1}}', "no JSON object near line 3"),
    "half a comment": (b'{"mcpServers": {}} /* and', "no JSON object"),
    "two commas": (b'{"mcpServers": {},,\n}', "no JSON object near line 2"),
    "half of it": (b'{"mcpServers": ', "no JSON object"),
    "a list": (b"[]", "no JSON object"),
    "no text": (b"\xff\xfe{}", "no JSON object"),
    "deep": (b'{"a":' * 100_000, "no JSON object"),
    "too long": (b" " * (MAX_BYTES + 1), "longer than"),
    "no servers": (b'{"mcpserver": {}}', 'names no servers: it needs "mcpServers"'),
    "a list of servers": (b'{"servers": []}', "names no servers"),
    "too many": (json.dumps({"servers": {str(number): {} for number in range(101)}}).encode(), "names 101 servers"),
}


@pytest.mark.parametrize(("content", "words"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_file_that_is_none(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(content)
    with pytest.raises(SetupError, match=words):
        Clients(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"mcp\.json can't be read: No such file"):
        Clients(tmp_path / "mcp.json")


UNUSABLE: dict[str, tuple[Any, str]] = {
    "neither": ({}, '"command" or a "url", and not both'),
    "both": ({"command": "x", "url": "http://x"}, "not both"),
    "a number": (7, "it is no object"),
    "a command in a list": ({"command": ["x"]}, "`command` has the wrong type"),
    "words": ({"command": "x", "args": "--all"}, "`args` has the wrong type"),
    "a secret object": ({"command": "x", "env": {"KEY": {"s3cret": 1}}}, "`env.* has the wrong type"),
    "another type": ({"url": "http://x", "type": "carrier pigeon"}, '"type" is unknown'),
    "an environment file": ({"command": "x", "envFile": ".env"}, '"envFile" is not read here'),
    "a variable": ({"command": "x", "args": ["${NO_SUCH}"]}, "the variable NO_SUCH is not set"),
    "a variable of a header": ({"url": "http://x", "headers": {"A": "${env:NO_SUCH}"}}, "NO_SUCH is not set"),
    "a question": ({"command": "x", "env": {"KEY": "${input:key}"}}, "asks a person"),
    "NUL in the command": ({"command": "s3cret\0"}, '"command" holds a NUL'),
    "NUL in a word": ({"command": "x", "args": ["s3cret\0"]}, '"args" holds a NUL'),
    "NUL in a variable": ({"command": "x", "env": {"A": "s3cret\0"}}, '"env" holds a NUL'),
    "NUL in its name": ({"command": "x", "env": {"s3cret\0": ""}}, '"env" holds a NUL'),
    "NUL in the folder": ({"command": "x", "cwd": "s3cret\0"}, '"cwd" holds a NUL'),
    "a name with =": ({"command": "x", "env": {"A=s3cret": ""}}, '"env" has a name'),
    "a header with spaces": ({"url": "http://x", "headers": {"Bearer s3cret": ""}}, '"headers" hold a name'),
    "a header of two lines": ({"url": "http://x", "headers": {"A": "s3cret\n"}}, '"headers" hold a name'),
    "a password": ({"url": "http://me:s3cret@x"}, 'belong in an "Authorization"'),
    "something else": ({"command": "${command:pick s3cret}"}, "is not understood"),
}


@pytest.mark.parametrize(("entry", "words"), UNUSABLE.values(), ids=UNUSABLE.keys())
async def test_a_server_that_can_not_be_used(entry: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    async with Clients({"mcpServers": {"bad": entry}}) as clients:
        assert not clients
        assert isinstance(clients.failures["bad"], SetupError)
        assert "s3cret" not in str(clients.failures["bad"]) or "not understood" in words
    with pytest.raises(SetupError, match=f"The server 'bad' can't be .*{words}"):
        async with Clients({"mcpServers": {"bad": entry}}, strict=True):
            pass
