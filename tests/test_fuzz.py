"""Throws mutated messages at a server and checks the rules for bad input.

Every request whose id can be read is answered once, with that id; what is no JSON is answered with
-32700 and what is no message with -32600; notifications and answers are met with silence; no error says anything about
our insides; and afterwards a good request works.
"""

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest

from dovetail import Context, Server
from dovetail.protocol import revisions
from wire import Wire

CODES = {-32700, -32600, -32601, -32602, -32603, -32002, -32020, -32021, -32022}
INSIDES = ("Traceback", "msgspec", "jsonschema", "pydantic", ".py", "Error:", "Exception", "0x7", "object at")
CHUNK = 200
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def fuzz_server() -> Server:
    server = Server("fuzz", version="1.0.0", page_size=2)

    @server.tool(thread=False)
    def add(a: int, b: int = 2) -> int:
        return a + b

    @server.tool
    async def search(query: str, tags: list[str] = [], limit: float | None = None) -> dict[str, Any]:  # noqa: B006
        return {"query": query, "tags": tags, "limit": limit}

    @server.tool
    async def chatty(ctx: Context) -> str:
        await ctx.report_progress(1, 2, "half")
        await ctx.info({"password": "hunter2"})
        return "done"

    @server.tool(thread=False)
    def broken() -> str:
        raise RuntimeError("the secret inside")

    @server.resource("notes://all")
    async def all_notes() -> list[str]:
        return ["a", "b"]

    @server.resource("notes://{note}")
    async def one_note(note: str) -> str:
        return note

    @server.prompt
    async def review(code: str, count: int = 1) -> str:
        return code * count

    @server.completion(prompt="review", argument="code")
    async def codes(value: str) -> list[str]:
        return [value + "1", value + "2"]

    return server


SEEDS: list[tuple[str, dict[str, Any]]] = [
    ("ping", {}),
    ("server/discover", {}),
    ("tools/list", {"cursor": ""}),
    ("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}),
    ("tools/call", {"name": "search", "arguments": {"query": "x", "tags": ["a"], "limit": 1.5}}),
    ("tools/call", {"name": "chatty", "arguments": {}, "_meta": {"progressToken": "t"}}),
    ("tools/call", {"name": "broken"}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("resources/read", {"uri": "notes://all"}),
    ("resources/read", {"uri": "notes://seven"}),
    ("resources/subscribe", {"uri": "notes://all"}),
    ("resources/unsubscribe", {"uri": "notes://all"}),
    ("prompts/list", {}),
    ("prompts/get", {"name": "review", "arguments": {"code": "x", "count": "3"}}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "review"}, "argument": {"name": "code", "value": ""}},
    ),
    ("logging/setLevel", {"level": "debug"}),
    ("subscriptions/listen", {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["notes://all"]}}),
    ("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "f", "version": "1"}}),
    ("notifications/cancelled", {"requestId": 5, "reason": "why not"}),
    ("notifications/initialized", {}),
    ("notifications/progress", {"progressToken": 1, "progress": 1}),
]
ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 2**70, -(2**70), 1e308, "", "x", "x" * 5000, "\x00", "é😀", "2026-07-28",
    "../../etc", [], {}, [1], {"a": {"b": [None]}}, [[[[[[]]]]]], "notes://%2F", "%00", "{", "add", "debug",
]  # fmt: skip


