"""A server that asks and asks, and never takes the answers: it is given up before they fill the memory."""

import asyncio
import sys
from typing import Any
from unittest.mock import Mock

import pytest
from served_http import Scripted, Visit, handshake, until

from dovetail import Client
from dovetail.client import links, posting, process
from dovetail.errors import ConnectionLost

pytestmark = pytest.mark.usefixtures("tidy")

# Shakes hands, then asks without an end and never reads again.
ASKING = """
import json, sys
first = json.loads(sys.stdin.readline())
info = {"name": "asking", "version": "0"}
welcome = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info}
print(json.dumps({"jsonrpc": "2.0", "id": first["id"], "result": welcome}), flush=True)
question = json.dumps({"jsonrpc": "2.0", "id": "p" * 2000, "method": METHOD})
try:
    while True:
        print(question)
except OSError:
    pass
"""


@pytest.mark.parametrize("method", ["ping", "no/such"])
async def test_over_a_pipe(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LEAVE_SECONDS", 0.1)
    program = [sys.executable, "-c", f"METHOD = {method!r}\n{ASKING}"]
    async with Client(program, protocol_version="2025-11-25") as client, asyncio.timeout(20):
        with pytest.raises(ConnectionLost, match="the server asks, and does not read the answers"):
            await client.request("never/answered")
        link: Any = client._channel._link
        assert link._child.stdin.get_write_buffer_size() < 3_000_000


async def test_only_answers_count_and_only_those_since_it_stopped_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_UNREAD", 2)
    receiver, answer = Mock(), b'{"jsonrpc":"2.0","id":1,"result":{}}'
    child = process._Child("any", receiver)
    child.stdin = Mock()

    def tell(*messages: bytes) -> None:
        child.pause_writing()
        for message in messages:
            child.write(message)

    tell(*[b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}'] * 10, answer, answer)
    child.resume_writing()
    for _ in range(10):
        child.write(answer)
    tell(answer, answer)
    receiver.lost.assert_not_called()
    tell(answer)
    receiver.lost.assert_called_once_with(links.UNREAD)


class Asking:
    """Asks so much on the stream of an answer; `takes` says whether it takes what it is told."""

    def __init__(self, method: str, questions: int, *, takes: bool) -> None:
        self.method, self.questions, self.takes = method, questions, takes
        self.answers = 0
        self.call: Visit | None = None

    async def __call__(self, visit: Visit) -> None:
        if visit.verb == "POST" and visit.method is None:
            self.answers += 1
            await self.take(visit)
        elif not handshake(visit, "2025-11-25"):
            self.call = visit
            visit.stream()
            for number in range(self.questions):
                visit.event({"jsonrpc": "2.0", "id": f"p{number}", "method": self.method})
            await visit.gone()

    async def take(self, visit: Visit) -> None:
        if not self.takes:
            await visit.gone()
            return
        visit.answer(202)
        if self.answers == self.questions and self.call is not None:
            done = {"content": [{"type": "text", "text": "done"}]}
            self.call.event({"jsonrpc": "2.0", "id": self.call.message["id"], "result": done})
            self.call.end()


@pytest.mark.parametrize("method", ["ping", "no/such"])
async def test_over_http(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting, "LEAVE_SECONDS", 0.1)
    behave = Asking(method, 1_500, takes=False)
    async with Scripted(behave) as server, Client(server.url, protocol_version="2025-11-25", timeout=10) as client:
        with pytest.raises(ConnectionLost, match="the server asks, and does not read the answers"):
            await client.call_tool("any")
        link: Any = client._channel._link
        assert len(link._newer._errands) == links.MAX_UNREAD + 1
        await until(lambda: behave.answers == posting.MAX_ANSWERS)
        await asyncio.sleep(0.05)
        assert behave.answers == posting.MAX_ANSWERS  # no more are on their way


async def test_much_in_one_breath() -> None:
    behave = Asking("ping", 300, takes=True)
    async with Scripted(behave) as server, Client(server.url, protocol_version="2025-11-25", timeout=10) as client:
        assert (await client.call_tool("any")).text == "done"
    assert behave.answers == 300


async def test_one_that_reads_may_ask_as_much_as_it_likes() -> None:
    program = [sys.executable, "-c", READING]
    async with Client(program, protocol_version="2025-11-25") as client:
        assert (await client.request("ask/much"))["answers"] == 5000


READING = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        info = {"name": "reading", "version": "0"}
        welcome = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": welcome}), flush=True)
    elif message.get("method") == "ask/much":
        for number in range(50):
            for part in range(100):
                print(json.dumps({"jsonrpc": "2.0", "id": f"{number}-{part}", "method": "ping"}))
            sys.stdout.flush()
            for part in range(100):
                assert json.loads(sys.stdin.readline())["result"] == {}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"answers": 5000}}), flush=True)
"""
