"""What a function may use besides its arguments works the same on every revision, transport and store."""

import os
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

import msgspec
import pytest

import official
import state_program
from dovetail import Client, ServerError, ToolError
from dovetail.auth import Principal
from http_serving import listening
from sdk import HANDSHAKE, MODERN, REVISIONS
from state_program import create_server
from state_stage import KINDS, Stores, open_stores

pytestmark = pytest.mark.long
WAYS = [("in process", "memory"), *product(("stdio", "http"), KINDS)]
# In `make test` each way has the newest revision of both eras, and every revision one way of each kind.
NEWEST = (HANDSHAKE, MODERN)
IN_ALL_REVISIONS = [("in process", "memory"), ("stdio", "sqlite"), ("http", "redis")]
CASES = [
    pytest.param(*way, revision, marks=[] if revision in NEWEST or way in IN_ALL_REVISIONS else pytest.mark.soak)
    for way, revision in product(WAYS, REVISIONS)
]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    yield from open_stores(tmp_path_factory.mktemp("stores"))


class Conversation:
    """All that the tools of the program offer, over several connections of one client."""

    def __init__(self, client: Client, *, can_ask: bool, outlives_connection: bool) -> None:
        self._client = client
        self._can_ask = can_ask
        self._outlives_connection = outlives_connection

    async def say(self, tool: str, **arguments: Any) -> str:
        return (await self._client.call_tool(tool, arguments)).text

    async def run(self) -> None:
        async with self._client:
            await self.check_state()
            await self.check_cache()
            basket = await self.check_handle()
            charged = await self.check_key()
            if self._can_ask:
                await self.check_questions()
        async with self._client:
            if self._outlives_connection:
                assert await self.say("keys") == ("charges count left orders" if self._can_ask else "charges count")
                assert await self.say("look", basket=basket) == "first second"
                assert (await self.charge("a")).text == charged
                await self.say("empty", basket=basket)
            with pytest.raises(ToolError, match="There is no Basket with this id"):
                await self.say("look", basket=basket)

    async def check_state(self) -> None:
        assert await self.say("read", key="name") == "-"
        await self.say("note", key="name", value="Ada")
        assert await self.say("append", key="name", value=" L.") == "Ada L."
        assert await self.say("keys") == "name"
        assert await self.say("forget", key="name") == "true"
        assert await self.say("forget", key="name") == "false"
        assert [await self.say("count") for _ in range(3)] == ["1", "2", "3"]

    async def check_handle(self) -> str:
        basket = await self.say("fill")
        assert await self.say("put", basket=basket, item="second") == "first second"
        return basket

    async def check_cache(self) -> None:
        tea, milk = await self.say("price", article="tea"), await self.say("price", article="milk")
        assert tea != milk
        assert await self.say("price", article="tea") == tea
        assert "[Cut: this text has 1" in await self.say("price", article="é" * 800)

    async def charge(self, key: str, amount: int = 5) -> Any:
        return await self._client.call_tool("charge", {"amount": amount}, idempotency_key=key * 32)

    async def check_key(self) -> str:
        first, again, other = await self.charge("a"), await self.charge("a"), await self.charge("b")
        assert (first.text, again.text, other.text) == ("5 1", "5 1", "5 2")
        assert (again.meta or {}).get("dovetail/idempotentReplay") is True
        with pytest.raises(ServerError, match="other arguments"):
            await self.charge("a", 6)
        return str(first.text)

    async def check_questions(self) -> None:
        """Writes before and after a question happen once, and a dependency that asks is left once."""
        revision = self._client.protocol_version
        assert await self.say("depend") == f"True {revision} {revision}"
        assert await self.say("read_count", key="left") == "1"
        for n in (0, 1):
            before, after, rest = (await self.say("order")).split(" ", 2)
            assert (int(before), int(after)) == (2 * n + 1, 2 * n + 2)
            assert await self.say("look", basket=rest.split()[-1]) == "first second"


@pytest.mark.parametrize(("way", "kind", "revision"), CASES)
async def test_all_of_it_works_everywhere(
    way: str, kind: str, revision: str, stores: Stores, witness: official.Witness
) -> None:
    options: dict[str, Any] = {
        "protocol_version": revision, "transcript": witness.see, "elicitation_handler": lambda _: True, "timeout": 20,
    }  # fmt: skip
    expected = {"can_ask": revision >= "2025-06-18", "outlives_connection": (way, kind) != ("stdio", "memory")}
    if way == "in process":
        await Conversation(Client(create_server(), **options), **expected).run()
    elif way == "stdio":  # each connection is another process
        env = {**os.environ, "DOVETAIL_STATE": stores.url(kind), "PYTHONPATH": os.pathsep.join(sys.path)}
        await Conversation(Client([sys.executable, state_program.__file__], env=env, **options), **expected).run()
    else:
        url = stores.url(kind)
        server = create_server(auth=lambda token: Principal(subject=token))
        http_options = server.http_options({"state": url, "public_url": "http://127.0.0.1/mcp"})
        app = server.asgi(state=url, public_url="http://127.0.0.1/mcp")
        async with listening(app, msgspec.structs.replace(http_options, port=0)) as root:
            client = Client(f"{root}/mcp", headers={"Authorization": "Bearer ada"}, **options)
            await Conversation(client, **expected).run()
