"""`Clients`: several servers, and the files that name them."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedTransport, result

from dovetail import Clients, ConnectionLost, SetupError, ToolError
from dovetail.client.auth import BearerToken
from dovetail.client.config import MAX_FILE_BYTES, ListedServer, read_servers
from dovetail.client.oauth import ClientCredentials, JwtBearer, OAuth


class Member(ScriptedTransport):
    """Answers with its own name."""

    def __init__(self, name: str, tools: tuple[str, ...], features: tuple[str, ...]) -> None:
        super().__init__(self.reply)
        self.name, self.tools, self.features = name, tools, features
        self.silent = False

    def reply(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        params = message.get("params", {})
        if self.silent:
            return []
        match message["method"]:
            case "server/discover":
                offered = {feature: {} for feature in self.features}
                value: Any = {"supportedVersions": ["2026-07-28"], "capabilities": offered}
            case "tools/list":
                value = {"tools": [{"name": tool, "inputSchema": {"type": "object"}} for tool in self.tools]}
            case "resources/list":
                value = {"resources": [{"uri": "note://1", "name": "one"}]}
            case "resources/templates/list":
                value = {"resourceTemplates": [{"uriTemplate": "note://{id}", "name": "any"}]}
            case "resources/read":
                value = {"contents": [{"uri": params["uri"], "text": self.name}]}
            case "tools/call":
                value = {"content": [{"type": "text", "text": f"{self.name} {params['name']}"}]}
            case _:
                return []
        return [result(message, {"resultType": "complete", **value})]


class Group:
    """Scripted servers by name, and the configuration that reaches them."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.given: dict[str, dict[str, Any]] = {}

    def add(self, name: str, *tools: str, features: tuple[str, ...] = ("tools",)) -> Member:
        self.members[name] = Member(name, tools, features)
        return self.members[name]

    @property
    def config(self) -> dict[str, Any]:
        return {"mcpServers": {name: {"command": name} for name in self.members}}

    def transport(self, target: Any, options: dict[str, Any]) -> Member:
        name = target if isinstance(target, str) else target[0]
        self.given[name] = options
        return self.members[name]


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    group = Group()
    monkeypatch.setattr("dovetail.client.client.make_transport", group.transport)
    return group


async def test_tools_of_all_servers(group: Group) -> None:
    group.add("weather", "forecast", "alerts")
    group.add("my notes", "add")
    group.add("silent", features=())
    async with Clients(group.config) as clients:
        assert list(clients) == ["weather", "my notes", "silent"]
        names = [tool.name for tool in await clients.list_tools()]
        assert names == ["weather_forecast", "weather_alerts", "my_notes_add"]
        assert (await clients.call_tool("weather_forecast", {"city": "Rome"})).text == "weather forecast"
        assert (await clients.call_tool("my_notes_add")).text == "my notes add"
        assert (await clients["weather"].call_tool("alerts")).text == "weather alerts"
        with pytest.raises(
            ToolError, match=r"no tool 'forecast': .* name of its server \(weather_, my_notes_, silent_\)"
        ):
            await clients.call_tool("forecast")
    assert group.members["weather"].sent[-1]["params"]["name"] == "alerts"
    assert "tools/list" not in group.members["silent"].methods()
    assert all(member.closed == 1 for member in group.members.values())


async def test_resources_by_server_and_uri(group: Group) -> None:
    group.add("a", features=("resources",))
    group.add("b", features=("resources",))
    async with Clients(group.config) as clients:
        listed = [(server, found.uri) for server, found in await clients.list_resources()]
        assert listed == [("a", "note://1"), ("b", "note://1")]
        assert [server for server, _ in await clients.list_resource_templates()] == ["a", "b"]
        assert (await clients.read_resource("b", "note://1"))[0].text == "b"
        with pytest.raises(KeyError, match="there is no server 'c'; open are: a, b"):
            await clients.read_resource("c", "note://1")


