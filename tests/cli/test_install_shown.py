"""What a person sees of a change before saying yes: the entry without its secrets, and of others only the names."""

import json
import random
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cli.installing.changes import difference
from dovetail.cli.installing.edits import ServerSection, merged
from dovetail.cli.installing.veil import veiled


def shown(text: str, name: str, new: dict[str, Any] | None, section: str = "mcpServers") -> str:
    servers = ServerSection(text, section)
    old = servers.entry(name)
    return "\n".join(difference("f", section, servers.outline, name, old, None if new is None else merged(old, new)))


def test_nothing_of_other_servers_is_shown_but_their_names() -> None:
    text = """{
  "apiKeys": ["neverShowThis"], // neverShowThis
  "mcpServers": {
    "one": {"command": "neverShowThis", "args": ["--key", "neverShowThis", "OPENAI_KEY=neverShowThis"]},
    /* neverShowThis */
    "two": {"env": {"PIN": 4711}, "url": "https://x/?sig=neverShowThis", "neverShowThis": 1}, // neverShowThis
    "three": {"headers": {"Authorization": "Basic neverShowThis"}},
    "four": "neverShowThis"
  },
  "last": "neverShowThis"
}
"""
    for name, new in (
        ("new", {"command": "x"}),
        ("two", {"command": "x"}),
        ("four", {"url": "https://x"}),
        ("two", None),
    ):
        seen = shown(text, name, new)
        assert "neverShowThis" not in seen.replace('"neverShowThis": "***"', "")  # a name in the entry itself
        assert "4711" not in seen
    assert shown(text, "two", None).splitlines() == [
        "--- f",
        "+++ f",
        " {",
        "   …",
        '   "mcpServers": {',
        '     "one": …',
        '-    "two": {',
        '-      "env": {',
        '-        "PIN": "***"',
        "-      },",
        '-      "url": "https://x/?sig=***",',
        '-      "neverShowThis": "***"',
        "-    }",
        '     "three": …',
        "     …",
        "   }",
        " }",
    ]


def test_the_change_of_a_file_of_one_line_is_seen() -> None:
    text = json.dumps({"history": ["x" * 50] * 100, "mcpServers": {"a": {"command": "a"}}})
    assert shown(text, "b", {"url": "https://example.com/mcp"}).splitlines()[2:] == [
        " {",
        "   …",
        '   "mcpServers": {',
        '     "a": …',
        '+    "b": {',
        '+      "url": "https://example.com/mcp"',
        "+    }",
        "   }",
        " }",
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", ["+{", '+  "s": {', '+    "b": {}', "+  }", "+}"]),
        ("{}", [" {", '+  "s": {', '+    "b": {}', "+  }", " }"]),
        ('{"s": {}}', [" {", '   "s": {', '+    "b": {}', "   }", " }"]),
        ('{"t": 1}', [" {", "   …", '+  "s": {', '+    "b": {}', "+  }", " }"]),
    ],
)
def test_the_place_of_a_new_entry_is_seen(text: str, lines: list[str]) -> None:
    assert shown(text, "b", {}, "s").splitlines()[2:] == lines


@pytest.mark.parametrize(
    ("key", "value", "seen"),
    [
        ("env", {"A": "hush", "n": 1, "b": True, "o": ""}, {"A": "***", "n": "***", "b": True, "o": ""}),
        ("env", {"A": "${A}", "B": "${env:B}", "C": "${C:-hush}"}, {"A": "${A}", "B": "${env:B}", "C": "***"}),
        ("env", {"PYTHONPATH": "/:/"}, {"PYTHONPATH": "/:/"}),
        ("headers", {"X": "hush"}, {"X": "***"}),
        ("timeout", 5, "***"),
        ("disabled", True, True),
        ("autoApprove", ["hush"], ["***"]),
        ("oauth", {"deep": {"deeper": "hush"}}, {"deep": "***"}),
        ("args", ["--token", "hush", "on"], ["--token", "***", "on"]),
        ("args", ["--pat", "hush", "-k", "hush", "-khush"], ["--pat", "***", "-k", "***", "***"]),
        ("args", ["--api-key=hush", "-k=hush", "OPENAI_KEY=hush"], ["--api-key=***", "-k=***", "OPENAI_KEY=***"]),
        ("args", ["-H", "Authorization: Basic hush"], ["-H", "***"]),
        ("args", ["Authorization: Basic hush", "some words"], ["Authorization: ***", "***"]),
        ("args", ["postgres://me:hush@db/x", "me:hush@db"], ["postgres://***@db/x", "***"]),
        ("args", ["ghp_hush", "a1b2c3d4e5f6a7b8c9d0", 7], ["***", "***", "***"]),
        ("args", ['{"key":"hush"}', "x" * 500], ["***", "***"]),
        ("args", "hush", "***"),
        ("args", ["token:hush", "API_KEY:hush/hush", "x.tokens;hush"], ["token:***", "API_KEY:***", "x.tokens;***"]),
        ("args", ["image:latest", "localhost:8000", "a.b:server"], ["image:latest", "localhost:8000", "a.b:server"]),
        ("args", ["aHVzaGh1c2hodXNoaHVzaA==", "URL=https://me:hush@x"], ["***=***", "URL=***"]),
        ("args", ["me:hu=sh@db", "-token", "hush", "--", "on"], ["***", "***", "***", "--", "on"]),
        ("url", "https://me:hush@x.com:80/mcp?sig=hush&a#hush", "https://***@x.com:80/mcp?sig=***&***#***"),
        ("url", "https://example.com/s/a1b2c3d4e5f6a7b8c9d0/mcp", "https://example.com/s/***/mcp"),
        ("url", "https://example.com/@user/mcp", "https://example.com/@user/mcp"),
        ("url", "https://example.com/mcp;token=hush", "https://example.com/mcp;***"),
        ("url", "https://example.com/token=hush/mcp", "https://example.com/token=***"),
        ("url", "https://example.com/token:hush", "https://example.com/token:***"),
        ("url", "HTTPS://Example.com/mcp", "HTTPS://Example.com/mcp"),
        ("url", "${env:MCP_URL}", "${env:MCP_URL}"),
        ("url", "https://${env:HOST}/${env:MY_LONG_PATH_2}/mcp", "https://${env:HOST}/${env:MY_LONG_PATH_2}/mcp"),
        ("url", 5, "***"),
        ("httpUrl", "http://[hush", "***"),
        ("command", "npx", "npx"),
    ],
)
def test_what_is_hidden_of_an_entry(key: str, value: Any, seen: Any) -> None:
    assert veiled({key: value}) == {key: seen}
    assert veiled("hush") == "***"


