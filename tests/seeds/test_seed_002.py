"""Every JSON message of seed 002, on its server, at 2024-11-05."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers.seeds.seed_002 import create_server, server

import official
from dovetail import (
    Client,
    Clients,
    Context,
    EmbeddedResource,
    Image,
    LogMessage,
    Message,
    ResourceContents,
    Server,
    Text,
)
from seeds.golden import Opaque, call_of, request, same, shows
from wire import Wire

REVISION = "2024-11-05"
MAIN_RS = {
    "uri": "file:///project/src/main.rs",
    "name": "main.rs",
    "description": "Rust entry point",
    "mimeType": "text/x-rust",
}
CAPABILITIES = {
    "logging": {},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "tools": {"listChanged": True},
}


HELLO = {
    "protocolVersion": "2024-11-05",
    "capabilities": {"roots": {"listChanged": True}, "sampling": {}},
    "clientInfo": {"name": "ExampleClient", "version": "1.0.0"},
}
WELCOME = {
    "protocolVersion": "2024-11-05",
    "capabilities": CAPABILITIES,
    "serverInfo": {"name": "ExampleServer", "version": "1.0.0"},
}
TOOL = {
    "name": "get_weather",
    "description": "Fetch current weather by city name or zip code",
    "inputSchema": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "City name or zip code"}},
        "required": ["location"],
    },
}


@pytest.mark.seed("S2-09", "S2-10", "S2-11", "S2-12", "S2-14", "S2-15", "S2-16", "S2-17")
async def test_initialization() -> None:
    async with Wire(server) as wire:
        answer = await wire.exchange(request(1, "initialize", HELLO))
        same(answer, {"jsonrpc": "2.0", "id": 1, "result": WELCOME})
        wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await wire.quiet()


@pytest.mark.seed("S2-26", "S2-27", "S2-28", "S2-29", "S2-33")
async def test_prompts() -> None:
    prompt = {
        "name": "code_review",
        "description": "Analyze code quality and suggest improvements",
        "arguments": [{"name": "code", "description": "Python code to review", "required": True}],
    }
    await shows(server, REVISION, request(1, "prompts/list"), {"prompts": [prompt]})
    code = "def hello():\n    print('world')"
    params = {"name": "code_review", "arguments": {"code": code}}
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(request(2, "prompts/get", params))
    (message,) = answer["result"]["messages"]
    assert message["role"] == "user"
    assert code in message["content"]["text"]


@pytest.mark.seed("S2-34", "S2-36", "S2-37", "S2-38")
async def test_resources() -> None:
    await shows(server, REVISION, request(1, "resources/list"), {"resources": [MAIN_RS]})
    contents = {
        "uri": "file:///project/src/main.rs",
        "mimeType": "text/x-rust",
        "text": 'fn main() {\n    println!("Hello world!");\n}',
    }
    read = request(2, "resources/read", {"uri": "file:///project/src/main.rs"})
    await shows(server, REVISION, read, {"contents": [contents]})


@pytest.mark.seed("S2-45", "S2-46", "S2-47")
async def test_tools_list() -> None:
    await shows(server, REVISION, request(1, "tools/list"), {"tools": [TOOL]})
    async with Client(server, protocol_version=REVISION) as client:
        (tool,) = await client.list_tools()
    handed = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
    assert json.loads(json.dumps(handed)) == TOOL  # as a model would get it


@pytest.mark.seed("S2-48", "S2-49", "S2-50")
@pytest.mark.parametrize(
    ("location", "text", "failed"),
    [
        ("New York", "Current weather in New York: 72°F, Partly cloudy", False),
        ("everywhere", "API request failed: rate limit exceeded", True),
    ],
)
async def test_tools_call(location: str, text: str, failed: bool) -> None:
    result = {"content": [{"type": "text", "text": text}], "isError": failed}
    await shows(server, REVISION, call_of("get_weather", location=location), result)


@pytest.mark.seed("S2-22", "S2-52", "S2-54", "S2-55", "S2-56")
async def test_logging() -> None:
    params = {
        "level": "error",
        "logger": "database",
        "data": {"error": "Connection failed", "details": {"host": "localhost", "port": 5432}},
    }
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(request(1, "logging/setLevel", {"level": "info"}))
        same(answer, {"jsonrpc": "2.0", "id": 1, "result": {}})
        wire.send(call_of("get_weather", location="Atlantis"))
        same(await wire.receive(), {"jsonrpc": "2.0", "method": "notifications/message", "params": params})
        assert (await wire.receive())["id"] == 2


@pytest.mark.seed("S2-58", "S2-59", "S2-60", "S2-61")
async def test_completion() -> None:
    params = {
        "ref": {"type": "ref/prompt", "name": "code_review"},
        "argument": {"name": "language", "value": "py"},
    }
    completion = {"values": ["python", "pytorch", "pyside"], "total": 10, "hasMore": True}
    await shows(server, REVISION, request(1, "completion/complete", params), {"completion": completion})


@pytest.mark.seed("S2-35", "S2-62", "S2-63", "S2-64")
async def test_pagination() -> None:
    async with Wire(create_server(page_size=1), REVISION) as wire:
        answer = await wire.exchange(request(10, "resources/list"))
        same(answer, {"jsonrpc": "2.0", "id": 10, "result": {"resources": [MAIN_RS], "nextCursor": Opaque(str)}})
        rest = await wire.ask("resources/list", {"cursor": answer["result"]["nextCursor"]})
    assert [(each["name"], each["mimeType"]) for each in rest["resources"]] == [("README.md", "text/markdown")]
    assert "nextCursor" not in rest


@pytest.mark.seed("S2-19", "S2-39", "S2-40", "S2-41")
async def test_resource_subscriptions() -> None:
    uri = "file:///project/src/main.rs"
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(request(4, "resources/subscribe", {"uri": uri}))
        same(answer, {"jsonrpc": "2.0", "id": 4, "result": {}})
        server.notify_resource_updated(uri)
        same(
            await wire.receive(),
            {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}},
        )
        assert await wire.ask("resources/unsubscribe", {"uri": uri}) == {}
        server.notify_resource_updated(uri)
        await wire.quiet()


@pytest.mark.seed("S2-43")
@pytest.mark.slow
async def test_a_file_that_comes_to_a_folder_is_announced(tmp_path: Path) -> None:
    project = create_server()
    project.add_directory(tmp_path, uri="file:///project/docs")
    async with Wire(project, REVISION) as wire:
        (tmp_path / "new.md").write_text("# New")
        same(await wire.receive(), {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"})
        resources = (await wire.ask("resources/list"))["resources"]
    assert all({"uri", "name", "mimeType"} <= each.keys() for each in resources)
    assert resources[-1]["uri"] == "file:///project/docs/new.md"


@pytest.mark.seed("S2-58", "S2-60")
async def test_partial_file_paths_are_completed(tmp_path: Path) -> None:
    for name in ("main.rs", "mod.rs", "lib.rs"):
        (tmp_path / name).write_text("")
    project = create_server()
    project.add_directory(tmp_path, uri="file:///project/src/bin")
    params = {
        "ref": {"type": "ref/resource", "uri": "file:///project/src/bin/{+path}"},
        "argument": {"name": "path", "value": "m"},
    }
    async with Wire(project, REVISION) as wire:
        completion = {"values": ["main.rs", "mod.rs"], "total": 2, "hasMore": False}
        same(await wire.ask("completion/complete", params), {"completion": completion})


# ── the lifecycle, in words ──


@pytest.mark.seed("S2-09", "S2-10", "S2-12", "S2-13", "S2-14")
async def test_each_side_says_who_it_is_and_what_it_can() -> None:
    introduced = Server("ExampleServer", version="1.0.0", instructions="Ask for a city first.")

    @introduced.tool
    async def who(ctx: Context) -> str:
        client = ctx.client
        return json.dumps([ctx.protocol_version, client.name, client.version, dict(client.capabilities)])

    capabilities = {"roots": {"listChanged": True}, "sampling": {}}
    async with Wire(introduced, REVISION, capabilities=capabilities) as wire:
        (said,) = (await wire.ask("tools/call", {"name": "who"}))["content"]
    same(
        wire.welcome,
        {
            "protocolVersion": REVISION,
            "capabilities": {"logging": {}, "tools": {"listChanged": True}},
            "serverInfo": {"name": "ExampleServer", "version": "1.0.0"},
            "instructions": "Ask for a city first.",
        },
    )
    assert json.loads(said["text"]) == [REVISION, "wire", "1.0.0", capabilities]


@pytest.mark.seed("S2-11")
@pytest.mark.parametrize(("asked", "picked"), [(REVISION, REVISION), ("1999-01-01", "2025-11-25")])
async def test_the_server_picks_the_version(asked: str, picked: str) -> None:
    async with Wire(server, asked) as wire:
        assert wire.welcome["protocolVersion"] == picked
        assert (await wire.ask("tools/list"))["tools"]


@pytest.mark.seed("S2-15", "S2-68")
async def test_normal_operation_begins_with_initialized() -> None:
    changing = create_server()
    async with Wire(changing) as wire:
        assert "Not initialised" in (await wire.refusal("tools/list"))["message"]
        await wire.ask("initialize", HELLO)
        changing.add_tool(lambda: "", name="early")
        await wire.quiet()
        wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        changing.add_tool(lambda: "", name="later")
        same(await wire.receive(), {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})


@pytest.mark.seed("S2-03", "S2-17", "S2-23", "S2-24", "S2-76", "S2-92")
@pytest.mark.parametrize("feature", ["prompts", "resources", "tools", "logging"])
async def test_each_feature_may_be_the_only_one(feature: str) -> None:
    single = Server("single", logging=feature == "logging")
    if feature == "prompts":
        single.add_prompt(lambda: "", name="one")
    elif feature == "resources":
        single.add_resource("a://b", lambda: "", name="one")
    elif feature == "tools":
        single.add_tool(lambda: "", name="one")
    async with Wire(single, REVISION) as wire:
        same(wire.welcome["capabilities"], {feature: CAPABILITIES[feature]})
        for other in ("prompts", "resources", "tools"):
            if other == feature:
                assert len((await wire.ask(f"{other}/list"))[other]) == 1
            else:
                assert (await wire.refusal(f"{other}/list"))["code"] == -32601
        if feature == "logging":
            assert await wire.ask("logging/setLevel", {"level": "info"}) == {}
        else:
            assert (await wire.refusal("logging/setLevel", {"level": "info"}))["code"] == -32601


# ── prompts and resources, in words ──


@pytest.mark.seed("S2-25")
async def test_a_client_lists_prompts_and_a_user_invokes_one() -> None:
    async with Client(server, protocol_version=REVISION) as client:
        commands = {f"/{prompt.name}": prompt for prompt in await client.list_prompts()}
        chosen = commands["/code_review"]
        typed = {argument.name: "x = 1" for argument in chosen.arguments or []}
        (message,) = (await client.get_prompt(chosen.name, typed)).messages
    assert (message.role, message.content) == ("user", Text("Please review this code:\nx = 1"))


@pytest.mark.seed("S2-27", "S2-28", "S2-31", "S2-32")
async def test_a_prompt_may_hold_several_messages_of_every_kind() -> None:
    talking = Server("talking")

    @talking.prompt
    def dialogue(topic: str = "anything") -> list[Message]:
        file = ResourceContents("file:///a.txt", "text/plain", text="hello")
        return [
            Message("user", f"Let us talk about {topic}."),
            Message("assistant", Image(b"pixels", "image/png")),
            Message("user", EmbeddedResource(file)),
        ]

    async with Wire(talking, REVISION) as wire:
        result = await wire.ask("prompts/get", {"name": "dialogue"})
        dialogue = await wire.ask("prompts/get", {"name": "dialogue", "arguments": {"topic": "Rust"}})
    file = {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "hello"}
    same(
        result["messages"],
        [
            {"role": "user", "content": {"type": "text", "text": "Let us talk about anything."}},
            {"role": "assistant", "content": {"type": "image", "data": "cGl4ZWxz", "mimeType": "image/png"}},
            {"role": "user", "content": {"type": "resource", "resource": file}},
        ],
    )
    assert dialogue["messages"][0]["content"]["text"] == "Let us talk about Rust."


@pytest.mark.seed("S2-34", "S2-37", "S2-38", "S2-42")
async def test_files_records_and_documents_elsewhere_are_resources(tmp_path: Path) -> None:
    (tmp_path / "logo.png").write_bytes(b"pixels")
    rows = {1: ["Ada"]}
    library = Server("library")
    library.add_file(tmp_path / "logo.png", uri="file:///project/logo.png")

    @library.resource("db://users/{row}", mime_type="application/json")
    def user(row: int) -> list[str]:
        return rows[row]

    @library.resource("https://example.com/handbook", mime_type="text/html")
    def handbook() -> str:
        return "<h1>Handbook</h1>"

    async with Wire(library, REVISION) as wire:
        (template,) = (await wire.ask("resources/templates/list"))["resourceTemplates"]
        assert (template["uriTemplate"], template["name"]) == ("db://users/{row}", "user")

        async def read(uri: str) -> Any:
            return (await wire.ask("resources/read", {"uri": uri}))["contents"]

        uri = "file:///project/logo.png"
        same(await read(uri), [{"uri": uri, "mimeType": "image/png", "blob": "cGl4ZWxz"}])
        uri = "db://users/1"
        same(await read(uri), [{"uri": uri, "mimeType": "application/json", "text": '["Ada"]'}])
        uri = "https://example.com/handbook"
        same(await read(uri), [{"uri": uri, "mimeType": "text/html", "text": "<h1>Handbook</h1>"}])


# ── tools, logs, pages, in words ──


@pytest.mark.seed("S2-53")
async def test_a_client_forwards_logs_to_a_file(tmp_path: Path) -> None:
    def forward(message: LogMessage) -> None:
        with (tmp_path / "server.log").open("a") as file:
            file.write(f"{message.level} {message.logger} {json.dumps(message.data)}\n")

    async with Client(server, protocol_version=REVISION, log_handler=forward) as client:
        await client.call_tool("get_weather", {"location": "Atlantis"})
    details = '{"error": "Connection failed", "details": {"host": "localhost", "port": 5432}}'
    assert (tmp_path / "server.log").read_text() == f"error database {details}\n"


@pytest.mark.seed("S2-54", "S2-55", "S2-57")
async def test_eight_levels_of_which_each_lets_those_above_it_through() -> None:
    levels = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
    chatty = Server("chatty")

    @chatty.tool
    async def chat(ctx: Context) -> None:
        for level in reversed(levels):
            await ctx.log(level, level)  # type: ignore[arg-type]

    async with Wire(chatty, REVISION) as wire:
        for place, level in enumerate(levels):
            await wire.ask("logging/setLevel", {"level": level})
            before = len(wire.seen)
            await wire.ask("tools/call", {"name": "chat"})
            received = [message["params"]["level"] for message in wire.seen[before:] if "method" in message]
            assert received == levels[place:][::-1]
        assert (await wire.refusal("logging/setLevel", {"level": "loud"}))["code"] == -32602


@pytest.mark.seed("S0-13", "S2-62", "S2-63", "S2-64", "S2-77")
@pytest.mark.parametrize("kind", ["tools", "prompts", "resources", "resourceTemplates"])
async def test_every_list_comes_in_pages(kind: str) -> None:
    paged = Server("paged", page_size=2)
    for number in range(3):
        name = f"item_{number}"
        paged.add_tool(lambda: "", name=name)
        paged.add_prompt(lambda: "", name=name)
        paged.add_resource(f"a://{name}", lambda: "", name=name)
        paged.add_resource(f"{name}://{{id}}", lambda id: id, name=name)
    method = "resources/templates/list" if kind == "resourceTemplates" else f"{kind}/list"
    async with Wire(paged, REVISION) as wire:
        first = await wire.ask(method)
        rest = await wire.ask(method, {"cursor": first["nextCursor"]})
        assert [item["name"] for item in first[kind]] == ["item_0", "item_1"]
        assert [item["name"] for item in rest[kind]] == ["item_2"]
        assert "nextCursor" not in rest
        for guess in ("2", "item_1", first["nextCursor"] + "A"):
            assert (await wire.refusal(method, {"cursor": guess}))["code"] == -32602


# ── transports ──


NOISY = """
import sys
from dovetail import Server

