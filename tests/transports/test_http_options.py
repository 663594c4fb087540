"""What `asgi()` and `run()` refuse before anything is served, and what they take from the environment."""

from typing import Any

import pytest

from dovetail import Server, SetupError
from dovetail.transports.options import HttpOptions
from http_wire import HttpWire


@pytest.fixture
def server() -> Server:
    server = Server("options", version="1.0.0")

    @server.tool
    async def whoami() -> str:
        return "you"

    return server


@pytest.mark.parametrize("path", ["mcp", "/", "/mcp/", "/a b", "/mcp?x", "/mcp#x", "//x", "/%6d", ""])
def test_a_path_must_be_one(server: Server, path: str) -> None:
    with pytest.raises(SetupError, match='it must be like "/mcp"'):
        server.asgi(path=path)


def test_a_misspelled_option_names_the_one_that_was_meant(server: Server) -> None:
    with pytest.raises(SetupError, match=r"unknown options max_session \(did you mean max_sessions\?\); known are"):
        server.asgi(max_session=5)
    with pytest.raises(SetupError, match=r"unknown options prot \(did you mean port\?\); known are"):
        server.run("http", prot=8000)


@pytest.mark.parametrize("path", ["/health", "/health/live", "/ready", "/health/ready", "/sse", "/messages"])
def test_a_path_must_be_free(server: Server, path: str) -> None:
    with pytest.raises(SetupError, match="something else is served there"):
        server.asgi(path=path)


async def test_without_sse_its_paths_are_free(server: Server) -> None:
    app = server.asgi(path="/messages", sse=False)
    assert (await HttpWire(app, path="/messages").ask("server/discover"))["capabilities"]
    await app.drain()


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("on", True), ("TRUE", True), ("off", False), ("0", False), ("No", False)]
)
def test_switches_in_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("DOVETAIL_SSE", text)
    assert HttpOptions.of({}).sse is value
    assert HttpOptions.of({"sse": not value}).sse is not value  # what is given wins


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
        HttpOptions.of({}, running=True)


def test_lists_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_ALLOWED_HOSTS", "a.example, b.example  c.example")
    assert HttpOptions.of({}).allowed_hosts == ["a.example", "b.example", "c.example"]


# ── who is calling ──


@pytest.mark.parametrize("found", [17, b"ann", object()])
async def test_identify_gives_a_name_or_none(server: Server, caplog: pytest.LogCaptureFixture, found: Any) -> None:
    app = server.asgi(identify=lambda scope: found)
    answer = await HttpWire(app).post("server/discover")
    assert answer.status == 500
    assert answer.json["error"]["message"] == "Internal error"
    assert "identify must give a string or None" in caplog.text
    await app.drain()


# ── run() ──


def test_options_of_http_are_not_for_stdio(server: Server) -> None:
    with pytest.raises(SetupError, match='only for transport="http": host, port'):
        server.run(port=1, host="localhost")


def test_a_misspelt_option_is_not_one_for_http(server: Server) -> None:
    options: Any = {"transprot": "http", "port": 1}
    with pytest.raises(SetupError, match=r"Server.run: unknown options transprot \(did you mean transport\?\)"):
        server.run(**options)


def test_an_unknown_transport(server: Server) -> None:
    with pytest.raises(SetupError, match='use "stdio" or "http"'):
        server.run(transport="carrier pigeon")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["http", "streamable-http", "sse"])
def test_the_names_that_others_have_for_http(server: Server, name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[HttpOptions] = []
    monkeypatch.setattr("dovetail.transports.serve.serve_http", lambda engine, options, owner: served.append(options))
    server.run(transport=name, port=1234)
    assert served[0].port == 1234


def test_mount_on_a_router_with_a_prefix(server: Server) -> None:
    fastapi = pytest.importorskip("fastapi")
    with pytest.raises(SetupError, match="mount on the app"):
        server.asgi().mount_on(fastapi.APIRouter(prefix="/v1"), "/mcp")


@pytest.mark.parametrize("option", ["session_timeout", "event_timeout"])
@pytest.mark.parametrize("seconds", [float("inf"), 1e300, 0, -1])
def test_what_is_kept_is_kept_for_a_time_that_ends(server: Server, option: str, seconds: float) -> None:
    with pytest.raises(SetupError, match="ten years at most"):
        server.asgi(**{option: seconds})  # type: ignore[typeddict-item]
