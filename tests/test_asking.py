"""One line asks on every revision, in process, over stdio, HTTP and HTTP+SSE; and what people forget or mistake."""

import asyncio
import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mcp
import pytest
from mcp import types

import official
from dovetail import Client, Context, Elicit, ElicitUrl, InputRequired, Server, SetupError, UrlElicitationRequired
from dovetail.client import ElicitRequest
from http_serving import until
from programs_sdk.asking import PAGE, create_server
from sdk import (
    CONVERSATION_TIMEOUT,
    HANDSHAKE,
    MODERN,
    REVISIONS,
    HttpTalk,
    Talk,
    deprecations_are_expected,
    no_complaints,
    only_text,
)
from server_requests import ANSWERS, MODEL_SAYS, ROOT, Notes, asking_server, check_everything, new_call

pytestmark = [
    pytest.mark.long,
    *deprecations_are_expected,
    pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates:DeprecationWarning"),
]
WAYS = [
    (way, revision)
    for way in ("in process", "stdio", "http", "sse")
    for revision in REVISIONS
    if (way, revision) != ("sse", MODERN)  # which belongs to sessions
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Notes]]:
    with asking_server(tmp_path_factory.mktemp("asking")) as served:
        yield served


class Reached:
    """Clients of a server that is reached in one way, and everything that passed between them."""

    def __init__(self, target: Any, notes: Notes, witness: official.Witness, **options: Any) -> None:
        self.notes = notes
        self._target = target
        self._witness = witness
        self._options = options

    def answering(self, revision: str, **options: Any) -> Client:
        """A client that knows all answers."""
        known = {"elicitation_handler": reply, "sampling_handler": lambda request: MODEL_SAYS, "roots": [ROOT]}
        options = {"timeout": 20, "transcript": self._witness.see, **known, **self._options, **options}
        return Client(self._target, protocol_version=revision, **options)


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


def reply(question: ElicitRequest) -> Any:
    return True if question.mode == "url" else ANSWERS[question.message]


async def ask(client: Client, name: str, arguments: dict[str, str]) -> str:
    if name == "welcome":
        return (await client.get_prompt(name, arguments)).messages[0].content.text  # type: ignore[union-attr]
    if name == "letter":
        return (await client.read_resource(f"letters://{arguments['call']}"))[0].text or ""
    return (await client.call_tool(name, arguments)).text


# ── answers ──


@pytest.mark.seed("S2-06", "S2-08")
@pytest.mark.parametrize(("way", "revision"), WAYS)
async def test_everything_that_the_revision_has(reached: Any, way: str, revision: str) -> None:
    server = reached(way)
    async with server.answering(revision) as client:
        assert client.protocol_version == revision
        await check_everything(lambda name, arguments: ask(client, name, arguments), server.notes, revision)


# ── the official client ──


class OfficialUser:
    """Knows all answers."""

    async def elicit(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        is_page = isinstance(params, types.ElicitRequestURLParams)
        return types.ElicitResult(action="accept", content=None if is_page else ANSWERS[params.message])

    async def sample(self, context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        content = types.TextContent(type="text", text=MODEL_SAYS)
        return types.CreateMessageResult(role="assistant", content=content, model="m")

    async def list_roots(self, context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root.model_validate(ROOT)])

    @property
    def callbacks(self) -> dict[str, Any]:
        return {
            "elicitation_callback": self.elicit,
            "sampling_callback": self.sample,
            "list_roots_callback": self.list_roots,
        }


async def ask_officially(client: mcp.Client, name: str, arguments: dict[str, str]) -> str:
    if name == "welcome":
        content = (await client.get_prompt(name, arguments)).messages[0].content
        assert isinstance(content, types.TextContent)
        return content.text
    if name == "letter":
        [letter] = (await client.read_resource(f"letters://{arguments['call']}")).contents
        assert isinstance(letter, types.TextResourceContents)
        return letter.text
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result
    return only_text(result)


OFFICIAL = [(way, mode) for way in ("stdio", "http") for mode in ("legacy", MODERN, "auto")]


@pytest.mark.parametrize(("way", "mode"), OFFICIAL)
async def test_everything_with_the_official_client(
    request: pytest.FixtureRequest, tmp_path: Path, way: str, mode: str
) -> None:
    """The SDK finds nothing to warn of, nor do the official schemas."""
    revision = HANDSHAKE if mode == "legacy" else MODERN
    talk: Talk | HttpTalk
    if way == "stdio":
        notes = Notes(tmp_path / "notes")
        talk, options = Talk(tmp_path), {"program": notes.program}
    else:
        origin, notes = request.getfixturevalue("served")
        talk, options = HttpTalk(origin), {}
    with no_complaints():
        async with (
            asyncio.timeout(CONVERSATION_TIMEOUT),
            talk.client(mode=mode, **options, **OfficialUser().callbacks) as client,
        ):
            assert client.protocol_version == revision
            await check_everything(lambda name, arguments: ask_officially(client, name, arguments), notes, revision)
    talk.transcript.assert_clean()


# ── URL elicitations ──


@pytest.mark.parametrize("way", ["in process", "stdio", "http", "sse"])
async def test_the_client_is_notified_when_the_user_is_done(reached: Any, way: str) -> None:
    seen: list[ElicitRequest] = []
    done: list[str] = []

    def accept(question: ElicitRequest) -> bool:
        seen.append(question)
        return True

    server, visit = reached(way), new_call()
    options = {"elicitation_handler": accept, "elicitation_complete_handler": done.append}
    async with server.answering(HANDSHAKE, **options) as client:
        assert (await client.call_tool("sign_in", {"visit": visit})).text == "accept"
        assert (seen[0].url, seen[0].elicitation_id) == (PAGE, visit)
        assert (await client.call_tool("arrive", {"visit": visit})).text == "told"
        await until(lambda: bool(done))
        assert (await client.call_tool("arrive", {"visit": visit})).text == "nobody to tell"
    assert done == [visit]


every_era = pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])


