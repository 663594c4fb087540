"""How questions reach a client of a session over HTTP, and what a tool hears where no way leads back to the client."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from asking_program import Notes, answered, new_call
from dovetail import Server
from http_serving import serving
from http_stage import text_of
from http_wire import Exchange, HttpWire
from programs_sdk.asking import create_server

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates:DeprecationWarning")

SESSIONS = ("2025-03-26", "2025-06-18", "2025-11-25")
WITH_FORMS = SESSIONS[1:]
CAPABILITIES = {"elicitation": {}, "sampling": {}, "roots": {}}
JSON_ONLY = "application/json"
AT_ONCE = 2.0  # seconds; whoever waits for an answer waits an hour
every_session = pytest.mark.parametrize("version", SESSIONS)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture
def server(notes: Notes) -> Server:
    return create_server(notes.path)


class Client:
    """A client of a session that answers what it reads on a stream by POSTs, as all do."""

    def __init__(self, wire: HttpWire) -> None:
        self.wire = wire
        self.asked: list[str] = []

    async def answer(self, stream: Exchange) -> None:
        """One question."""
        while "id" not in (question := await stream.message()):
            continue
        self.asked.append(question["method"])
        reply = {"jsonrpc": "2.0", "id": question["id"], "result": answered(question)}
        assert (await self.wire.raw("POST", json.dumps(reply).encode()).done()).status == 202


async def connect(app: Any, version: str, accept: str | None = None) -> Client:
    options = {} if accept is None else {"accept": accept}
    return Client(await HttpWire.session(app, version, capabilities=CAPABILITIES, **options))


# ── there is a way ──


@pytest.mark.parametrize("version", WITH_FORMS)
async def test_questions_come_on_the_stream_of_the_call(server: Server, notes: Notes, version: str) -> None:
    async with serving(server) as app:
        client, call = await connect(app, version), new_call()
        running = client.wire.start_call("plan", {"call": call})
        for _ in range(3):
            await client.answer(running)
        await running.done()
        assert "3 nights in Rome" in text_of(running.answer)
        assert client.asked == ["elicitation/create", "elicitation/create", "sampling/createMessage"]
        assert notes.steps(call) == ["reserve", "book"]


@pytest.mark.parametrize("version", WITH_FORMS)
async def test_who_reads_json_only_is_asked_on_the_stream_it_gets(server: Server, notes: Notes, version: str) -> None:
    async with serving(server) as app:
        client, call = await connect(app, version, JSON_ONLY), new_call()
        listening = await client.wire.get(headers={"accept": "text/event-stream"}).started()
        assert listening.status == 200
        running = client.wire.start_call("plan", {"call": call})
        for _ in range(3):
            await client.answer(listening)
        await running.done()
        assert "3 nights in Rome" in text_of(running.json)
        assert notes.steps(call) == ["reserve", "book"]
        listening.leave()


@every_session
async def test_every_session_samples_and_lists_roots(server: Server, version: str) -> None:
    async with serving(server) as app:
        client = await connect(app, version)
        for name, arguments, words in (
            ("praise", {"call": new_call()}, "lovely"),
            ("folders", {}, "work at file:///work"),
        ):
            running = client.wire.start_call(name, arguments)
            await client.answer(running)
            await running.done()
            assert text_of(running.answer) == words


# ── there is none ──


async def refused(client: Client, name: str = "praise") -> str:
    """The words of a result that came at once."""
    async with asyncio.timeout(AT_ONCE):
        done = await client.wire.call(name, {"call": new_call()} if name == "praise" else {})
    assert done.status == 200
    assert done.answer["result"]["isError"] is True
    return text_of(done.answer)


@every_session
async def test_a_stateless_server_tells_what_to_change(server: Server, version: str) -> None:
    async with serving(server, stateless=True) as app:
        client = await connect(app, version)
        assert client.wire.session_id is None
        for name, needed in {"praise": "sampling", "folders": "roots"}.items():
            words = await refused(client, name)
            assert words.startswith(f"This needs {needed}, but this server runs stateless")
            assert "stateless=False" in words
            assert "2026-07-28" in words
        done = await client.wire.call("resourceful")
        assert text_of(done.answer) == "Did without elicitation"


@every_session
async def test_who_reads_json_only_and_gets_no_stream(server: Server, version: str) -> None:
    async with serving(server) as app:
        client = await connect(app, version, JSON_ONLY)
        words = await refused(client)
        why = "this client asked for a JSON answer only (Accept) and has no GET stream open"
        assert words == f"This needs sampling, but {why}"
        assert text_of((await client.wire.call("resourceful")).answer) == "Did without elicitation"


async def test_the_stream_that_it_had_is_gone(server: Server) -> None:
    async with serving(server) as app:
        client = await connect(app, "2025-11-25", JSON_ONLY)
        listening = await client.wire.get(headers={"accept": "text/event-stream"}).started()
        listening.leave()
        await listening.done()
        assert "has no GET stream open" in await refused(client)


async def test_who_has_no_capability_gets_its_status(server: Server) -> None:
    """Since 2026-07-28, if nothing was sent before."""
    async with serving(server) as app:
        done = await HttpWire(app).call("praise", {"call": new_call()})
        assert (done.status, done.json["error"]["code"]) == (400, -32021)
        assert done.json["error"]["data"] == {"requiredCapabilities": {"sampling": {}}}


async def test_a_question_is_called_off_on_the_stream_where_it_was_put(server: Server) -> None:
    async with serving(server) as app:
        client = await connect(app, "2025-11-25")
        running = client.wire.start_call("hurry")
        await running.done()
        question, cancelled, answer = running.messages
        assert question["method"] == "elicitation/create"
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"]["requestId"] == question["id"]
        assert answer["result"]["isError"] is True
        assert text_of(answer) == "The client did not answer elicitation/create within 0.3 s"
        late = {"jsonrpc": "2.0", "id": question["id"], "result": answered(question)}
        assert (await client.wire.raw("POST", json.dumps(late).encode()).done()).status == 202
