"""A URI of any length may come in; only those that may be URIs are looked at."""

from pathlib import Path
from typing import Any

import pytest

from dovetail import Context, NotFound, Server, ToolError
from dovetail.protocol.types import LONGEST_URI
from dovetail.protocol.uri_template import UriTemplate, normalised
from dovetail.registry.files import Directory
from wire import MODERN, Wire

HANDSHAKE = "2025-11-25"
LONGEST = "n://" + "a" * (LONGEST_URI - 4)
TOO_LONG = ["n://" + "%C3%A9" * 2_000, LONGEST + "a", "é" * (LONGEST_URI + 1)]


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the URIs that any template was tried on."""
    lengths: list[int] = []
    match = UriTemplate.match_normal

    def counted(template: UriTemplate, text: str) -> Any:
        lengths.append(len(text))
        return match(template, text)

    def spelled(uri: str) -> str:
        lengths.append(len(uri))
        return normalised(uri)

    monkeypatch.setattr(UriTemplate, "match_normal", counted)
    monkeypatch.setattr("dovetail.registry.resources.normalised", spelled)
    return lengths


def new(guarded: bool) -> Server:
    server = Server("long", version="1.0.0")
    rule: Any = {"scopes": ["s"]} if guarded else {}
    server.add_resource("n://g/{x}", lambda x: x, name="guarded", **rule)
    server.add_resource("n://{+path}", lambda path: str(len(path)), name="all", **rule)

    @server.tool
    async def fetch(ctx: Context, uri: str) -> str:
        try:
            return str(await ctx.read_resource(uri))
        except NotFound as failure:
            raise ToolError(str(failure)) from None

    @server.completion(resource="n://g/{x}", argument="x")
    def complete(value: str) -> list[str]:
        return []

    return server


WAYS: list[tuple[str, str, Any]] = [
    (MODERN, "resources/read", lambda uri: {"uri": uri}),
    (HANDSHAKE, "resources/read", lambda uri: {"uri": uri}),
    (HANDSHAKE, "resources/subscribe", lambda uri: {"uri": uri}),
    (
        MODERN,
        "completion/complete",
        lambda uri: {"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "x", "value": ""}},
    ),
]


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("uri", TOO_LONG)
@pytest.mark.parametrize(("version", "method", "params"), WAYS)
async def test_a_request_with_a_uri_that_is_too_long(
    version: str, method: str, params: Any, uri: str, guarded: bool, looked_at: list[int]
) -> None:
    async with Wire(new(guarded), version) as wire:
        looked_at.clear()
        answer = await wire.exchange(wire.request(method, params(uri)))
        assert not looked_at
        assert "error" in answer
        assert len(repr(answer)) < 1_000, "no echo"


@pytest.mark.parametrize("uri", TOO_LONG)
async def test_other_ways_to_a_uri_that_is_too_long(uri: str, looked_at: list[int]) -> None:
    server = new(guarded=True)
    async with Wire(server, MODERN) as wire:
        looked_at.clear()
        answer = await wire.exchange(wire.request("tools/call", {"name": "fetch", "arguments": {"uri": uri}}))
        assert answer["result"]["isError"]
        assert "longer than 8,192 characters" in repr(answer)
        wire.send(wire.request("subscriptions/listen", {"notifications": {"resourceSubscriptions": [uri]}}))
        assert (await wire.receive())["params"]["notifications"] == {}
    async with Wire(server, HANDSHAKE) as wire:
        assert "result" in await wire.exchange(wire.request("resources/unsubscribe", {"uri": uri}))
    server.engine.library.watch(uri, True)
    assert not looked_at


async def test_the_longest_uri_is_read(looked_at: list[int]) -> None:
    async with Wire(new(guarded=False), MODERN) as wire:
        (contents,) = (await wire.ask("resources/read", {"uri": LONGEST}))["contents"]
        assert contents["text"] == str(LONGEST_URI - 4)
        assert looked_at


async def test_a_file_whose_uri_is_too_long_is_not_offered(tmp_path: Path) -> None:
    names = ["é" * 120] * 12  # 240 bytes each, 720 characters in a URI
    deep = tmp_path.joinpath(*names)
    deep.mkdir(parents=True)
    (deep / "a").write_text("")
    (tmp_path / "b").write_text("")
    directory = Directory(tmp_path, uri="docs://x")
    assert [entry.name for entry in directory.entries()] == ["b"]
    with pytest.raises(NotFound):
        directory.read("/".join([*names, "a"]))