server = Server("noisy")

@server.tool
def shout() -> str:
    print("said by print")
    print("said to stderr", file=sys.stderr)
    raise RuntimeError("a crash")

server.run()
"""


@pytest.mark.seed("S2-06", "S2-07", "S2-65", "S2-66", "S2-67", "S2-68", "S2-84")
def test_json_lines_over_the_pipes_of_a_subprocess_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    messages = [
        request(0, "tools/list"),  # too early
        request(1, "initialize", HELLO),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        request(2, "tools/call", {"name": "shout"}),
    ]
    sent = "".join(f"{json.dumps(message)}\n" for message in messages)
    command = [sys.executable, str(tmp_path / "noisy.py")]
    done = subprocess.run(command, input=sent, capture_output=True, text=True, timeout=60, check=True)
    answers = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    early, welcome, called = (answers.pop(id) for id in range(3))
    assert not answers
    assert "Not initialised" in early["error"]["message"]
    assert welcome["result"]["protocolVersion"] == REVISION
    assert called["result"]["isError"] is True
    for sign in ("said by print", "said to stderr", "RuntimeError: a crash"):
        assert done.stderr.count(sign) == 1


TOPIC = """
from dovetail import Server

server = Server({topic!r})

@server.tool
def publish(text: str) -> str:
    return {topic!r} + ": " + text