async def call(function: Callable[..., Any], revision: str, *, asked: list[str] | None = None, **options: Any) -> str:
    """What a tool says to a user who answers "x" to everything; `thread=` and the like are the tool's own options."""
    server = Server("use")
    server.add_tool(function, name="tool", **options)

    def reply(question: Any) -> str:
        if asked is not None:
            asked.append(question.message)
        return "x"

    async with Client(server, elicitation_handler=reply, protocol_version=revision) as client:
        return (await client.call_tool("tool", {}, raise_on_error=False)).text


def reason(log: pytest.LogCaptureFixture) -> str:
    (record,) = [each for each in log.records if each.levelno == logging.ERROR]
    assert record.exc_info is not None
    return str(record.exc_info[1])


# ── forgotten ──


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("elicit", ["Sure?", bool]),
        ("elicit_url", ["Sign in", "https://example.com"]),
        ("list_roots", []),
        ("sample", ["Hello"]),
        ("step", ["save", dict]),
    ],
)
async def test_an_author_who_does_not_or_can_not_wait_gets_a_clear_error(
    name: str, arguments: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def forgets(ctx: Context) -> str:
        getattr(ctx, name)(*arguments)
        return "done"

    def can_not(ctx: Context) -> str:
        getattr(ctx, name)(*arguments)
        return "done"

    with warnings.catch_warnings(record=True) as received:
        warnings.simplefilter("always")
        assert await call(forgets, "2025-11-25") == "done"
        gc.collect()
    assert f"coroutine 'ctx.{name}' was never awaited" in [str(each.message) for each in received]
    assert "failed" in await call(can_not, "2026-07-28", thread=False)
    assert reason(caplog).startswith(f"ctx.{name}: a def function with thread=False can't wait")


@every_era
@pytest.mark.parametrize("timeout", ["5", 0, -1, float("nan"), float("inf")])
async def test_a_timeout_that_is_none(revision: str, timeout: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def tool(ctx: Context) -> str:
        return str(await ctx.elicit("Sure?", str, timeout=timeout))

    assert "failed" in await call(tool, revision)
    assert reason(caplog).startswith(f"timeout={timeout!r} of a question must be a number of seconds, above 0")


@pytest.mark.parametrize("pages", [(), ("https://example.com",), ([ElicitUrl("Sign in", "https://example.com")],)])
def test_pages_that_are_none(pages: tuple[Any, ...]) -> None:
    with pytest.raises(SetupError, match="UrlElicitationRequired takes pages"):
        UrlElicitationRequired(*pages)


@every_era
async def test_a_state_that_is_not_json_is_refused_before_the_user_is_asked(
    revision: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    async def tool() -> Any:
        return InputRequired({"name": Elicit("Name?", str)}, state=object())

    assert "failed" in await call(tool, revision, asked=asked)
    assert "the state of InputRequired must be JSON" in reason(caplog)
    assert not asked


# ── mixed ──


@every_era
async def test_both_ways_to_ask_in_one_tool_are_the_same_in_every_era(revision: str) -> None:
    """Up to 2025-11-25 too, a function that asks by itself is called again: its steps and questions are known then."""
    asked: list[str] = []
    orders: list[str] = []

    def order() -> int:
        orders.append("a hat")
        return len(orders)

    async def tool(ctx: Context) -> Any:
        number = await ctx.step("order", order)
        size = await ctx.elicit(f"Size of {number}?", str)
        if "colour" not in (ctx.input_responses or {}):
            return InputRequired({"colour": Elicit("Colour?", str)}, state=number)
        return f"{size.data} {ctx.request_state} of {len(orders)}"

    assert await call(tool, revision, asked=asked) == "x 1 of 1"
    assert asked == ["Size of 1?", "Colour?"]
