"""Limits hold for all workers together: what one lets through counts for the others, and no slot stays taken."""

import asyncio
import sys
from collections.abc import Iterator

import aiohttp
import pytest
from fleet_client import TIME_LIMIT, Loud, RawSession, modern
from fleet_processes import Fleet, fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
RATE = 10  # a day, of the tool `order`, and of a server that has one
CALLS = 24  # at once
SOON = 20.0  # much more than a lease lasts in haste


@pytest.fixture(scope="module", params=["redis", pytest.param("sqlite", marks=pytest.mark.soak)])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp(request.param), workers=2, store=request.param, FLEET_HASTE="3") as pair:
        yield pair
        pair.assert_clean()


async def crowd(crowded: Fleet, http: aiohttp.ClientSession, tool: str, **arguments: object) -> list[str]:
    """What comes of many calls at once, to all workers; half of them in sessions."""
    sessions = [await RawSession(http, url).open() for url in crowded.urls]

    async def call(number: int) -> str:
        given = {"nonce": f"n{number}", **arguments}
        try:
            at = number // 2 % len(sessions)
            if number % 2:
                return str(await sessions[at].call(tool, given, []))
            return str(await modern(http, crowded.urls[at], tool, **given))
        except Loud as refusal:
            return f"refused: {refusal}"

    return await asyncio.gather(*(call(number) for number in range(CALLS)))


def let_through(answers: list[str]) -> int:
    right = [answer for number, answer in enumerate(answers) if answer == f"n{number}"]
    refused = [answer for answer in answers if answer.startswith("refused: ")]
    assert len(right) + len(refused) == len(answers), answers
    return len(right)


async def test_a_tool_is_called_no_more_often_than_it_allows(pair: Fleet, http: aiohttp.ClientSession) -> None:
    answers = await crowd(pair, http, "order")
    assert let_through(answers) == RATE
    assert all("try again in" in answer for answer in answers if answer.startswith("refused"))
    assert let_through(await crowd(pair, http, "echo")) == CALLS  # others go on
    await asyncio.to_thread(pair.workers[0].kill)  # what was let through counts, though its worker died
    await asyncio.to_thread(pair.workers[0].start)
    assert let_through(await crowd(pair, http, "order")) == 0


def pressed(pair: Fleet) -> list[str]:
    log = pair.workers[0].log.parent / "press.log"
    return log.read_text().splitlines() if log.exists() else []


async def test_only_one_is_at_the_press(pair: Fleet, http: aiohttp.ClientSession) -> None:
    before = len(pressed(pair))
    assert let_through(await crowd(pair, http, "press", seconds=0.05)) == CALLS
    lines = pressed(pair)[before:]
    assert len(lines) == 2 * CALLS
    for begin, end in zip(lines[::2], lines[1::2], strict=True):
        assert (begin.split()[0], end.split()[0]) == ("begin", "end")
        assert begin.split()[1] == end.split()[1]


async def test_the_slot_of_a_lost_worker_is_free_within_seconds(pair: Fleet, http: aiohttp.ClientSession) -> None:
    lost = asyncio.create_task(modern(http, pair.urls[1], "press", nonce="lost", seconds=100))
    async with asyncio.timeout(SOON):
        while "begin lost" not in pressed(pair):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    next = asyncio.create_task(modern(http, pair.urls[0], "press", nonce="next", seconds=0))
    await asyncio.sleep(0.3)
    assert not next.done()
    pair.workers[1].kill()
    try:
        with pytest.raises(Loud):
            await lost
        assert await asyncio.wait_for(next, SOON) == "next"
    finally:
        await asyncio.to_thread(pair.workers[1].start)
    assert await modern(http, pair.urls[1], "press", nonce="again", seconds=0) == "again"
    assert pressed(pair)[-5:] == ["begin lost", "begin next", "end next", "begin again", "end again"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """They count together, in a file; their nginx, at 127.0.0.1, sets the header, as documented."""
    options = {"FLEET_RATE": "2/day per address", "DOVETAIL_TRUSTED_PROXIES": "127.0.0.1"}
    with fleet(tmp_path_factory.mktemp("addresses"), workers=2, store="sqlite", **options) as two:
        yield two
        two.assert_clean()


async def call(url: str, address: str, forwarded: str | None = None) -> str:
    """By a client at one of the addresses of 127.0.0.0/8, all of which are this machine."""
    connector = aiohttp.TCPConnector(local_addr=(address, 0), force_close=True)
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    timeout = aiohttp.ClientTimeout(total=TIME_LIMIT)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as http:
        try:
            return str(await modern(http, url, "echo", nonce="done"))
        except Loud as refusal:
            return str(refusal).partition(":")[0]


@pytest.mark.skipif(sys.platform == "darwin", reason="there 127.0.0.1 is the only address of its network")
async def test_each_client_counts_by_its_own_address(two: Fleet) -> None:
    for address in ("127.0.0.5", "127.0.0.6"):
        assert [await call(two.url, address) for _ in range(3)] == ["done", "done", "429"]
    said = [None, "203.0.113.1", "203.0.113.2", "127.0.0.1", "203.0.113.3, 127.0.0.1", ", ,"]
    assert [await call(two.url, "127.0.0.7", each) for each in said] == ["done"] * 2 + ["429"] * 4
    past_nginx = [await call(two.urls[0], "127.0.0.8", each) for each in said[1:4]]
    assert [*past_nginx, await call(two.url, "127.0.0.8")] == ["done", "done", "429", "429"]