async def test_names_that_begin_alike(group: Group) -> None:
    group.add("git", "hub_search", "log")
    group.add("git_hub", "search", "open")
    async with Clients(group.config) as clients:
        names = [tool.name for tool in await clients.list_tools()]
        assert names == ["git_log", "git_hub_search", "git_hub_open"]
        assert "hub_search of 'git' is left out: git_hub_search would be one of 'git_hub'" in str(
            clients.failures["git"]
        )
        assert (await clients.call_tool("git_hub_search")).text == "git_hub search"
        assert (await clients.call_tool("git_log")).text == "git log"
        assert (await clients.call_tool("git_hub_unlisted")).text == "git_hub unlisted"
    async with Clients(group.config, strict=True) as clients:
        with pytest.raises(SetupError, match="give one of these servers another name"):
            await clients.list_tools()


async def test_options_for_all_and_for_one(group: Group) -> None:
    group.add("a")
    group.add("b")

    def named(server: str) -> dict[str, Any]:
        return {"client_info": {"name": server, "version": "1"}}

    async with Clients(group.config, options_for=named, roots=["."]):
        pass
    for name, member in group.members.items():
        meta = member.sent[0]["params"]["_meta"]
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == name
        assert "roots" in meta["io.modelcontextprotocol/clientCapabilities"]


async def test_signing_in_is_for_urls_that_have_no_token(group: Group) -> None:
    for name in ("program", "http://open/mcp", "http://known/mcp"):
        group.add(name)
    servers = {
        "program": {"command": "program"},
        "open": {"url": "http://open/mcp"},
        "known": {"url": "http://known/mcp", "headers": {"authorization": "Bearer x"}},
    }
    signing_in = OAuth()
    async with Clients({"mcpServers": servers}, auth=signing_in) as clients:
        assert list(clients) == ["program", "open", "known"]
    given = {name: options.get("auth") for name, options in group.given.items()}
    assert given == {"program": None, "http://open/mcp": signing_in, "http://known/mcp": None}


def test_one_token_is_not_shown_to_all() -> None:
    for auth in ("s3cret", BearerToken("s3cret")):
        with pytest.raises(SetupError, match="would be shown to every server"):
            Clients({"mcpServers": {}}, auth=auth)


MACHINES: dict[str, Callable[..., Any]] = {
    "secret": partial(ClientCredentials, "ci", "s3cret"),
    "assertion": partial(JwtBearer, "ci", "s3cret"),
    "known client": partial(OAuth, client_id="app", client_secret="s3cret"),
}


@pytest.mark.parametrize("kind", MACHINES)
def test_one_secret_is_shown_only_where_it_belongs(kind: str) -> None:
    with pytest.raises(SetupError, match="would be shown to whomever a server names; say where it belongs") as caught:
        Clients({"mcpServers": {}}, auth=MACHINES[kind]())
    assert "s3cret" not in str(caught.value)
    Clients({"mcpServers": {}}, auth=MACHINES[kind](issuer="https://login.example.com"))


async def test_one_that_does_not_answer_stops_no_other(group: Group) -> None:
    group.add("good", "work")
    group.add("late").silent = True
    config = group.config
    config["mcpServers"]["odd"] = {}
    async with Clients(config, connect_timeout=0.5) as clients:
        assert list(clients) == ["good"]
        assert {name: type(why) for name, why in clients.failures.items()} == {"late": TimeoutError, "odd": SetupError}
        assert str(clients.failures["late"]) == "The server was not reached within 0.5 s"
        assert (await clients.call_tool("good_work")).text == "good work"
        with pytest.raises(ConnectionLost, match="late_work: the server 'late' can't be used: The server was not"):
            await clients.call_tool("late_work")
        with pytest.raises(KeyError, match="'late' could not be opened"):
            clients["late"]
    with pytest.raises(TimeoutError, match="was not reached within") as failed:
        async with Clients(group.config, connect_timeout=0.5, strict=True):
            pass
    assert failed.value.__notes__ == ["This is about the server 'late'."]
    assert [member.closed for member in group.members.values()] == [2, 2]


