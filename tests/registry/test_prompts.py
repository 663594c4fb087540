"""Prompts and completions: arguments, messages, suggestions, and what is refused."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import pytest

from dovetail import (
    AssistantMessage,
    Client,
    Completion,
    CompletionArgument,
    CompletionContext,
    CompletionTarget,
    Context,
    Field,
    Image,
    Message,
    PromptResult,
    Server,
    ServerError,
    SetupError,
    Text,
    UserMessage,
)
from dovetail.errors import ToolError
from stable_ids import stable
from wire import MODERN, Wire


def new_server(**options: Any) -> Server:
    return Server("prompts", version="1.0.0", **options)


def returning(value: Any) -> Server:
    server = new_server()

    @server.prompt
    async def give() -> Any:
        """Gives."""
        if isinstance(value, BaseException):
            raise value
        return value

    return server


# ── prompts ──


async def test_the_decorator_and_what_is_listed() -> None:
    server = new_server()

    @server.prompt
    def plain() -> str:
        """Ask plainly."""
        return "plain"

    @server.prompt(
        name="other", title="T", icons=[{"src": "https://example.org/i.png"}], tags=["x"], meta={"e/f": 1}, timeout=5
    )
    async def full(
        ctx: Context, code: Annotated[str, Field(description="The code")], count: int = 1, mood: str | None = None
    ) -> str:
        return code

    assert plain() == "plain"
    async with Wire(server, MODERN) as wire:
        first, second = (await wire.ask("prompts/list"))["prompts"]
    assert first == {"name": "plain", "description": "Ask plainly."}
    code = {"name": "code", "description": "The code", "required": True}
    assert second["arguments"] == [code, {"name": "count"}, {"name": "mood"}]
    assert (second["title"], second["_meta"]) == ("T", {"e/f": 1, "dovetail/tags": ["x"]})
    assert [server.remove_prompt("other"), server.remove_prompt("other")] == [True, False]


@pytest.mark.rule("PR-7", "PR-8")
@pytest.mark.parametrize("version", ["2024-11-05", MODERN])
async def test_bad_requests(version: str) -> None:
    server = new_server()
    server.add_prompt(lambda code, count=1: code, name="p")
    server.add_prompt(lambda: "", name="q")

    @server.prompt
    def typed(count: int) -> str:
        return str(count)

    wrong: list[dict[str, Any]] = [
        {"name": "unknown"}, {"name": "p"}, {"name": "p", "arguments": {"code": "x", "other": "y"}},
        {"name": "typed", "arguments": {"count": "many"}}, {"name": "p", "arguments": []}, {"name": 5}, {},
    ]  # fmt: skip
    async with Wire(server, version) as wire:
        for params in wrong:
            assert (await wire.refusal("prompts/get", params))["code"] == -32602, params
        assert "code" in (await wire.refusal("prompts/get", {"name": "p"}))["data"]["errors"][0]
        assert (await wire.ask("prompts/get", {"name": "q", "arguments": None}))["messages"]


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("hi", [("user", "hi")]),
        (Message("assistant", "yes"), [("assistant", "yes")]),
        (["a", Text("b"), Message("assistant", Text("c"))], [("user", "a"), ("user", "b"), ("assistant", "c")]),
        ({"role": "assistant", "content": "d"}, [("assistant", "d")]),
        ([{"role": "user", "content": {"type": "text", "text": "e"}}], [("user", "e")]),
        ([], []),
        (PromptResult([Message("user", "f")]), [("user", "f")]),
    ],
)
async def test_what_a_prompt_may_return(value: Any, messages: list[tuple[str, str]]) -> None:
    async with Wire(returning(value), MODERN) as wire:
        result = await wire.ask("prompts/get", {"name": "give", "arguments": {}})
    assert [(each["role"], each["content"]["text"]) for each in result["messages"]] == messages
    assert result.get("description") == (None if isinstance(value, PromptResult) else "Gives.")


async def test_the_client_reads_the_text_of_a_message() -> None:
    messages = ["a", Text("b"), Image(b"\x89PNG\r\n\x1a\n")]
    assert [Message("user", content).text for content in messages] == ["a", "b", ""]
    async with Client(returning(messages)) as client:
        assert [message.text for message in (await client.get_prompt("give")).messages] == ["a", "b", ""]


@pytest.mark.parametrize(
    "value",
    [
        5, None, Message("system", "x"), Message("user", 5), {"role": "user"}, [Message("user", "x"), 7],  # type: ignore[arg-type]
        ToolError("told"),
    ],
)  # fmt: skip
async def test_what_a_prompt_may_not_return(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with Wire(returning(value), MODERN) as wire:
        error = await wire.refusal("prompts/get", {"name": "give"})
        assert error["code"] == -32603
        assert error["message"] == ("told" if isinstance(value, ToolError) else "The prompt give failed")
        await wire.ask("prompts/list")


async def test_messages_may_be_named_by_their_role() -> None:
    image = Image(b"GIF89a")
    async with Client(returning([UserMessage("hi"), AssistantMessage(Text("yes?")), UserMessage(image)])) as client:
        messages = (await client.get_prompt("give")).messages
    assert messages == [Message("user", Text("hi")), Message("assistant", Text("yes?")), Message("user", image)]


def test_wrong_options() -> None:
    with pytest.raises(SetupError, match="titel"):
        new_server().add_prompt(lambda: "", name="ask", titel="x")  # type: ignore[call-arg]
    with pytest.raises(SetupError, match=r"@server\.prompt"):
        new_server().prompt(5)  # type: ignore[call-overload]


# ── completions ──


def completing() -> Server:
    server = new_server()

    @server.prompt
    def review(code: str, language: Literal["python", "go", "Perl"] = "python", deep: bool = False) -> str:
        return code

    @server.resource("a://{owner}/{repo}")
    async def repo(owner: Literal["ann", "bob"], repo: str) -> str:
        return repo

    @server.tool
    def roll(notation: str, kind: Literal["x", "y"] | None = None) -> str:
        return notation

    @server.completion(prompt="review", argument="code")
    def codes(value: str) -> list[str]:
        return [f"{value}{number}" for number in range(150)]

    @server.completion(resource="a://{owner}/{repo}", argument="repo")
    async def repos(value: str, arguments: dict[str, str], ctx: Context) -> Completion:
        return Completion([f"{arguments.get('owner', 'nobody')}-{value}"], total=7, has_more=True)

    @server.completion(tool="roll", argument="notation")
    def notations(value: str) -> Iterator[str]:
        return iter([value, "2d6"])

    return server


async def suggest(
    wire: Wire, ref: dict[str, str], name: str, value: str = "", context: dict[str, str] | None = None
) -> dict[str, Any]:
    params: dict[str, Any] = {"ref": ref, "argument": {"name": name, "value": value}}
    if context is not None:
        params["context"] = {"arguments": context}
    return (await wire.ask("completion/complete", params))["completion"]


PROMPT = {"type": "ref/prompt", "name": "review"}
TEMPLATE = {"type": "ref/resource", "uri": "a://{owner}/{repo}"}
TOOL = {"type": "ref/tool", "name": "roll"}
TEXT_OF_P = {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "text", "value": ""}}


@pytest.mark.seed("S2-60")
@pytest.mark.rule("COMP-1", "COMP-2", "COMP-6", "COMP-7")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25", MODERN])
async def test_suggestions(version: str) -> None:
    async with Wire(completing(), version) as wire:
        cut = await suggest(wire, PROMPT, "code", "x")
        assert (len(cut["values"]), cut["total"], cut["hasMore"]) == (100, 150, True)
        assert (await suggest(wire, PROMPT, "language"))["values"] == ["python", "go", "Perl"]
        assert (await suggest(wire, PROMPT, "language", "P"))["values"] == ["python", "Perl"]
        assert await suggest(wire, PROMPT, "nothing") == {"values": [], "total": 0, "hasMore": False}
        assert await suggest(wire, PROMPT, "deep", "t") == {"values": ["true"], "total": 1, "hasMore": False}
        assert await suggest(wire, TOOL, "notation", "d") == {"values": ["d", "2d6"], "total": 2, "hasMore": False}
        assert (await suggest(wire, TEMPLATE, "owner", "b"))["values"] == ["bob"]
        found = await suggest(wire, TEMPLATE, "repo", "r", {"owner": "ann"})
        assert found == {"values": ["ann-r"], "total": 7, "hasMore": True}
        assert (await suggest(wire, TEMPLATE, "repo"))["values"] == ["nobody-"]
        assert (await suggest(wire, {"type": "ref/resource", "uri": "a://ann/x"}, "owner"))["values"] == []
        assert (await suggest(wire, TOOL, "kind"))["values"] == ["x", "y"]


@pytest.mark.rule("COMP-3")
async def test_bad_completion_requests() -> None:
    argument = {"name": "a", "value": ""}
    wrong: list[dict[str, Any]] = [
        {"ref": {"type": "ref/prompt", "name": "unknown"}, "argument": argument},
        {"ref": {"type": "ref/resource", "uri": "x://"}, "argument": argument},
        {"ref": {"type": "ref/tool", "name": "unknown"}, "argument": argument},
        {"ref": {"type": "ref/other", "name": "review"}, "argument": argument},
        {"ref": PROMPT, "argument": {"name": "a"}},
        {"ref": PROMPT, "argument": {"name": "a", "value": 5}},
        {"ref": PROMPT},
        {},
    ]
    async with Wire(completing(), MODERN) as wire:
        for params in wrong:
            assert (await wire.refusal("completion/complete", params))["code"] == -32602, params


@pytest.mark.rule("COMP-1")
async def test_the_capability() -> None:
    async with Wire(completing(), "2025-06-18") as wire:
        assert wire.welcome["capabilities"]["completions"] == {}
    async with Wire(completing(), "2024-11-05") as wire:
        assert "completions" not in wire.welcome["capabilities"]
    bare = new_server()
    bare.add_prompt(lambda text: text, name="p")
    async with Wire(bare, "2025-06-18") as wire:
        assert "completions" not in wire.welcome["capabilities"]
        assert (await wire.refusal("completion/complete", TEXT_OF_P))["code"] == -32601
    async with Wire(bare, "2024-11-05") as wire:  # which has no such capability
        assert (await wire.ask("completion/complete", TEXT_OF_P))["completion"]["values"] == []


@pytest.mark.parametrize("bare", [True, False])
async def test_one_function_may_complete_all_arguments(bare: bool) -> None:
    server, child = completing(), Server("child")
    seen: list[tuple[str, str, dict[str, str]]] = []

    async def complete(
        ref: CompletionTarget, argument: CompletionArgument, context: CompletionContext, ctx: Context
    ) -> Completion | list[str] | None:
        seen.append((ref.uri or ref.name, argument.name, context.arguments))
        if argument.name == "owner":
            return [f"{argument.value}!"]
        return Completion(["much"], total=3) if ref.name == "roll" else None

    child.add_prompt(lambda mood: mood, name="ask")

    @child.completion
    def complete_child(ref: Any, argument: Any, context: Any) -> list[str]:
        return [f"{ref.name} {argument.name}"]

    server.mount(child, namespace="child")
    decorated = server.completion(complete) if bare else server.completion()(complete)
    assert decorated is complete
    async with Wire(server, MODERN) as wire:
        assert (await suggest(wire, PROMPT, "code", "x"))["total"] == 150  # its own function comes first
        assert seen == []
        assert (await suggest(wire, TEMPLATE, "owner", "a", {"repo": "r"}))["values"] == ["a!"]
        assert await suggest(wire, TOOL, "kind") == {"values": ["much"], "total": 3, "hasMore": True}
        assert (await suggest(wire, PROMPT, "language"))["values"] == ["python", "go", "Perl"]  # None: as without it
        assert (await suggest(wire, {"type": "ref/prompt", "name": "child_ask"}, "mood"))["values"] == ["ask mood"]
    assert seen == [
        ("a://{owner}/{repo}", "owner", {"repo": "r"}),
        ("roll", "kind", {}),
        ("review", "language", {}),
        ("child_ask", "mood", {}),
    ]
    with pytest.raises(SetupError, match=r"completion complete .*: there is already one, completion complete "):
        server.completion(complete)


async def test_a_function_for_all_arguments_declares_the_capability() -> None:
    server = new_server()

    @server.completion
    async def complete(ref: Any, argument: Any, context: Any) -> None: ...

    async with Wire(server, "2025-11-25") as wire:
        assert wire.welcome["capabilities"]["completions"] == {}


@pytest.mark.parametrize("result", ["a string", 5, None, RuntimeError("secret 42")])
async def test_a_completion_that_fails(result: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = new_server()
    server.add_prompt(lambda text: text, name="p")

    @server.completion(prompt="p", argument="text")
    async def complete(value: str) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    async with Wire(server, MODERN) as wire:
        error = await wire.refusal("completion/complete", TEXT_OF_P)
    assert error["code"] == -32603
    assert "secret" not in error["message"]
    assert "failed" in caplog.text


def test_wrong_completions_are_refused() -> None:
    server = new_server()
    for target in ({"tool": "b"}, {"prompt": "a", "tool": "b", "argument": "a"}, {"argument": "a"}):
        with pytest.raises(SetupError, match="exactly one"):
            server.completion(**target)
    for function in (lambda: ["x"], lambda text: [], lambda value, other: []):
        with pytest.raises(SetupError, match=r"\(value\)"):
            server.completion(prompt="p", argument="a")(function)
    with pytest.raises(SetupError, match=r"takes \(ref, argument, context\) for all arguments, not \(value\)"):

        @server.completion
        def values(value: str) -> list[str]:
            return []


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"prompt": "tripp", "argument": "city"}, r"there is no prompt tripp \(did you mean trip\?\)"),
        ({"resource": "atlas://{town}", "argument": "town"}, r"there is no resource template atlas://{town}"),
        ({"tool": "unpacked", "argument": "bag"}, "there is no tool unpacked"),
    ],
    ids=stable,
)
async def test_a_completion_of_what_is_not_there_is_refused_when_serving_begins(named: Any, words: str) -> None:
    with pytest.raises(SetupError, match=rf"^completion of .*suggestions\): .*{words}"):
        async with Client(suggesting(named)):
            pass


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"prompt": "trip", "argument": "citty"}, "the prompt trip has no argument citty (did you mean city?)"),
        ({"resource": "atlas://{city}", "argument": "town"}, "atlas://{city} has no argument town; it has city"),
        ({"tool": "pack", "argument": "bags"}, "the tool pack has no argument bags (did you mean bag?)"),
    ],
    ids=stable,
)
async def test_an_argument_that_is_not_listed_is_logged_and_works(named: Any, words: str, caplog: Any) -> None:
    async with Client(suggesting(named)) as client:
        assert words in caplog.text
        assert (await client.complete(**named, value="a")).values == ["a"]


def suggesting(named: Any) -> Server:
    server = new_server()

    @server.completion(**named)
    def suggestions(value: str) -> list[str]:
        return [value]

    server.add_prompt(lambda city: city, name="trip")
    server.add_resource("atlas://{city}", lambda city: city, name="page")
    server.add_resource("atlas://all", lambda: "", name="all")
    server.add_tool(lambda bag: bag, name="pack")
    return server


async def test_a_completion_may_come_before_its_prompt_and_outlive_it() -> None:
    @asynccontextmanager
    async def late(server: Server) -> AsyncIterator[None]:
        server.add_prompt(lambda city: city, name="trip")
        yield

    server = new_server(lifespan=late)
    server.completion(prompt="trip", argument="city")(lambda value: ["Rome"])
    async with Client(server) as client:
        assert (await client.complete(prompt="trip", argument="city")).values == ["Rome"]
        server.remove_prompt("trip")
        with pytest.raises(ServerError):
            await client.complete(prompt="trip", argument="city")