server.run()
"""


@pytest.mark.long
@pytest.mark.seed("S2-04", "S2-91")
async def test_a_host_spawns_several_servers_of_one_project(tmp_path: Path) -> None:
    topics = ["blog", "social", "creative"]
    for topic in topics:
        (tmp_path / "servers" / topic).mkdir(parents=True)
        (tmp_path / "servers" / topic / "main.py").write_text(TOPIC.format(topic=topic))
    commands = {
        topic: {"command": sys.executable, "args": [str(tmp_path / "servers" / topic / "main.py")]} for topic in topics
    }
    async with Clients({"mcpServers": commands}, protocol_version=REVISION) as clients:
        assert [tool.name for tool in await clients.list_tools()] == [f"{topic}_publish" for topic in topics]
        for topic in topics:
            assert (await clients.call_tool(f"{topic}_publish", {"text": "hello"})).text == f"{topic}: hello"


# ── security and trust ──


@pytest.mark.seed("S2-73", "S2-93")
async def test_uris_and_inputs_are_validated(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "fine.txt").write_text("fine")
    guarded = create_server()
    guarded.add_directory(tmp_path / "open", uri="docs://open")
    async with Wire(guarded, REVISION) as wire:
        assert (await wire.ask("resources/read", {"uri": "docs://open/fine.txt"}))["contents"][0]["text"] == "fine"
        for uri in ("docs://open/../secret", "docs://open/%2e%2e/secret", f"file://{tmp_path}/secret", "no uri"):
            assert (await wire.refusal("resources/read", {"uri": uri}))["code"] == -32002, uri
        for arguments in ({}, {"location": 5}, {"location": ["Rome"]}, {"location": None}):
            refused = await wire.ask("tools/call", {"name": "get_weather", "arguments": arguments})
            assert refused["isError"] is True
            assert "location" in refused["content"][0]["text"]


# ── the index of methods and notifications ──

URI = {"uri": "file:///project/src/main.rs"}
COMPLETE = {"ref": {"type": "ref/prompt", "name": "code_review"}, "argument": {"name": "language", "value": "py"}}
METHODS: dict[str, tuple[dict[str, Any] | None, set[str]]] = {
    "logging/setLevel": ({"level": "info"}, set()),
    "prompts/list": (None, {"prompts"}),
    "prompts/get": ({"name": "code_review", "arguments": {"code": "x"}}, {"description", "messages"}),
    "tools/list": (None, {"tools"}),
    "tools/call": ({"name": "get_weather", "arguments": {"location": "Rome"}}, {"content", "isError"}),
    "resources/list": (None, {"resources"}),
    "resources/read": (URI, {"contents"}),
    "resources/subscribe": (URI, set()),
    "resources/unsubscribe": (URI, set()),
    "resources/templates/list": (None, {"resourceTemplates"}),
    "completion/complete": (COMPLETE, {"completion"}),
}


@pytest.mark.seed("S2-01", "S2-02", "S2-05", "S2-76", "S2-77", "S2-79", "S2-82", "S2-85")
async def test_every_method_of_the_index_is_answered_as_the_schema_says() -> None:
    official.demand()
    async with Wire(server, REVISION) as wire:
        official.validator_for(REVISION, "InitializeResult").validate(wire.welcome)
        for method, (params, keys) in METHODS.items():
            result = await wire.ask(method, params)
            assert result.keys() == keys, method
            official.validator_for(REVISION, official.RESULTS[method]).validate(result)
        assert (await wire.refusal("tools/dance"))["code"] == -32601


@pytest.mark.seed(
    "S2-02", "S2-18", "S2-20", "S2-21", "S2-30", "S2-51", "S2-78", "S2-81", "S2-82", "S3-28", "S3-37"
)  # fmt: skip
@pytest.mark.parametrize("revision", [REVISION, "2025-11-25"])
async def test_every_notification_of_the_index_is_sent_as_the_schema_says(revision: str) -> None:
    official.demand()
    changing = create_server()
    async with Wire(changing, revision) as wire:
        await wire.ask("resources/subscribe", URI)
        changing.notify_resource_updated(URI["uri"])
        changing.add_resource("a://b", lambda: "", name="another")
        changing.add_prompt(lambda: "", name="another")
        changing.add_tool(lambda: "", name="another")
        notified = [await wire.receive() for _ in range(4)]
        wire.send(call_of("get_weather", location="Atlantis"))
        notified.append(await wire.receive())
    for message in notified:
        official.validator_for(revision, "ServerNotification").validate(message)
    for name in ("prompts", "resources", "tools"):
        assert {"jsonrpc": "2.0", "method": f"notifications/{name}/list_changed"} in notified
    assert {message["method"] for message in notified} == {
        "notifications/message", "notifications/resources/list_changed", "notifications/resources/updated",
        "notifications/prompts/list_changed", "notifications/tools/list_changed",
    }  # fmt: skip


@pytest.mark.seed("S2-93")
async def test_params_that_do_not_fit_are_refused() -> None:
    async with Wire(server, REVISION) as wire:
        for method in (method for method, (params, _) in METHODS.items() if params is not None):
            for params in ({}, {"uri": 5, "name": 5, "level": 5, "ref": 5, "argument": 5}):
                assert (await wire.refusal(method, params))["code"] == -32602, method


@pytest.mark.seed("S2-80")
async def test_the_server_asks_the_client_for_its_roots() -> None:
    curious = Server("curious")

    @curious.tool
    async def where(ctx: Context) -> str:
        return " ".join(root.uri for root in await ctx.list_roots())

    async with Wire(curious, REVISION, capabilities={"roots": {"listChanged": True}}) as wire:
        wire.send(call_of("where"))
        question = await wire.receive()
        assert question["method"] == "roots/list"
        roots = [{"uri": "file:///project", "name": "Project"}]
        wire.send({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": roots}})
        answer = await wire.receive()
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (2, "file:///project")


# ── hints for implementations ──


@pytest.mark.seed("S2-86")
@pytest.mark.parametrize("text", ['say "hi"\n\t\\', "72°F ☀ 😀", "\u2028\x00\x1b[31m", "</script>"], ids=ascii)
async def test_any_text_comes_and_goes_as_json(text: str) -> None:
    echoing = Server("echoing")
    echoing.add_tool(lambda text: text, name="echo")
    async with Wire(echoing, REVISION) as wire:
        answer = await wire.exchange(wire.request("tools/call", {"name": "echo", "arguments": {"text": text}}, id="é"))
    result = {"content": [{"type": "text", "text": text}], "isError": False}
    same(answer, {"jsonrpc": "2.0", "id": "é", "result": result})


@pytest.mark.seed("S2-87")
async def test_requests_are_served_at_the_same_time() -> None:
    both = Server("both")
    met = asyncio.Barrier(2)

    @both.tool
    async def meet() -> str:
        await met.wait()  # for the other call
        return "met"

    async with Wire(both, REVISION) as wire:
        for id in (1, 2):
            wire.send(wire.request("tools/call", {"name": "meet"}, id=id))
        assert await wire.ask("ping") == {}  # while both wait, or after
        answers = {message["id"] for message in wire.seen if message["id"] in (1, 2)}
        while answers != {1, 2}:
            answers.add((await wire.receive())["id"])


@pytest.mark.seed("S2-88")
async def test_the_contents_of_a_resource_are_kept() -> None:
    keeping, reads = Server("keeping"), []

    @keeping.resource("a://b", cache=60)
    def counted() -> str:
        reads.append("read")
        return str(len(reads))

    async with Wire(keeping, REVISION) as wire:

        async def read() -> str:
            return (await wire.ask("resources/read", {"uri": "a://b"}))["contents"][0]["text"]

        assert [await read() for _ in range(3)] == ["1", "1", "1"]
        keeping.notify_resource_updated("a://b")
        assert await read() == "2"


@pytest.mark.seed("S2-90", "S2-94", "S3-27")
async def test_for_every_failure_of_a_tool_the_client_gets_an_error_and_the_log_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fragile = Server("fragile")

    @fragile.tool
    def divide(a: int, b: int) -> float:
        return a / b

    async with Wire(fragile, REVISION) as wire:

        async def failure(**arguments: Any) -> str:
            result = await wire.ask("tools/call", {"name": "divide", "arguments": arguments})
            assert result["isError"] is True
            return result["content"][0]["text"]

        assert "divide" in await failure(a=1, b=0)
        assert "ZeroDivisionError" in caplog.text
        wrong = await failure(a="one", c=3)
        for help in ('a: expected an integer, got the string "one"', "b: required, but missing", "c: unknown argument"):
            assert help in wrong
        good = await wire.ask("tools/call", {"name": "divide", "arguments": {"a": 1, "b": 2}})
        assert good["content"][0]["text"] == "0.5"