@pytest.mark.parametrize(
    ("command", "words", "seen"),
    [
        ("npx", "-y @scope/pkg@1.2 /srv", "-y @scope/pkg@1.2 /srv"),
        ("npx", "-y my-server -t hush", "-y my-server -t ***"),
        ("/usr/bin/python3.12", "-m dovetail.cli run /", "-m dovetail.cli run /"),
        ("python", "-m server -t hush -i hush", "-m server -t *** -i ***"),
        ("uv", "run --with mcp --with httpx app -m hush", "run --with mcp --with httpx app -m ***"),
        ("uvx", "--from git+https://x.org/y app --from hush", "--from git+https://x.org/y app --from ***"),
        ("docker", "run -e KEY --rm -it image -t hush", "run -e *** --rm -it image -t ***"),
        ("docker", "run --privileged hush -t hush", "run --privileged *** -t ***"),
        ("my-server", "-y hush", "-y ***"),
        ("run", "-y hush", "-y ***"),
    ],
)
def test_names_are_shown_behind_options_of_a_launcher_only(command: str, words: str, seen: str) -> None:
    assert veiled({"command": command, "args": words.split()}) == {"command": command, "args": seen.split()}


def test_random_letters_are_hidden_wherever_they_stand() -> None:
    chance = random.Random(1)
    alphabet = string.ascii_letters + string.digits + "-_"
    secrets = ["".join(chance.choices(alphabet, k=22)).replace("-", "x", 1) for _ in range(2_000)]
    secrets = [f"x{secret[1:]}" for secret in secrets]  # an option is hidden as such
    seen = [veiled({"args": [secret]})["args"] == ["***"] for secret in secrets]
    assert seen.count(False) <= 20
    for secret, is_hidden in zip(secrets, seen, strict=True):
        shown = veiled({"url": f"https://x.org/s/{secret}/mcp"})["url"]
        assert shown == (f"https://x.org/s/{'***' if is_hidden else secret}/mcp")


@pytest.mark.parametrize(
    "word",
    [
        *("@modelcontextprotocol/server-sequential-thinking", "@modelcontextprotocol/server-filesystem@2025.8.21"),
        *("ghcr.io/github/github-mcp-server:latest", "mcp-server-2024-08-21-x86-64", "src/myGreatServerForThings.py"),
        *("claude_desktop_config.json", "./build/index.js", "awslabs.aws-documentation-mcp-server@latest"),
    ],
)
def test_names_that_people_have_chosen_are_shown(word: str) -> None:
    assert veiled({"args": [word]}) == {"args": [word]}


@given(
    st.sampled_from(["env", "headers", "oauth", "x"]), st.text(min_size=1), st.sampled_from(["dict", "list", "plain"])
)
def test_no_value_of_a_key_that_is_not_known_is_shown(key: str, value: str, shape: str) -> None:
    secret = f"hush{value}"
    given_value = {"dict": {"name": secret}, "list": [secret], "plain": secret}[shape]
    assert "hush" not in json.dumps(veiled({key: given_value}))


def test_a_large_file_is_shown_as_a_small_one() -> None:
    text = json.dumps({"history": [{"n": n} for n in range(5_000)], "mcpServers": {"a": {}}}, indent=2)
    assert len(shown(text, "b", {"url": "https://x"}).splitlines()) == 11
