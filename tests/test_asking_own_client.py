"""One line asks on every revision: `dovetail.Client` answers in process, over stdio, HTTP and HTTP+SSE."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import official
from asking_program import (
    ANSWERS,
    CITY,
    MODEL_SAYS,
    NEW_NAME,
    ROOT,
    STAY,
    Notes,
    asking_server,
    check_everything,
    new_call,
)
from dovetail import Client, ElicitReply, ServerError, ToolError
from dovetail.client import ElicitQuestion
from http_serving import until
from programs_sdk.asking import PAGE, create_server

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates:DeprecationWarning")

HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
NEWEST_HANDSHAKE, MODERN = HANDSHAKES[-1], "2026-07-28"
REVISIONS = (*HANDSHAKES, MODERN)
WITHOUT_FORMS = HANDSHAKES[:2]
WAYS = [
    (way, revision)
    for way in ("in process", "stdio", "http", "sse")
    for revision in REVISIONS
    if (way, revision) != ("sse", MODERN)  # which belongs to sessions
]
SHORT_WAYS = [(way, revision) for way, revision in WAYS if way != "stdio"]  # without a process of one's own
NEEDS_ELICITATION = "This needs a client that declares: elicitation"
NEEDS_FORMS = f"{NEEDS_ELICITATION}.form"
NEEDS_SAMPLING = "This needs a client that declares: sampling"
UNKNOWN_FORMS = "This needs elicitation.form, but {} does not know that"
MISSING_CAPABILITY, INVALID_REQUEST = -32021, -32600


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Notes]]:
    with asking_server(tmp_path_factory.mktemp("asking")) as served:
        yield served


class Reached:
    """Clients of a server that is reached in one way, and everything that passed between them."""

    def __init__(self, target: Any, notes: Notes, witness: official.Witness, **options: Any) -> None:
        self.notes = notes
        self.heard: list[dict[str, Any]] = []
        self._target = target
        self._witness = witness
        self._options = options

    def client(self, revision: str, **options: Any) -> Client:
        return Client(
            self._target, protocol_version=revision, timeout=20, transcript=self._see, **self._options, **options
        )

    def answering(self, revision: str, **options: Any) -> Client:
        """A client that knows all answers."""
        known = {"elicitation_handler": reply, "sampling_handler": lambda request: MODEL_SAYS, "roots": [ROOT]}
        return self.client(revision, **{**known, **options})

    def _see(self, direction: str, message: bytes) -> None:
        self._witness.see(direction, message)
        if direction == "received":
            self.heard.append(json.loads(bytes(message)))

    def said(self, method: str) -> list[dict[str, Any]]:
        return [message for message in self.heard if message.get("method") == method]


@pytest.fixture
def reached(request: pytest.FixtureRequest, tmp_path: Path, witness: official.Witness) -> Callable[[str], Reached]:
    def reach(way: str) -> Reached:
        if way in ("http", "sse"):
            origin, notes = request.getfixturevalue("served")
            return Reached(f"{origin}/{'mcp' if way == 'http' else 'sse'}", notes, witness, transport=way)
        notes = Notes(tmp_path / "notes")
        target = [sys.executable, *notes.program] if way == "stdio" else create_server(notes.path)
        return Reached(target, notes, witness)

    return reach


def reply(question: ElicitQuestion) -> Any:
    return True if question.mode == "url" else ANSWERS[question.message]


async def ask(client: Client, name: str, arguments: dict[str, str]) -> str:
    if name == "welcome":
        return (await client.get_prompt(name, arguments)).messages[0].content.text  # type: ignore[union-attr]
    if name == "letter":
        return (await client.read_resource(f"letters://{arguments['call']}"))[0].text or ""
    return (await client.call_tool(name, arguments)).text


# ── answers ──


@pytest.mark.parametrize(("way", "revision"), WAYS)
async def test_everything_that_the_revision_has(reached: Any, way: str, revision: str) -> None:
    server = reached(way)
    async with server.answering(revision) as client:
        assert client.protocol_version == revision
        await check_everything(lambda name, arguments: ask(client, name, arguments), server.notes, revision)


@pytest.mark.parametrize(("way", "revision"), [each for each in SHORT_WAYS if each[1] not in WITHOUT_FORMS])
async def test_questions_are_requests_or_rounds(reached: Any, way: str, revision: str) -> None:
    server = reached(way)
    async with server.answering(revision) as client:
        await client.call_tool("plan", {"call": new_call()})
    requests = [each for each in server.heard if "method" in each and "id" in each]
    rounds = [each for each in server.heard if each.get("result", {}).get("resultType") == "input_required"]
    methods = ["elicitation/create", "elicitation/create", "sampling/createMessage"]
    if revision == MODERN:
        asked = [request for each in rounds for request in each["result"]["inputRequests"].values()]
        assert ([request["method"] for request in asked], requests) == (methods, [])
    else:
        assert ([request["method"] for request in requests], rounds) == (methods, [])


@pytest.mark.parametrize("revision", ["2025-06-18", NEWEST_HANDSHAKE, MODERN])
@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize(
    ("tool", "refused", "words", "steps"),
    [
        ("plan", CITY, "No trip: {}", []),
        ("plan", STAY, "No hotel: {}", ["reserve"]),
        ("rename", NEW_NAME, "not renamed: {}", ["rename"]),
    ],
)
async def test_who_does_not_accept(
    reached: Any, revision: str, action: Any, tool: str, refused: str, words: str, steps: list[str]
) -> None:
    def answer(question: ElicitQuestion) -> Any:
        return ElicitReply(action) if question.message == refused else ANSWERS[question.message]

    server = reached("in process")
    call = new_call()
    async with server.answering(revision, elicitation_handler=answer) as client:
        assert (await client.call_tool(tool, {"call": call})).text == words.format(action)
    assert server.notes.steps(call) == steps


# ── pages to visit ──


@pytest.mark.parametrize("way", ["in process", "stdio", "http", "sse"])
async def test_the_client_hears_when_the_user_is_done(reached: Any, way: str) -> None:
    seen: list[ElicitQuestion] = []
    done: list[str] = []

    def visits(question: ElicitQuestion) -> bool:
        seen.append(question)
        return True

    server, visit = reached(way), new_call()
    options = {"elicitation_handler": visits, "elicitation_complete_handler": done.append}
    async with server.answering(NEWEST_HANDSHAKE, **options) as client:
        assert (await client.call_tool("sign_in", {"visit": visit})).text == "accept"
        assert (seen[0].url, seen[0].elicitation_id) == (PAGE, visit)
        assert (await client.call_tool("arrive", {"visit": visit})).text == "told"
        await until(lambda: bool(done))
        assert (await client.call_tool("arrive", {"visit": visit})).text == "nobody to tell"
    assert done == [visit]


@pytest.mark.parametrize(("way", "revision"), SHORT_WAYS)
async def test_a_page_that_comes_before_the_call(reached: Any, way: str, revision: str) -> None:
    server, visit = reached(way), new_call()
    async with server.answering(revision) as client:
        if revision == MODERN:
            assert (await client.call_tool("inbox", {"visit": visit})).text == "empty"
            return
        with pytest.raises((ServerError, ToolError)) as caught:
            await client.call_tool("inbox", {"visit": visit})
    if revision == NEWEST_HANDSHAKE:
        [elicitation] = caught.value.data["elicitations"]
        assert (caught.value.code, elicitation["url"], elicitation["elicitationId"]) == (-32042, PAGE, visit)
    else:
        assert str(caught.value) == f"This needs elicitation.url, but {revision} does not know that"


# ── clients that can't be asked ──


@pytest.mark.parametrize(("way", "revision"), SHORT_WAYS)
async def test_who_declared_nothing_is_asked_nothing(reached: Any, way: str, revision: str) -> None:
    server = reached(way)
    async with server.client(revision) as client:
        assert (await client.call_tool("resourceful")).text == "Did without elicitation"
        forms = UNKNOWN_FORMS.format(revision) if revision in WITHOUT_FORMS else NEEDS_FORMS
        code = MISSING_CAPABILITY if revision == MODERN else None
        assert await failure(client, "plan", {"call": new_call()}) == (code, forms)
        assert await failure(client, "demanding", {}) == (code, NEEDS_ELICITATION)
        assert await failure(client, "praise", {"call": new_call()}) == (code, NEEDS_SAMPLING)
        assert (await failure(client, "folders", {}))[1] == "This needs a client that declares: roots"
        for name in ("welcome", "letter"):
            code = MISSING_CAPABILITY if revision == MODERN else INVALID_REQUEST
            assert await failure(client, name, {"call": new_call()}) == (code, forms)
    assert [each for each in server.heard if "method" in each] == []
    assert [each for each in server.heard if "inputRequests" in each.get("result", {})] == []


async def failure(client: Client, name: str, arguments: dict[str, str]) -> tuple[int | None, str]:
    """The code of an error, None if it is a result with isError; and the words."""
    with pytest.raises((ToolError, ServerError)) as caught:
        await ask(client, name, arguments)
    if isinstance(caught.value, ServerError):
        return caught.value.code, caught.value.message
    return None, str(caught.value)


@pytest.mark.parametrize("revision", WITHOUT_FORMS)
async def test_a_revision_without_forms_whatever_the_client_declares(reached: Any, revision: str) -> None:
    """Its steps before the question have run; nothing was sent to a client that would not know what it is."""
    server = reached("in process")
    unknown = UNKNOWN_FORMS.format(revision)
    async with server.answering(revision, capabilities={"elicitation": {}}) as client:
        for name in ("plan", "rename"):
            call = new_call()
            assert await failure(client, name, {"call": call}) == (None, unknown)
            assert server.notes.steps(call) == []
        assert await failure(client, "demanding", {}) == (None, unknown)
    assert server.said("elicitation/create") == []


async def test_forms_but_no_urls(reached: Any) -> None:
    server = reached("in process")
    async with server.answering("2025-06-18") as client:
        code, words = await failure(client, "sign_in", {})
    assert code is None
    assert words == "This needs elicitation.url, but 2025-06-18 does not know that"
    assert server.said("elicitation/create") == []


# ── time ──


class Undecided:
    """Users who never answer, until they hear that nobody waits any more."""

    def __init__(self) -> None:
        self.thinking = 0

    async def __call__(self, question: ElicitQuestion) -> Any:
        self.thinking += 1
        try:
            await asyncio.sleep(60)
        finally:
            self.thinking -= 1


@pytest.mark.parametrize("way", ["in process", "stdio", "http", "sse"])
async def test_a_question_that_is_never_answered(reached: Any, way: str) -> None:
    server, undecided = reached(way), Undecided()
    async with server.answering(NEWEST_HANDSHAKE, elicitation_handler=undecided) as client:
        assert await failure(client, "hurry", {}) == (
            None,
            "The client did not answer elicitation/create within 0.3 s",
        )
        await until(lambda: undecided.thinking == 0)
        [asked], [cancelled] = server.said("elicitation/create"), server.said("notifications/cancelled")
        assert cancelled["params"]["requestId"] == asked["id"]
        assert (await client.call_tool("praise", {"call": new_call()})).text == MODEL_SAYS


async def test_an_answer_that_comes_too_late_since_2026(reached: Any) -> None:
    """Nobody waits for it there; but the state that it comes with is good only for so long."""

    async def slowly(question: ElicitQuestion) -> Any:
        await asyncio.sleep(0.4)
        return ANSWERS[question.message]

    server = reached("in process")
    async with server.answering(MODERN, elicitation_handler=slowly) as client:
        code, words = await failure(client, "hurry", {})
    assert code == -32602
    assert "request state can't be used" in words


@pytest.mark.parametrize("way", ["in process", "stdio", "http", "sse"])
async def test_the_time_of_a_tool_stands_still_while_the_user_thinks(reached: Any, way: str) -> None:
    async def slowly(question: ElicitQuestion) -> Any:
        await asyncio.sleep(1.0)
        return ANSWERS[question.message]

    begin = time.monotonic()
    async with reached(way).answering(NEWEST_HANDSHAKE, elicitation_handler=slowly) as client:
        results = await asyncio.gather(client.call_tool("patient"), client.call_tool("patient_thread"))
    assert [result.text for result in results] == ["Rome", "Rome"]
    assert time.monotonic() - begin >= 1.0
