"""Limits hold for all workers together: what one lets through counts for the others, and no slot stays taken."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import fleet_processes
import pytest
from fleet_client import PATIENCE, Loud, RawSession, modern
from fleet_processes import Fleet, fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
RATE = 10  # a day, of the tool `order`, and of a server that has one
CALLS = 24  # at once
PRESSED_SECONDS = 0.05
SOON = 5.0
LEASE_SECONDS = 4.0  # after which the slot of a lost worker is free; in haste
STORES = ["redis", pytest.param("sqlite", marks=pytest.mark.soak)]


@pytest.fixture(scope="module", params=STORES)
def three(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp(request.param), workers=3, store=request.param, FLEET_HASTE="3") as three:
        yield three
        three.assert_clean()


async def crowd(three: Fleet, http: aiohttp.ClientSession, tool: str, **arguments: object) -> list[str]:
    """What comes of many calls at once, to all workers; half of them in sessions."""
    sessions = [await RawSession(http, url).open() for url in three.urls]

    async def call(number: int) -> str:
        given = {"nonce": f"n{number}", **arguments}
        try:
            if number % 2:
                return str(await sessions[number % 3].call(tool, given, []))
            return str(await modern(http, three.urls[number % 3], tool, **given))
        except Loud as refusal:
            return f"refused: {refusal}"

    return await asyncio.gather(*(call(number) for number in range(CALLS)))


def let_through(answers: list[str]) -> int:
    right = [answer for number, answer in enumerate(answers) if answer == f"n{number}"]
    refused = [answer for answer in answers if answer.startswith("refused: ")]
    assert len(right) + len(refused) == len(answers), answers
    return len(right)


# ── rates ──


async def test_a_tool_is_called_no_more_often_than_it_allows(three: Fleet, http: aiohttp.ClientSession) -> None:
    answers = await crowd(three, http, "order")
    assert let_through(answers) == RATE
    assert all("try again in" in answer for answer in answers if answer.startswith("refused"))
    assert let_through(await crowd(three, http, "echo")) == CALLS  # others go on
    await asyncio.to_thread(three.workers[0].kill)  # what was let through counts, though its worker died
    await asyncio.to_thread(three.workers[0].start)
    assert let_through(await crowd(three, http, "order")) == 0


@pytest.mark.soak
@pytest.mark.parametrize("store", ["redis", "sqlite"])
async def test_a_server_is_called_no_more_often_than_it_allows(
    tmp_path: Path, http: aiohttp.ClientSession, store: str
) -> None:
    with fleet(tmp_path, workers=3, store=store, FLEET_RATE=f"{RATE}/day") as three:
        assert let_through(await crowd(three, http, "echo")) == RATE
        session = await RawSession(http, three.urls[0]).open()  # which is not counted
        message = session.request("tools/call", {"name": "echo", "arguments": {"nonce": "late"}})
        for url in three.urls:
            reply = await session.send("POST", message, at=url)
            assert reply.status == 429
            assert int(reply.headers["Retry-After"]) == json.loads(reply.text)["error"]["data"]["retryAfter"] >= 1
        three.assert_clean()


# ── slots ──


def pressed(three: Fleet) -> list[str]:
    log = three.workers[0].log.parent / "press.log"
    return log.read_text().splitlines() if log.exists() else []


async def test_only_one_is_at_the_press(three: Fleet, http: aiohttp.ClientSession) -> None:
    before = len(pressed(three))
    assert let_through(await crowd(three, http, "press", seconds=PRESSED_SECONDS)) == CALLS
    lines = pressed(three)[before:]
    assert len(lines) == 2 * CALLS
    for begin, end in zip(lines[::2], lines[1::2], strict=True):
        assert (begin.split()[0], end.split()[0]) == ("begin", "end")
        assert begin.split()[1] == end.split()[1]


async def test_the_slot_of_a_lost_worker_is_free_within_seconds(three: Fleet, http: aiohttp.ClientSession) -> None:
    lost = asyncio.create_task(modern(http, three.urls[1], "press", nonce="lost", seconds=100))
    async with asyncio.timeout(SOON):
        while "begin lost" not in pressed(three):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    next = asyncio.create_task(modern(http, three.urls[2], "press", nonce="next", seconds=0))
    await asyncio.sleep(0.3)
    assert not next.done()
    three.workers[1].kill()
    began = time.monotonic()
    try:
        with pytest.raises(Loud):
            await lost
        assert await next == "next"
        assert time.monotonic() - began < LEASE_SECONDS + SOON
    finally:
        await asyncio.to_thread(three.workers[1].start)
    assert await modern(http, three.urls[1], "press", nonce="again", seconds=0) == "again"
    assert pressed(three)[-5:] == ["begin lost", "begin next", "end next", "begin again", "end again"]


# ── rates per address: each client has one of 127.0.0.0/8, all of which is this machine; nginx has 127.0.0.1 ──

ON_LINUX = pytest.mark.skipif(sys.platform == "darwin", reason="there 127.0.0.1 is the only address of its network")
SETS, ADDS = "$remote_addr;", "$proxy_add_x_forwarded_for;"


@pytest.fixture(scope="module", params=[SETS, pytest.param(ADDS, marks=pytest.mark.soak)], ids=["sets", "adds"])
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Their nginx sets the header, as documented, or adds to it. They count together, in a file."""
    folder = tmp_path_factory.mktemp("addresses")
    shown = fleet_processes.NGINX_CONF.read_text()
    assert f"X-Forwarded-For {SETS}" in shown
    (folder / "variant.conf").write_text(shown.replace(f"X-Forwarded-For {SETS}", f"X-Forwarded-For {request.param}"))
    trusted = {"DOVETAIL_TRUSTED_PROXIES": "127.0.0.1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_processes, "NGINX_CONF", folder / "variant.conf")
        with fleet(folder, workers=2, store="sqlite", FLEET_RATE="2/day per address", **trusted) as two:
            yield two
            two.assert_clean()


async def call(url: str, address: str, forwarded: str | None = None) -> str:
    connector = aiohttp.TCPConnector(local_addr=(address, 0), force_close=True)
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as http:
        try:
            return str(await modern(http, url, "echo", nonce="done"))
        except Loud as refusal:
            return str(refusal).partition(":")[0]


@ON_LINUX
async def test_clients_of_nginx_count_each(two: Fleet) -> None:
    for address in ("127.0.0.5", "127.0.0.6"):
        assert [await call(two.url, address) for _ in range(3)] == ["done", "done", "429"]


@ON_LINUX
async def test_what_a_client_says_of_itself_changes_nothing(two: Fleet) -> None:
    said = [None, "203.0.113.1", "203.0.113.2", "127.0.0.1", "203.0.113.3, 127.0.0.1", ", ,"]
    assert [await call(two.url, "127.0.0.7", each) for each in said] == ["done"] * 2 + ["429"] * 4


@ON_LINUX
async def test_past_nginx_nobody_is_believed(two: Fleet) -> None:
    said = ["203.0.113.4", "203.0.113.5", "203.0.113.6"]
    assert [await call(two.urls[0], "127.0.0.8", each) for each in said] == ["done", "done", "429"]
    assert await call(two.url, "127.0.0.8") == "429"  # it is the same by way of nginx
