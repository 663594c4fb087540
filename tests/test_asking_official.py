"""The official Python client answers a server that asks, with a handshake and in the modern way, by stdio and HTTP."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from mcp import Client, types

from asking_program import ANSWERS, MODEL_SAYS, ROOT, Notes, asking_server, check_everything
from sdk import HANDSHAKE, MODERN, PATIENCE, Talk, Transcript, deprecations_are_expected, no_complaints, only_text
from sdk_http import HttpTalk

pytestmark = deprecations_are_expected
WAYS = [(way, mode) for way in ("stdio", "http") for mode in ("legacy", MODERN, "auto")]
every_way = pytest.mark.parametrize(("way", "mode"), WAYS)
REVISION_OF = {"legacy": HANDSHAKE, MODERN: MODERN, "auto": MODERN}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Notes]]:
    with asking_server(tmp_path_factory.mktemp("asking")) as served:
        yield served


class User:
    """Knows all answers, unless told otherwise."""

    def __init__(self, **actions: str) -> None:
        self.asked: list[str] = []
        self.actions = actions  # by question

    async def elicit(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params.message)
        if isinstance(params, types.ElicitRequestURLParams):
            return types.ElicitResult(action="accept")
        action: Any = self.actions.get(params.message, "accept")
        return types.ElicitResult(action=action, content=ANSWERS[params.message] if action == "accept" else None)

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


class Server(NamedTuple):
    talk: Talk | HttpTalk
    notes: Notes

    @asynccontextmanager
    async def client(self, mode: str, **options: Any) -> AsyncIterator[Client]:
        """The SDK finds nothing to warn of, nor do the official schemas."""
        program = {"program": self.notes.program} if isinstance(self.talk, Talk) else {}
        with no_complaints(), anyio.fail_after(PATIENCE):
            async with self.talk.client(mode=mode, **program, **options) as client:
                assert client.protocol_version == REVISION_OF[mode]
                yield client
        self.transcript.assert_clean()

    @property
    def transcript(self) -> Transcript:
        return self.talk.transcript


@pytest.fixture
def reached(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def reach(way: str) -> Server:
        if way == "stdio":
            return Server(Talk(tmp_path), Notes(tmp_path / "notes"))
        origin, notes = request.getfixturevalue("served")
        return Server(HttpTalk(origin), notes)

    return reach


async def ask(client: Client, name: str, arguments: dict[str, str]) -> str:
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


@every_way
async def test_everything_that_asks(reached: Any, way: str, mode: str) -> None:
    server = reached(way)
    async with server.client(mode, **User().callbacks) as client:
        await check_everything(lambda name, arguments: ask(client, name, arguments), server.notes, REVISION_OF[mode])
