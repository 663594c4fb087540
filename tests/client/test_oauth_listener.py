"""The listener that a browser comes back to: it believes one visit only, and answers all others without harm."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from dovetail.client.oauth import browser
from dovetail.client.oauth.browser import RedirectListener, show_and_open
from dovetail.errors import NotSignedIn

pytestmark = pytest.mark.usefixtures("tidy")


async def nobody(url: str) -> None:
    """Opens nothing."""


@asynccontextmanager
async def waiting(redirect_uri: str | None = None, **options: Any) -> AsyncIterator[tuple[str, "asyncio.Task[str]"]]:
    async with RedirectListener.opened(redirect_uri) as listener:
        task = asyncio.create_task(
            listener.visit("https://login.example/", "right", options.get("open", nobody), options.get("seconds", 5))
        )
        await asyncio.sleep(0.01)
        yield listener.uri, task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def get(url: str, method: str = "GET") -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.request(method, url) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        return answer.status, await answer.text()


VISITS = {
    "?state=wrong&code=1": 400,
    "?code=1": 400,
    "?state=right&state=right&code=1": 400,
    "?" + "&".join(f"a{n}=1" for n in range(60)) + "&state=right": 400,
    "/more?state=right&code=1": 404,
}


@pytest.mark.parametrize("visit", VISITS, ids=[str(n) for n in range(len(VISITS))])
async def test_it_waits_for_the_right_one(visit: str) -> None:
    async with waiting() as (uri, coming):
        assert uri.startswith("http://127.0.0.1:")
        status, page = await get(uri + visit)
        assert status == VISITS[visit]
        assert "state" not in page
        assert (await get(uri + "?state=right", "POST"))[0] == 404
        assert not coming.done()
        assert (await get(f"{uri}?state=right&code=2"))[0] == 200
        assert await coming == f"{uri}?state=right&code=2"


async def test_noise_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "VISIT_SECONDS", 0.2)
    async with waiting() as (uri, coming):
        port = int(uri.split(":")[2].split("/")[0])
        for noise in (b"", b"\x00\xff\r\n\r\n", b"GET /" + b"a" * 100_000, b"GET / HTTP/1.1\r\nSlow: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(noise)
            await asyncio.wait_for(reader.read(), 5) if noise else None
            writer.transport.abort()
        await get(f"{uri}?state=right&error=access_denied")
        assert "error=access_denied" in await coming


async def test_nobody_comes() -> None:
    async with waiting(seconds=0.05) as (_, coming):
        with pytest.raises(NotSignedIn, match=r"Nobody signed in within 0.05 s"):
            await coming


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_browser_that_does_not_open(is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    def broken(url: str) -> None:
        raise OSError("no display")

    async def broken_too(url: str) -> None:
        broken(url)

    async with waiting(open=broken_too if is_async else broken) as (_, coming):
        with pytest.raises(NotSignedIn, match="could not be opened"):
            await coming
    assert "no display" in caplog.text


class Opener:
    def __init__(self) -> None:
        self.opened: list[str] = []

    async def __call__(self, url: str) -> None:
        self.opened.append(url)


@pytest.mark.parametrize(
    "wrap", [lambda opener: opener, lambda opener: lambda url: opener(url)], ids=["object", "lambda"]
)
async def test_whatever_opens_it_is_waited_for(wrap: Any) -> None:
    opener = Opener()
    async with waiting(open=wrap(opener)) as (uri, coming):
        await get(f"{uri}?state=right&code=1")
        await coming
    assert opener.opened == ["https://login.example/"]


async def test_a_port_that_is_taken() -> None:
    async with waiting() as (uri, _):
        with pytest.raises(NotSignedIn, match="is in use"):
            async with waiting(uri):
                pass


async def test_a_place_of_the_users_own() -> None:
    async with waiting("http://localhost/back") as (uri, coming):
        assert uri.startswith("http://localhost:")
        await get(f"{uri.replace('localhost', '127.0.0.1')}?state=right&code=1")
        assert await coming == f"{uri}?state=right&code=1"


def test_the_url_is_shown_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    show_and_open("https://login.example/?a=1")
    printed = capsys.readouterr()
    assert opened == ["https://login.example/?a=1"]
    assert "https://login.example/?a=1" in printed.err
    assert not printed.out