class Mutator:
    """Makes messages that are wrong in one or a few places."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.next_id = 0

    def message(self) -> bytes:
        self.next_id += 1
        method, params = self.random.choice(SEEDS)
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": json.loads(json.dumps(params))}
        if not method.startswith("notifications/"):
            message["id"] = self.next_id if self.random.random() < 0.7 else f"s{self.next_id}"
        if self.random.random() < 0.5:
            message["params"]["_meta"] = {**message["params"].get("_meta", {}), **META}
        value: Any = message
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 3))):
            value = self._mutate(value)
        if self.random.random() < 0.05:
            value = [value, message]
        data = json.dumps(value, ensure_ascii=self.random.random() < 0.5).encode("utf-8", "surrogatepass")
        return self._mutate_bytes(data) if self.random.random() < 0.3 else data

    def _mutate(self, value: Any) -> Any:
        place = self.random.random()
        if isinstance(value, dict) and value and place < 0.85:
            key = self.random.choice(list(value))
            choice = self.random.random()
            if choice < 0.55:
                return {**value, key: self._mutate(value[key])}
            if choice < 0.7:
                return {k: v for k, v in value.items() if k != key}
            if choice < 0.8:
                return {**value, self.random.choice(("id", "method", "result", "error", "x", "name")): self._odd()}
            return {**value, key: self._odd()}
        if isinstance(value, list) and value and place < 0.6:
            index = self.random.randrange(len(value))
            return [*value[:index], self._mutate(value[index]), *value[index + 1 :]]
        return self._odd()

    def _odd(self) -> Any:
        return self.random.choice(ODD)

    def _mutate_bytes(self, data: bytes) -> bytes:
        mutable = bytearray(data)
        for _ in range(self.random.randint(1, 4)):
            index = self.random.randrange(len(mutable) + 1)
            kind = self.random.random()
            if kind < 0.4 and index < len(mutable):
                mutable[index] = self.random.randrange(256)
            elif kind < 0.6:
                mutable[index:index] = bytes(self.random.randrange(256) for _ in range(self.random.randint(1, 3)))
            elif kind < 0.8:
                del mutable[index : index + self.random.randint(1, 20)]
            else:
                mutable[index:index] = self.random.choice((b"[" * 3000, b'{"a":' * 3000, b"\\ud800", b"NaN", b"\xff"))
        return bytes(mutable).replace(b"\n", b" ")


NO_ID = "without an id"  # an answer to a message whose id can't be read
SILENCE = "silence"


def expected(data: bytes) -> Any:
    """The id that a message must be answered with: one with its type, none, silence; None if unknown."""
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError):
        return SILENCE if not data.strip() else NO_ID
    if b"\\ud" in data.lower() or b"NaN" in data or b"Infinity" in data or b"e3" in data or b"E3" in data:
        return None  # Python's reader accepts what JSON does not
    if isinstance(value, list):
        return None
    return _expected_of(value)


def _expected_of(value: Any) -> Any:
    if not isinstance(value, dict):
        return NO_ID
    method, id = value.get("method"), value.get("id")
    good_id = isinstance(id, str | int) and not isinstance(id, bool)
    if "method" not in value:
        return None  # an answer of the client's, good or bad: never answered by id
    if "id" in value and not good_id:
        return NO_ID
    if "id" in value:
        return (type(id).__name__, id)
    wrong = value.get("jsonrpc") != "2.0" or not isinstance(method, str) or "result" in value or "error" in value
    return NO_ID if wrong else SILENCE


async def fuzz(count: int, seed: int) -> None:
    mutator = Mutator(seed)
    versions: list[str | None] = [None, *revisions.SUPPORTED]
    for start in range(0, count, 5 * CHUNK):
        async with Wire(fuzz_server(), versions[(start // (5 * CHUNK)) % len(versions)]) as wire:
            wire.grace = 0  # open listens would use it all
            for _ in range(5):
                await _fuzz_chunk(wire, [mutator.message() for _ in range(CHUNK)])
        if start % 100_000 == 0 and count > 100_000:
            print(f"fuzzed {start:,} of {count:,}")  # noqa: T201


async def _fuzz_chunk(wire: Wire, messages: list[bytes]) -> None:
    wanted = [expected(message) for message in messages]
    for message in messages:
        wire.send(message)
    await _settle(wire)
    answers: list[Any] = []
    while not wire.lines.empty():
        line = json.loads(wire.lines.get_nowait())
        answers.extend(line if isinstance(line, list) else [line])
    for answer in answers:
        _check_answer(answer)
    _check_counts(messages, wanted, [answer for answer in answers if "method" not in answer])
    params = {"name": "add", "arguments": {"a": 1}, "_meta": META}
    pong = await wire.exchange({"jsonrpc": "2.0", "id": "still-alive", "method": "tools/call", "params": params})
    assert pong["result"]["structuredContent"] == 3


async def _settle(wire: Wire) -> None:
    """Until everything but open listens has been answered."""
    for _ in range(2000):
        await asyncio.sleep(0)
        busy = [
            call
            for call in wire.connection._calls.values()
            if call.context is not None and call.context.request.method != "subscriptions/listen"
        ]
        if not busy and not wire.connection._background:
            return
    raise AssertionError(f"requests hang: {[call.context.request for call in busy]}")


def _check_answer(answer: Any) -> None:
    if "error" in answer:
        assert answer["error"]["code"] in CODES, answer
    text = json.dumps({key: value for key, value in answer.items() if key != "id"})
    assert "secret inside" not in text
    assert "hunter2" not in text
    if "error" in answer:
        for word in INSIDES:
            assert word not in answer["error"]["message"], answer


def _check_counts(messages: list[bytes], wanted: list[Any], answers: list[Any]) -> None:
    got = Counter(
        (type(answer["id"]).__name__, answer["id"]) if answer.get("id") is not None else NO_ID for answer in answers
    )
    if None in wanted:  # something the oracle can't judge was among them: only demand that all others are answered
        floor = Counter(want for want in wanted if want not in (None, SILENCE))
    else:
        floor = Counter(want for want in wanted if want is not SILENCE)
        surplus = got - floor
        assert not surplus, f"answers without a request: {surplus}"
    excused = _cancelled(messages) | _listening(messages, wanted)
    lost = {want: number for want, number in (floor - got).items() if want not in excused}
    assert not lost, f"not answered: {lost}"


def _cancelled(messages: list[bytes]) -> set[Any]:
    """The requests that some message of the chunk cancels: they may be met with silence."""
    ids = set()
    for message in messages:
        if b"cancelled" in message:
            try:
                value = json.loads(message)
                for item in value if isinstance(value, list) else [value]:
                    id = item["params"]["requestId"]
                    ids.add((type(id).__name__, id))
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
    return ids


def _listening(messages: list[bytes], wanted: list[Any]) -> set[Any]:
    """A listen is answered only when it ends."""
    return {want for want, message in zip(wanted, messages, strict=True) if b"listen" in message} - {NO_ID, SILENCE}


@pytest.mark.seed("S2-74", "S2-75")
@pytest.mark.slow
@pytest.mark.rule("BASE-3", "BASE-6", "BASE-10", "BASE-20")
async def test_ten_thousand_bad_messages() -> None:
    await fuzz(10_000, seed=20260728)


@pytest.mark.soak
async def test_a_million_bad_messages() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    await fuzz(1_000_000, seed)