def one(**entry: Any) -> ListedServer:
    return read_servers({"mcpServers": {"it": entry}})["it"]


def test_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PLACE", "Rome")
    monkeypatch.delenv("NOWHERE", raising=False)
    listed = one(
        command="${userHome}/bin/server",
        args=["--place", "${PLACE}", "${env:PLACE}/${NOWHERE:-x y}", "$PLACE {PLACE}"],
        env={"CITY": "${PLACE}!", "LIMIT": 7, "LOUD": True, "EMPTY": None},
        alwaysAllow=["everything"],
    )
    assert listed.target == [f"{tmp_path}/bin/server", "--place", "Rome", "Rome/x y", "$PLACE {PLACE}"]
    assert listed.options == {"env": {"CITY": "Rome!", "LIMIT": "7", "LOUD": "true"}, "cwd": None}


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"url": "http://x/mcp"}, None),
        *(({"url": "http://x/mcp", "type": kind}, "http") for kind in ("http", "streamable-http", "streamableHttp")),
        ({"url": "http://x/mcp", "type": "sse"}, "sse"),
        ({"httpUrl": "http://x/mcp"}, "http"),
    ],
)
def test_a_url(entry: dict[str, str], transport: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    listed = one(**entry, headers={"Authorization": "Bearer ${TOKEN}"})
    assert listed.target == "http://x/mcp"
    assert listed.options == {"headers": {"Authorization": "Bearer s3cret"}, "transport": transport}


@pytest.mark.parametrize("key", ["mcpServers", "servers"])
def test_a_file(tmp_path: Path, key: str) -> None:
    path = tmp_path / "mcp.json"
    servers = {"a": {"command": "x", "cwd": "sub"}, "b": {"url": "http://b"}, "c": {"command": "y", "disabled": True}}
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({key: servers, "inputs": []}).encode())
    found = read_servers(str(path))
    assert list(found) == ["a", "b"]
    assert found["a"].options["cwd"] == tmp_path / "sub"


def test_a_file_as_people_write_it(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("""{
        // the servers, of which "one" is for /* tests
        "servers": {
            "a": {"url": "http://a/mcp//x"}, /* not
            "b": {"command": "gone"}, */
            "c": {"command": "say", "args": ["// \\"no/*", "a,]", "}",], }, // the last one
        },
    }""")
    found = read_servers(path)
    assert list(found) == ["a", "c"]
    assert found["a"].target == "http://a/mcp//x"
    assert found["c"].target == ["say", '// "no/*', "a,]", "}"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${NOWHERE:-${PLACE}}", "Rome"),
        ("<${NOWHERE:-in ${env:PLACE}, here}>", "<in Rome, here>"),
        ("${PLACE:-${NO_SUCH}}", "Rome"),  # which is not needed
        ('${NOWHERE:-{"a": 1}}', '{"a": 1}'),
        ("${ODD}", "${PLACE}"),
        ("${" * 200_000, "${" * 200_000),
    ],
    ids=str.__len__,
)
def test_references(text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "Rome")
    monkeypatch.setenv("ODD", "${PLACE}")
    for name in ("NOWHERE", "NO_SUCH"):
        monkeypatch.delenv(name, raising=False)
    assert one(command="x", args=[text]).target == ["x", expected]


@pytest.mark.parametrize(("folder", "about"), [(".vscode", "."), (".cursor", "."), ("conf", "conf")])
def test_the_folder_that_a_file_is_about(tmp_path: Path, folder: str, about: str) -> None:
    path = tmp_path / folder / "mcp.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"servers": {"a": {"command": "${workspaceFolder}/run"}}}))
    assert read_servers(path)["a"].target == [f"{(tmp_path / about).resolve()}/run"]


