"""The log as lines of JSON, and each request at DEBUG: of real servers, under any text that their tools log."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processes import HELLO, META, HttpProgram, Program, http_programs, programs, request
from secret_examples import ALL_SECRETS, KEYED, TEXTS

PROGRAM = Path(__file__).parent / "programs" / "talkative.py"
DEBUG = {"DOVETAIL_LOG_LEVEL": "DEBUG"}
JSON = {"DOVETAIL_LOG_FORMAT": "json"}
MARKS = list(map(ord, '\\"{}[]:,%\n\r\t\0\x1b\x7f\x85\u2028\u202e\ud800\udfff\U0010ffff aä中'))
KEY = "a" * 32
DIGEST = "sha256:3ba3f5f43b92602683c19aee62a20342b084dd5971ddd33808d81a328879a547"


@pytest.fixture
def start() -> Iterator[Any]:
    with programs() as start, http_programs() as start_http:

        def any_of(**options: Any) -> Any:
            if "transport" not in options:
                return start(PROGRAM, **options)
            return start_http(command=[sys.executable, str(PROGRAM), json.dumps(options)])

        yield any_of


def ended(program: Program | HttpProgram) -> str:
    """All that a program has written to stderr, once it has ended."""
    if isinstance(program, Program):
        program.ends()
    else:
        program.process.terminate()
        program.exits()
    said = program.said
    program.errors.clear()  # which hold the tracebacks that were asked for
    return said


def records(said: str) -> list[dict[str, Any]]:
    """The lines, each of them an object; `splitlines` would split at characters that end no line of a log."""
    lines = said.removesuffix("\n").split("\n")
    assert all(len(each.encode()) <= 64 * 1024 for each in lines)
    found = list(map(json.loads, lines))
    assert all(isinstance(each, dict) and {"time", "level", "logger", "message"} <= each.keys() for each in found)
    return found


any_text = st.lists(st.sampled_from(MARKS) | st.integers(0, 0x10FFFF), max_size=60)


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_each_line_is_json_whatever_tools_log_return_and_raise(start: Any, transport: str) -> None:
    program = start(environment={**JSON, **DEBUG}, **({} if transport == "stdio" else {"transport": transport}))
    asked: list[str] = []

    @given(st.sampled_from(["speak", "fail"]), any_text)
    def ask(tool: str, codes: list[int]) -> None:
        program.call(tool, codes=codes)
        asked.append(tool)

    ask()
    for huge in ([34] * 60_000, [0x202E] * 30_000, [0x10FFFF] * 20_000, [10, 0xD800] * 20_000):
        program.call("speak", codes=huge)
        program.call("fail", codes=huge)
        asked += ["speak", "fail"]
    found = records(ended(program))
    of_tools = [each for each in found if each["logger"] == "dovetail.talkative"]
    assert len(of_tools) == 3 * asked.count("speak")
    assert all(each["tool"] == "speak" and each["method"] == "tools/call" for each in of_tools)
    failed = [each for each in found if "exception" in each]
    assert len(failed) == asked.count("fail")
    assert all(each["exception"].startswith("Traceback (most recent call last):\n  File") for each in failed)
    assert len([each for each in found if "audit" in each]) == len(asked)


def test_a_line_names_its_request(start: Any) -> None:
    program = start(transport="http", environment=JSON, keys={"alice": DIGEST})
    bearer = {"authorization": f"Bearer {KEY}"}
    opened = program.post("initialize", HELLO, **bearer)
    opened.read()
    session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18", **bearer}
    call = {"name": "speak", "arguments": {"codes": [104, 105]}}
    program.post("tools/call", call, **session).read()
    program.post("tools/call", call).read()  # refused: 401
    program.get("/health")
    said = ended(program)
    assert KEY not in said
    assert session["mcp-session-id"] not in said
    found = records(said)
    assert found[0]["message"].startswith("talkative serves MCP at http://127.0.0.1:")
    spoken = [each for each in found if each["logger"] == "dovetail.talkative"]
    (audited,) = [each for each in found if each.get("audit", {}).get("name") == "speak"]
    of_call = {"request_id": 1, "session": audited["audit"]["session"], "method": "tools/call", "tool": "speak"}
    for each in (*spoken, audited):
        assert {name: each[name] for name in of_call} == of_call
        assert each["principal"] == "alice"
        assert each["duration_ms"] >= 0
    assert sorted(each["message"] for each in spoken) == ["hi", "hi", "noted ['hi']"]
    assert audited["message"] == "tools/call ok"
    access = [each for each in found if each["logger"] == "dovetail.access"]
    assert [each["status"] for each in access] == [200, 200, 401, 200]
    assert [each.get("tool") for each in access] == [None, "speak", None, None]
    assert access[-1]["message"].endswith('"GET /health HTTP/1.1" 200')
    assert all(each["duration_ms"] >= 0 for each in access)


def test_the_supervisor_of_workers_writes_json_too(start: Any) -> None:
    program = start(transport="http", environment=JSON, workers=2)
    program.call("speak", codes=[104])
    messages = [each["message"] for each in records(ended(program))]
    assert messages[0].startswith("talkative serves MCP at ")
    assert "h" in messages


@pytest.mark.parametrize("environment", [DEBUG, {**DEBUG, **JSON}], ids=["text", "json"])
def test_no_secret_is_in_the_log_at_debug(start: Any, environment: dict[str, str]) -> None:
    program = start(environment=environment)
    program.call("repeat", value=KEYED)
    for key, secret in KEYED.items():
        program.send(request(f"{key}={secret}", "tools/call", {"name": f"{key}={secret}", "_meta": META}))
        program.receive()
    for text, _ in TEXTS:
        program.call("repeat", value={"text": [text]})
        program.call("repeat", value=text)
        program.call("refuse", text=text)
        program.send(request(text, "resources/read", {"uri": f"note://{text}", "_meta": META}))
        program.receive()
        program.send(request(text, text, {"_meta": META}))
        program.receive()
    said = ended(program)
    assert said.count("repeat") > 2 * len(TEXTS)
    assert not [each for each in ALL_SECRETS if each in said]
    if "DOVETAIL_LOG_FORMAT" in environment:
        shown = [str(each) for each in records(said)]
        assert not [text for text, _ in TEXTS if any(text in each for each in shown)]


def test_at_debug_each_request_and_each_response_is_one_line(start: Any) -> None:
    program = start(environment=DEBUG)
    program.call("speak", codes=[104, 10, 105])
    program.send(request("x", "tools/call", {"name": "speak", "arguments": {"codes": "none"}, "_meta": META}))
    program.receive()
    program.send(
        request(7, "tools/call", {"name": "unknown", "_meta": META}), request(8, "prompts/list", {"_meta": META})
    )
    program.receive(), program.receive()
    program.send(request(9, "unknown/method", {"_meta": META}))
    program.receive()
    told = (line.partition(" DEBUG dovetail: ")[2] for line in ended(program).splitlines())
    of_all = r'"(resultType|isError)":[^,}]*,|,"(isError)":[^,}]*|,"_meta":{[^}]*}}'
    assert [re.sub(of_all, "", re.sub(r"\d+\.\d ms", "N ms", each)) for each in told if each] == [
        '1 tools/call speak {"codes":[104,10,105]}',
        '1 tools/call speak: ok in N ms {"content":[{"type":"text","text":"h\\ni"}]}',
        'x tools/call speak {"codes":"none"}',
        'x tools/call speak: tool_error in N ms {"content":[{"type":"text","text":"Invalid arguments for speak:\\n'
        '- codes: expected an array, got the string \\"none\\""}]}',
        "7 tools/call unknown {}",
        "7 tools/call unknown: error -32602 in N ms Unknown tool: unknown",
        "8 prompts/list",
        '8 prompts/list: ok in N ms {"prompts":[{"name":"ask","arguments":[{"name":"topic","required":true}]}],'
        '"ttlMs":0,"cacheScope":"private"}',
        "a message is refused: Method not found: unknown/method",
    ]


def test_an_unknown_format_is_refused(start: Any) -> None:
    program = start(environment={"DOVETAIL_LOG_FORMAT": "xml"})
    assert program.exits() == 1
    said = program.said
    program.errors.clear()
    assert "DOVETAIL_LOG_FORMAT='xml' is not possible; it must be text or json" in said
