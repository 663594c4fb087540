"""Tasks of 2025-11-25, message by message, as hosts use them: a question comes once, on the stream of the session."""

import json
from typing import Any

import pytest

from http_wire import HttpExchange, HttpWire
from server_requests import accept, answer_to
from task_stage import CORE, RELATED, TaskStage, connected


async def say(wire: HttpWire, message: dict[str, Any]) -> None:
    assert (await wire.raw("POST", json.dumps(message).encode()).done()).status == 202


async def questions(stream: HttpExchange, count: int) -> list[dict[str, Any]]:
    """The next questions on a stream."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        message = await stream.message()
        if message["method"] == "elicitation/create":
            found.append(message)
    return found


@pytest.mark.rule("TASK-50", "TASK-53", "TASK-54", "TASK-55")
async def test_a_host_with_a_stream_is_asked_there_and_once() -> None:
    """It looks for the capability, asks for a task, polls it, and requests the result when it is asked something."""
    stage = TaskStage()
    async with connected(stage, "http", CORE) as client:
        wire: HttpWire = client.wire
        assert wire.welcome["capabilities"]["tasks"]["requests"]["tools"]["call"] == {}
        tools = {tool["name"]: tool for tool in (await client.ask("tools/list"))["tools"]}
        assert tools["greet_both"]["execution"] == {"taskSupport": "optional"}
        stream = wire.get()
        await stream.started()
        id = await client.begin("greet_both")
        asked = await questions(stream, 2)
        assert [each["params"]["_meta"][RELATED] for each in asked] == [{"taskId": id}] * 2
        assert (await client.get(id))["status"] == "input_required"
        waiting = wire.start("tasks/result", {"taskId": id})
        for each in asked:
            await say(wire, answer_to(each, accept(each["params"]["message"])))
        answer = (await waiting.done()).messages
        assert [message.get("method") for message in answer] == [None], "they were asked on the other stream"
        assert answer[0]["result"]["content"][0]["text"] == "One? and Two?"
        assert answer[0]["result"]["_meta"][RELATED] == {"taskId": id}
        assert (await client.get(id))["status"] == "completed"
        stream.leave()


@pytest.mark.rule("TASK-55")
async def test_a_host_on_a_pipe_is_asked_without_a_request_for_the_result() -> None:
    stage = TaskStage()
    async with connected(stage, "pipe", CORE) as client:
        wire = client.wire
        wire.send(wire.request("tools/call", client.call_params("greet_both")))
        asked: list[dict[str, Any]] = []
        while len(asked) < 2:
            message = await wire.receive()
            if message.get("method") == "elicitation/create":
                asked.append(message)
        (id,) = {each["params"]["_meta"][RELATED]["taskId"] for each in asked}
        for each in asked:
            wire.send(answer_to(each, accept(each["params"]["message"])))
        assert await client.text(id) == "One? and Two?"
