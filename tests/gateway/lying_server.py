"""A backend by hand that lies, in the way that its first argument names; its second one is its era."""

import json
import sys
from typing import Any

LIE, ERA = sys.argv[1], sys.argv[2]
ended: list[str] = []  # secrets of calls
GOOD = {"name": "good", "inputSchema": {"type": "object"}}


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def tools(cursor: str | None) -> dict[str, Any]:
    huge = {"name": "huge", "inputSchema": {"type": "object", "description": "x" * 300_000}}
    lists: dict[str, list[Any]] = {
        "items": [5, {"name": "no schema"}, {**GOOD, "name": "bad name!"}, {**GOOD, "inputSchema": 5}, huge,
                  {"name": "list", "inputSchema": {"type": "array"}}, GOOD, {**GOOD, "title": "again"},
                  {**GOOD, "name": "odd_icon", "icons": [{"src": "http://x.example/a.png"}]},
                  {**GOOD, "name": "odd_output", "outputSchema": {"type": "string", "$ref": 5}}],
    }  # fmt: skip
    if LIE == "pages":
        number = int(cursor or 0)
        return {"tools": [{**GOOD, "name": f"tool{number}"}], "nextCursor": str(number + 1)}
    return {"tools": lists.get(LIE, [GOOD])}


def call(id: Any, params: dict[str, Any]) -> None:
    content: Any = [{"type": "text", "text": "ok"}]
    if LIE == "progress":
        token = params.get("_meta", {}).get("progressToken")
        for number in range(20_000):
            progress = {"progressToken": token, "progress": number, "message": "x" * 100}
            say(method="notifications/progress", params=progress)
    if LIE in ("sampling", "roots", "odd_form", "no_form"):
        question = {
            "sampling": ("sampling/createMessage", {"messages": [], "maxTokens": 1}),
            "roots": ("roots/list", {}),
            "odd_form": ("elicitation/create", {"message": "?", "requestedSchema": {"properties": {"a": 5}}}),
            "no_form": ("elicitation/create", {"mode": "url", "message": "?", "url": "https://a@b.example"}),
        }[LIE]
        say(id="q", method=question[0], params=question[1])
        answer = json.loads(sys.stdin.readline())
        content = [{"type": "text", "text": json.dumps(answer.get("error", answer.get("result")))}]
    if LIE == "silent":
        return
    if LIE == "late_log":
        for secret in ended:
            say(method="notifications/message", params={"level": "error", "data": secret})
        ended.append(f"of {params['arguments']['who']}")
    results: dict[str, Any] = {
        "content": {"content": 5},
        "block": {"content": [{"type": "text", "text": 5}]},
        "kind": {"content": [{"type": "hologram"}]},
        "structured": {"content": [], "structuredContent": 5},
        "type": {"resultType": "surprise", "content": []},
        "nothing": {"resultType": "input_required"},
        "asks_sampling": {
            "resultType": "input_required",
            "inputRequests": {"a": {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}},
            "requestState": "s",
        },
    }
    if LIE == "error":
        say(id=id, error={"code": -32050, "message": "bad\nline " + "x" * 2000, "data": {"why": 1}})
    else:
        say(id=id, result=results.get(LIE, {"content": content}))


def main() -> None:
    if LIE == "question_outside":
        say(id="q", method="elicitation/create", params={"message": "?", "requestedSchema": {"properties": {}}})
    while line := sys.stdin.readline():
        message = json.loads(line)
        method, id, params = message.get("method"), message.get("id"), message.get("params", {})
        info = {"name": "liar", "version": "0"}
        if method == "server/discover" and ERA == "2026-07-28":
            say(id=id, result={"supportedVersions": [ERA], "capabilities": {"tools": {}}})
        elif method == "initialize" and ERA != "2026-07-28":
            if LIE == "slow_start":
                sys.stdin.read()  # no response ever
            result = {"protocolVersion": ERA, "capabilities": {"tools": {}}, "serverInfo": info}
            say(id=id, result=result)
        elif method == "tools/list" and LIE == "no_lists":
            say(id=id, result={"tools": 5})
        elif method == "tools/list":
            say(id=id, result=tools(params.get("cursor")))
        elif method == "tools/call":
            call(id, params)
        elif method == "ping":
            say(id=id, result={})
        elif id is not None and method is not None:
            say(id=id, error={"code": -32601, "message": "no"})


main()
