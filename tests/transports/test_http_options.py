"""HTTP options: what `asgi()` and `run()` refuse, the environment, starts that fail, and servers without sessions."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from http_clients import ANSWER, INVALID_REQUEST, LEGACY, LISTEN, NOT_FOUND, check_refusal, leave, new_server

from dovetail import Server, SetupError
from dovetail.state.memory import MemoryState
from dovetail.transports.http.options import HttpOptions
from http_serving import PausingState, Stage
from http_wire import HANDSHAKE, MODERN, H, HttpExchange, HttpWire, hello, message, modern, open_wire, post


@pytest.fixture
def server() -> Server:
    return Server("options", version="1.0.0")


REFUSED = [  # options of asgi(), and what the refusal names
    *(({"path": path}, "/mcp") for path in ("mcp", "/mcp/", "/a b", "/mcp?x", "//x", "/%6d", "")),
    *(({"path": path}, "something else") for path in ("/health", "/health/live", "/ready", "/sse", "/messages")),
    ({"max_session": 5}, r"unknown options max_session \(did you mean max_sessions\?\); known are"),
    *(({"session_timeout": seconds}, "ten years at most") for seconds in (float("inf"), 1e300, 0, -1)),
    ({"event_timeout": 0}, "ten years at most"),
    ({"identify": "ann"}, "identify="),
]
RUNS = [  # options of run()
    ({"port": 1, "host": "localhost"}, 'only for transport="http": host, port'),
    ({"transport": "carrier pigeon"}, 'use "stdio" or "http"'),
    ({"transport": "http", "prot": 8000}, r"unknown options prot \(did you mean port\?\); known are"),
    ({"transprot": "http"}, r"unknown options transprot \(did you mean transport\?\)"),
]


def test_options_that_can_not_be_meant(server: Server) -> None:
    for use, rows in ((server.asgi, REFUSED), (server.run, RUNS)):
        for options, words in rows:
            with pytest.raises(SetupError, match=words):
                use(**options)


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, value in (("1", True), ("on", True), ("TRUE", True), ("off", False), ("0", False), ("No", False)):
        monkeypatch.setenv("DOVETAIL_SSE", text)
        assert HttpOptions.from_keywords({}).sse is value
        assert HttpOptions.from_keywords({"sse": not value}).sse is not value  # what is given wins
    monkeypatch.setenv("DOVETAIL_ALLOWED_HOSTS", "a.example, b.example  c.example")
    assert HttpOptions.from_keywords({}).allowed_hosts == ["a.example", "b.example", "c.example"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("SSE", "perhaps", "must be on or off"),
        ("KEEP_ALIVE", "-1", "a number of seconds above 0"),
        ("PORT", "tcp://10.0.0.1:80", "enableServiceLinks"),
    ],
)
def test_what_the_environment_can_not_mean(monkeypatch: pytest.MonkeyPatch, name: str, text: str, words: str) -> None:
    monkeypatch.setenv(f"DOVETAIL_{name}", text)
    with pytest.raises(SetupError, match=f"DOVETAIL_{name}.*{words}"):
        HttpOptions.from_keywords({}, running=True)


async def test_identify_gives_a_name_or_none_and_without_sse_its_paths_are_free(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    app = server.asgi(path="/messages", sse=False, identify=lambda scope: next(names))
    names = iter(["ann", None, 17])
    wire = HttpWire(app, path="/messages")
    answers = [await wire.post("server/discover") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 500]
    assert answers[2].json["error"]["message"] == "Internal error"
    assert "identify must give a string or None" in caplog.text
    await app.drain()


@pytest.mark.parametrize("name", ["http", "streamable-http", "sse"])
def test_the_names_that_others_have_for_http(server: Server, name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[HttpOptions] = []
    monkeypatch.setattr("dovetail.transports.serve.serve_http", lambda engine, options, owner: served.append(options))
    server.run(transport=name, port=1234)
    assert served[0].port == 1234


async def asked(app: Any) -> int:
    return (await HttpWire(app).raw("POST", b"{}", {"content-type": "application/json"}).done()).status


@pytest.mark.parametrize("way", ["fails", "is cancelled"])
async def test_a_lifespan_that_is_not_entered_leaves_no_store_open_and_is_tried_again(tmp_path: Path, way: str) -> None:
    entered = asyncio.Event()

    @asynccontextmanager
    async def lifespan(_server: Any) -> AsyncIterator[None]:
        entered.set()
        if way == "fails":
            raise ValueError("no database")
        if way == "is cancelled":
            await asyncio.Event().wait()
        yield

    app = Stage(lifespan=lifespan).server.asgi(state=f"sqlite:///{tmp_path}/state.db")
    for _ in range(2):
        asking = [asyncio.create_task(asked(app)) for _ in range(3)]
        await entered.wait()
        if way == "is cancelled":
            await app.drain(1)
        assert await asyncio.gather(*asking) == [500 if way == "fails" else 503] * 3
        assert "dovetail-state" not in [thread.name for thread in threading.enumerate()]
    if way == "fails":
        way = "works"
        assert await asked(app) == 400
        await app.drain(1)


async def test_a_store_that_the_author_opened_stays_open() -> None:
    state = PausingState()
    await state.put("key", b"value", ttl=60)
    app = Stage(lifespan=lambda _: 1 / 0).server.asgi(state=state)
    assert await asked(app) == 500
    assert await state.get("key") is not None


async def test_a_store_that_the_app_opened_is_that_of_the_server_until_the_app_ends(tmp_path: Path) -> None:
    server = Stage().server
    app = server.asgi(state=f"sqlite:///{tmp_path}/state.db")
    for _ in range(2):
        await app.start()
        assert server.engine.state.shared
        await app.drain(1)
        await server.engine.state.check()  # of one that is open
        assert not server.engine.state.shared


class EmptyState(MemoryState):
    puts = 0

    def __len__(self) -> int:
        return 0

    async def put(self, *arguments: Any, **options: Any) -> int:
        self.puts += 1
        return await super().put(*arguments, **options)


async def test_a_store_that_counts_as_false_is_used(server: Server) -> None:
    state = EmptyState()
    app = server.asgi(state=state)
    await open_wire(app, HANDSHAKE[-1])
    await app.drain()
    assert state.puts


@pytest.fixture
async def app() -> AsyncIterator[Any]:
    app = new_server().asgi(stateless=True)
    yield app
    await app.drain(0)


async def ask(app: Any, version: str | None, method: str, params: Any = ...) -> HttpExchange:
    return await post(HttpWire(app), message(method, params), {"mcp-protocol-version": version})


@pytest.mark.rule("SH-25", "LIFE-2", "LIFE-3", "LIFE-7", "SH-6", "SH-8", "SH-11", "SH-14", "SH-31", "BASE-19", "LOG-1")
@pytest.mark.rule("PROG-1")
@pytest.mark.parametrize("version", LEGACY)
async def test_rows_14_18_and_19(app: Any, version: str) -> None:
    """The handshake gives and promises no session; requests are served at the version of their header."""
    welcome = await post(HttpWire(app), hello(version))
    assert (welcome.status, welcome.json["result"]["protocolVersion"]) == (200, version)
    assert "mcp-session-id" not in welcome.headers
    capabilities = welcome.json["result"]["capabilities"]
    assert capabilities.pop("completions", {}) == {}
    assert capabilities == {"tools": {}, "resources": {}, "prompts": {}}
    listed = await ask(app, version, "tools/list")
    assert ("outputSchema" in listed.json["result"]["tools"][0]) == (version >= "2025-06-18")
    assert "mcp-session-id" not in listed.headers
    for method in ("resources/subscribe", "resources/unsubscribe", "logging/setLevel"):
        params = {"level": "debug"} if method == "logging/setLevel" else {"uri": "notes://all"}
        text = check_refusal(await ask(app, version, method, params), 200, NOT_FOUND, "q")
        assert method in text
        assert "session" in text
    call = await ask(app, version, "tools/call", {"name": "talk"})  # which logs, and that was not promised
    assert call.json["result"]["content"][0]["text"] == "done"
    call = await ask(app, version, "tools/call", {"name": "chatty", "_meta": {"progressToken": "t"}})
    assert [each["params"]["progress"] for each in call.messages[:-1]] == [1, 2]
    assert call.answer["id"] == "q"
    assert not any(event.id for event in call.events), "there is nothing to come back to"


@pytest.mark.rule("MH-28", "LIFE-21")
async def test_the_modern_era_is_promised_as_much_as_ever(app: Any) -> None:
    with_sessions = await HttpWire(new_server().asgi()).ask("server/discover")
    found = await HttpWire(app).ask("server/discover")
    assert found["capabilities"] == with_sessions["capabilities"]
    assert found["capabilities"]["resources"] == {"subscribe": True, "listChanged": True}
    listen = HttpWire(app).start("subscriptions/listen", LISTEN)
    assert (await listen.message())["params"]["notifications"] == LISTEN["notifications"]
    await leave(listen)


@pytest.mark.rule("SH-5", "SH-31", "BASE-11", "BASE-12")
async def test_batches_and_what_has_no_header_are_of_2025_03_26(app: Any) -> None:
    assert "outputSchema" not in (await ask(app, None, "tools/list")).json["result"]["tools"][0]
    for headers in ({}, H("2025-03-26")):
        parts = [message("ping", id=1), message("x/y", id=None), hello("2025-03-26"), modern("tools/list", id=2)]
        answers = (await post(HttpWire(app), parts, headers)).json
        assert [(each["id"], "error" in each) for each in answers] == [(1, False), ("q", True), (2, True)]
        assert (await post(HttpWire(app), [ANSWER], headers)).status == 202
    for version in ("2025-06-18", MODERN, "banana"):
        check_refusal(await post(HttpWire(app), [message("ping")], H(version)), 400, INVALID_REQUEST)


@pytest.mark.rule("SH-16", "SH-30", "MH-28")
@pytest.mark.parametrize("version", [None, "2025-06-18", MODERN, "banana"])
async def test_there_is_nothing_to_get_or_delete(app: Any, version: str | None) -> None:
    for verb in ("GET", "DELETE"):
        for session in (None, "whatever"):
            headers = {"mcp-protocol-version": version, "mcp-session-id": session}
            answer = await HttpWire(app).raw(verb, b"", headers).done()
            check_refusal(answer, 405, INVALID_REQUEST)
            assert {each.strip() for each in answer.headers["allow"].split(",")} == {"POST", "OPTIONS"}