UNREADABLE: dict[str, tuple[bytes | None, str]] = {
    "not there": (None, r"mcp\.json can't be read: No such file"),
    "no quotes": (b'{\n// servers\n"mcpServers": {a: 1}}', "no JSON object near line 3"),
    "half a comment": (b'{"mcpServers": {}} /* and', "no JSON object"),
    "two commas": (b'{"mcpServers": {},,\n}', "no JSON object near line 2"),
    "half of it": (b'{"mcpServers": ', "no JSON object"),
    "a list": (b"[]", "no JSON object"),
    "no text": (b"\xff\xfe{}", "no JSON object"),
    "deep": (b'{"a":' * 100_000, "no JSON object"),
    "too long": (b" " * (MAX_FILE_BYTES + 1), "longer than"),
    "no servers": (b'{"mcpserver": {}}', 'names no servers: it needs "mcpServers"'),
    "a list of servers": (b'{"servers": []}', "names no servers"),
    "too many": (json.dumps({"servers": {str(number): {} for number in range(101)}}).encode(), "names 101 servers"),
}


@pytest.mark.parametrize(("content", "words"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_file_that_is_none(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(content) if content is not None else None
    with pytest.raises(SetupError, match=words):
        Clients(path)


UNUSABLE: dict[str, tuple[Any, str]] = {
    "neither": ({}, '"command" or a "url", and not both'),
    "both": ({"command": "x", "url": "http://x"}, "not both"),
    "a number": (7, "it is no object"),
    "a command in a list": ({"command": ["x"]}, "`command` has the wrong type"),
    "words": ({"command": "x", "args": "--all"}, "`args` has the wrong type"),
    "a secret object": ({"command": "x", "env": {"KEY": {"s3cret": 1}}}, "`env.* has the wrong type"),
    "another type": ({"url": "http://x", "type": "carrier pigeon"}, '"type" is unknown'),
    "an environment file": ({"command": "x", "envFile": ".env"}, '"envFile" is not read here'),
    "a variable": ({"command": "x", "args": ["${NO_SUCH}"]}, "the variable NO_SUCH is not set"),
    "a variable of a header": ({"url": "http://x", "headers": {"A": "${env:NO_SUCH}"}}, "NO_SUCH is not set"),
    "a question": ({"command": "x", "env": {"KEY": "${input:key}"}}, "asks a person"),
    "NUL in a word": ({"command": "x", "args": ["s3cret\0"]}, "what no system takes"),
    "NUL in a variable": ({"command": "x", "env": {"A": "s3cret\0"}}, "what no system takes"),
    "NUL in its name": ({"command": "x", "env": {"s3cret\0": ""}}, "what no system takes"),
    "NUL in the folder": ({"command": "x", "cwd": "s3cret\0"}, "what no system takes"),
    "a name with =": ({"command": "x", "env": {"A=s3cret": ""}}, "what no system takes"),
    "a header with spaces": ({"url": "http://x", "headers": {"Bearer s3cret": ""}}, '"headers" hold a name'),
    "a header of two lines": ({"url": "http://x", "headers": {"A": "s3cret\n"}}, '"headers" hold a name'),
    "a password": ({"url": "http://me:s3cret@x"}, 'belong in an "Authorization"'),
    "something else": ({"command": "${command:pick s3cret}"}, "is not understood"),
}


@pytest.mark.parametrize(("entry", "words"), UNUSABLE.values(), ids=UNUSABLE.keys())
async def test_a_server_that_can_not_be_used(entry: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    async with Clients({"mcpServers": {"bad": entry}}) as clients:
        assert not clients
        assert isinstance(clients.failures["bad"], SetupError)
        assert "s3cret" not in str(clients.failures["bad"]) or "not understood" in words
    with pytest.raises(SetupError, match=f"(The server 'bad' can't be|can't start) .*{words}"):
        async with Clients({"mcpServers": {"bad": entry}}, strict=True):
            pass
