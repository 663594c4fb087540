"""What is copied says the same as what was called: to a shell, to Python, to the command line."""

import json
import shlex
from typing import Any

import pytest
from console_page import ConsolePage

from dovetail.cli.arguments import GivenArguments

pytestmark = pytest.mark.slow

CONTEXT = {
    "url": "http://127.0.0.1:8000/mcp", "revision": "2026-07-28", "isModern": True, "isNewest": True, "stamp": {},
    "token": False, "headers": [],
}  # fmt: skip


def copies(tab: ConsolePage, entry: dict[str, Any], **context: Any) -> dict[str, str]:
    told = tab.page.evaluate(
        """async (given) => {
          const { asCommand, asCurl, asPython } = await import("/console/static/copies.js");
          const [entry, context] = JSON.parse(given);
          const forms = { command: asCommand, curl: asCurl, Python: asPython };
          return Object.fromEntries(Object.entries(forms).map(([name, form]) => [name, form(entry, context)]));
        }""",
        json.dumps([entry, CONTEXT | context]),
    )
    assert isinstance(told, dict)
    return told


ANY = ["string", "integer", "number", "boolean", "null"]
TEXTS = [
    "5",
    "null",
    "true",
    "yes",
    "OFF",
    "+7",
    "1_000",
    " 5 ",
    "٥",
    "1e3",
    '"x"',
    "[1]",
    "@file",
    "plain",
    "a=b",
    "",
    "x y",
]


def test_a_text_is_the_same_text_on_the_command_line(tab: ConsolePage) -> None:
    values: dict[str, Any] = {f"text_{at}": text for at, text in enumerate(TEXTS)}
    values |= {"whole": 5, "half": 2.5, "flag": True, "nothing": None, "list": [1, "2"], "wrong": 5, "worse": False}
    wanted = {name: {"type": ANY} for name in values} | {"wrong": {"type": "string"}, "worse": {"type": "string"}}
    wanted["list"] = {"type": "array"}
    schema = {"type": "object", "properties": wanted}
    command = copies(tab, {"kind": "tool", "name": "t", "arguments": values}, inputSchema=schema)["command"]
    words = shlex.split(command)[4:]
    assert GivenArguments.read(words).typed(schema, "t") == values
    assert {"text_13=plain", "whole=5", "flag=true"} <= set(words)


def test_arguments_of_a_prompt_are_texts_whatever_they_look_like(tab: ConsolePage) -> None:
    values = {f"text-{at}": text for at, text in enumerate(TEXTS)}
    command = copies(tab, {"kind": "prompt", "name": "p", "arguments": values})["command"]
    assert GivenArguments.read(shlex.split(command)[4:]).texts() == values
    assert copies(tab, {"kind": "prompt", "name": "p", "arguments": {"--json": "x"}})["command"] is None


def test_who_we_are_is_said_once(tab: ConsolePage) -> None:
    entry = {"kind": "tool", "name": "t", "arguments": {}}
    for form, text in copies(tab, entry, token=True, headers=["authorization", "X-A"]).items():
        assert "HEADER_AUTHORIZATION" not in text
        assert "HEADER_X_A" in text
        assert ("DOVETAIL_CLIENT_TOKEN" in text) == (form != "command")  # which finds it by itself
    for text in copies(tab, entry, headers=["authorization"]).values():
        assert "HEADER_AUTHORIZATION" in text


def test_headers_of_like_names_have_variables_of_their_own(tab: ConsolePage) -> None:
    entry = {"kind": "tool", "name": "t", "arguments": {}}
    for text in copies(tab, entry, headers=["X-A", "X_A", "X.A-2", "X.A"]).values():
        for variable in ("HEADER_X_A", "HEADER_X_A_2", "HEADER_X_A_2_2", "HEADER_X_A_3"):
            assert f"${variable}" + '"' in text or f'["{variable}"]' in text
