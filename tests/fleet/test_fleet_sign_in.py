"""Signing in over four workers that die: nobody is signed in twice, or lost, and the provider is asked once for all."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import pytest
from fleet_client import running
from fleet_sign_in import EVERYONE, EXPIRES_IN, Death, DyingFleet, Person, dying_fleet

T = TypeVar("T")
BOTH = ("redis", "sqlite")
CALLERS = 100
SIGN_INS, IN_FLIGHT = 100, 16  # of a storm

# When a worker dies, and how often the user has to begin again, in the order of the flow.
DEATHS = {
    # The program or the browser sends its request again. What the dead worker has stored is not used, and expires.
    Death("register", "after put client"): 0,
    Death("open", "after claim keys"): 0,
    Death("allow", "while metadata"): 0,
    Death("allow", "after put sign-in"): 0,
    # A code of the provider is good once, and nobody knows whether the dead worker has used it. To use it again would
    # revoke what came of it. So a page says to reload it after a while, or to begin again, which works at once.
    Death("return", "after claim redeeming"): 1,
    Death("return", "while token"): 1,
    Death("return", "while userinfo"): 1,
    # The code of ours may be on its way to the program, and another one would be a second grant.
    Death("return", "after claim answered"): 1,
    Death("return", "after put upstream"): 1,
    Death("return", "after delete sign-in"): 1,
    Death("redeem", "after touch upstream"): 0,
    # The code of ours is good once, too (RFC 6749, 4.1.2), also for a program that got no response.
    Death("redeem", "after put grant"): 1,
    Death("redeem", "after touch client"): 1,
    # The provider's tokens are stored before a response goes out, and a program may use a refresh token of ours again
    # within a moment. So it sends the same request again.
    Death("call", "after put upstream"): 0,
    Death("renew", "after put upstream"): 0,
    Death("renew", "after put grant"): 0,
    Death("renew", "after touch client"): 0,
    Death("revoke", "after put grant"): 0,
    Death("revoke", "after delete upstream"): 0,
}
# The others wait until the claim of the dead worker has expired: 30 seconds for a code, 20 for a refresh. Then one of
# them tries again. That fails if the provider has done what the dead worker asked for, and its answer was lost; but not
# if refresh tokens stay the same, as at the second of ROWS.
WAITS = {
    Death("return", "after claim redeeming"): (0, 0),
    Death("return", "while token"): (1, 1),
    Death("call", "after claim refreshing"): (0, 0),
    Death("call", "while refresh"): (1, 0),
    Death("renew", "after claim refreshing"): (0, 0),
    Death("renew", "before put upstream"): (1, 0),
}
ROWS = ("auth0", "okta")  # which punishes the second use of a refresh token, and which never changes it
FIRST = [Death("open", "after claim keys"), Death("allow", "while metadata")]  # each worker reads these once


@pytest.fixture(params=BOTH)
async def four(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DyingFleet]:
    async with dying_fleet(tmp_path, request.param) as four:
        yield four


async def goes_all_the_way(fleet: DyingFleet, person: Person) -> dict[tuple[str, str], None]:
    """From the registration to the revocation. The provider is to refresh once for a call, and once for a renewal.

    Gives what was written in which step.
    """
    await person.register()
    await person.sign_in()
    await person.go_back()
    fleet.clock.advance(EXPIRES_IN)
    token = await person.call_on()
    fleet.clock.advance(EXPIRES_IN)
    await person.renew_on()
    assert await person.call_on() != token
    await person.revoke()
    written = dict(person.written)
    assert await person.call() is None
    assert not await person.renew()
    return written


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_nobody_is_signed_in_twice_or_lost_whenever_a_worker_dies(four: DyingFleet) -> None:
    begun_again: dict[Death, int] = {}
    written: list[dict[tuple[str, str], None]] = []
    others = [[death] for death in DEATHS if death not in FIRST]
    for number, deaths in enumerate([FIRST, [], *others]):
        refreshes = four.at.refreshes
        async with four.person(EVERYONE[number % len(EVERYONE)]) as person:
            person.deaths = dict(deaths)
            written.append(await goes_all_the_way(four, person))
        assert not person.deaths
        assert four.at.refreshes == refreshes + 2, deaths
        begun_again |= dict.fromkeys(deaths, person.begun_again.total())
    assert begun_again == DEATHS
    assert four.killed == len(DEATHS)
    # All but the counters of limits.
    steps = {Death(step, f"after {what}") for step, what in written[0] | written[1] if not what.startswith("add ")}
    assert steps == {each for each in (*DEATHS, *WAITS) if each.when.startswith("after ")}, "a step without a death"
    assert {*four.sent("code").values(), *four.sent("refresh_token").values()} == {1}


async def all_of(ask: Callable[[str], Awaitable[T]], tokens: list[str]) -> list[T]:
    return await asyncio.gather(*map(ask, tokens))


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_hundred_at_once_cause_one_refresh_and_all_get_a_good_token(four: DyingFleet) -> None:
    """The provider takes the second use of a refresh token for theft, and then no token of that user is good."""
    async with four.person("ann") as ann:
        await ann.register()
        await ann.sign_in()
        four.clock.advance(EXPIRES_IN)
        async with four.crowd():
            renewed = await all_of(ann.program.refresh, [ann.tokens["refresh_token"]] * CALLERS)
        assert four.at.refreshes == 1
        renewed = await all_of(ann.program.refresh, [reply.json["refresh_token"] for reply in renewed])
        assert {reply.status for reply in renewed} == {200}
        tokens = [reply.json["access_token"] for reply in renewed]
        used = [{*await all_of(ann.call, tokens)}]
        assert four.at.refreshes == 1
        four.clock.advance(EXPIRES_IN)
        async with four.crowd():
            used.append({*await all_of(ann.call, tokens)})
        assert four.at.refreshes == 2
        four.clock.advance(EXPIRES_IN)
        async with four.crowd():
            calls = all_of(ann.call, tokens[::2])
            some, renewed = await asyncio.gather(
                calls, all_of(ann.program.refresh, [reply.json["refresh_token"] for reply in renewed[::2]])
            )
        used.append({*some})
        assert {reply.status for reply in renewed} == {200}
        assert four.at.refreshes == 3
    assert [len(each) for each in used] == [1, 1, 1], "they have used one token at a time"
    assert len(set.union(*used) - {None}) == 3


# ── the long form ──


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("store", "row"), [("redis", "auth0"), ("sqlite", "auth0"), ("redis", "okta")])
async def test_the_claim_of_a_dead_worker_expires(tmp_path: Path, store: str, row: str) -> None:
    """The user reloads the page that says so; the program waits for its response."""
    begun_again = {}
    async with dying_fleet(tmp_path, store, row) as four:
        for number, death in enumerate(WAITS):
            async with four.person(EVERYONE[number]) as person:
                person.deaths, person.reloads = dict([death]), True
                refreshes, began = four.at.refreshes, time.monotonic()
                await goes_all_the_way(four, person)
            print(f"{store}, {row}: {death}: {time.monotonic() - began:.1f} s, {dict(person.begun_again)}")  # noqa: T201
            is_sent_twice = death.when in ("while refresh", "before put upstream")
            assert four.at.refreshes == refreshes + 2 + is_sent_twice
            begun_again[death] = person.begun_again.total()
    assert begun_again == {death: times[ROWS.index(row)] for death, times in WAITS.items()}


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("store", BOTH)
async def test_a_storm_of_deaths(tmp_path: Path, store: str, row: str) -> None:
    """Many users sign in, renew and call while one worker after the other dies; in the end all that have not revoked
    their grant still have it.
    """
    chance, people, numbers = random.Random(SIGN_INS), list[Person](), iter(range(SIGN_INS))
    async with dying_fleet(tmp_path, store, row) as four, AsyncExitStack() as stack:
        four.at.expires_in = 2  # seconds; at half of that it is refreshed
        first = await stack.enter_async_context(four.person("ann"))
        await first.register()

        async def many_come() -> None:
            for number in numbers:  # which all share
                person = await stack.enter_async_context(four.person(EVERYONE[number % len(EVERYONE)]))
                person.program.client_id, person.reloads = first.program.client_id, number % 3 == 0
                people.append(person)
                await person.sign_in()
                if number % 8 == 0:
                    await person.go_back()
                for work in (person.call_on, person.renew_on, person.call_on):
                    await asyncio.sleep(chance.uniform(0.5, 1.5))
                    await work()

        async with running(four.deaths(chance)):
            await asyncio.gather(*(many_come() for _ in range(IN_FLIGHT)))
        lost = [person for person in people if await person.call() is None or not await person.renew()]
        begun = sum((person.begun_again for person in people), Counter[str]())
        doubled = [person for person in people if max(person.codes.values()) > 1]
        sent_again = {name: sum(times - 1 for times in four.sent(name).values()) for name in ("code", "refresh_token")}
        print(  # noqa: T201
            f"\n{store}, {row}: {len(people)} signed in, {four.killed} workers killed; begun again: {dict(begun)}; "
            f"{len(doubled)} doubled, {len(lost)} lost; sent to the provider again: {sent_again}"
        )
        for person in people:
            await person.revoke()
            assert await person.call() is None
    assert (len(people), lost, doubled) == (SIGN_INS, [], [])
    assert four.killed > SIGN_INS / 10  # or it has proved nothing
    assert sent_again["code"] <= begun["page"], "a code is sent again only if nobody has got tokens for it"
    ended = begun["call"] + begun["renewal"]
    assert ended <= (sent_again["refresh_token"] if row == "auth0" else 0), "a grant has ended that nobody has ended"
