"""Passwords that are guessed: the guesser is slowed down, nobody else is, and the store does not fill up."""

import re

import pytest

from authserver_stage import PASSWORD, Browser, Program, Reply, Stage
from dovetail.authserver import signins


async def test_a_wrong_password_is_told_without_saying_which_part() -> None:
    stage = Stage()
    browser = Browser(stage)
    page = await browser.open(Program(stage).url())
    known, unknown = await browser.sign_in(page, "ann", "wrong"), await browser.sign_in(page, "nobody", "wrong")
    assert known.status == unknown.status == 403
    hidden = re.compile(r'value="[^"]*"')
    assert hidden.sub("", known.text) == hidden.sub("", unknown.text)
    assert "code" in (await browser.sign_in(known)).sent_to


async def test_guessing_is_slowed_down_for_the_guesser_only() -> None:
    stage = Stage()
    browser = Browser(stage)
    page = await browser.open(Program(stage).url())
    for _ in range(5):
        assert (await browser.sign_in(page, password="wrong")).status == 403
    refused = await browser.sign_in(page)
    assert refused.status == 429
    assert 0 < int(refused.headers["retry-after"]) <= 900
    stage.address = "198.51.100.9"
    assert "code" in (await browser.sign_in(page)).sent_to
    stage.address = "203.0.113.7"
    stage.clock.now += 901
    assert "code" in (await Browser.sign_in(browser, await browser.open(Program(stage).url()))).sent_to


async def test_one_address_tries_few_names() -> None:
    stage = Stage()
    stage.address = "2001:db8:1:2::1"
    browser = Browser(stage)
    page = await browser.open(Program(stage).url())
    for number in range(50):
        stage.address = f"2001:db8:1:2::{number:x}"
        assert (await browser.sign_in(page, f"user{number}", "x")).status == 403
    assert (await browser.sign_in(page, "ann")).status == 429


async def test_tries_that_are_refused_leave_nothing_behind() -> None:
    stage = Stage()
    browser = Browser(stage)
    page = await browser.open(Program(stage).url())
    for number in range(50):
        await browser.sign_in(page, f"user{number}", "x")
    before = len(stage.state._entries.things)
    for number in range(20):
        assert (await browser.sign_in(page, f"invented{number}", "x")).status == 429
    assert len(stage.state._entries.things) == before


# ── guessers with many networks ──


async def asked(stage: Stage) -> tuple[Browser, Reply]:
    browser = Browser(stage)
    return browser, await browser.open(Program(stage).url())


async def guess(stage: Stage, addresses: list[str], name: str = "ann") -> list[int]:
    """A try from each of them. Nothing is hashed: what is counted is counted before."""
    statuses = []
    for address in addresses:
        try:
            accepted = await stage.server._authorization.sign_ins.accepts(name, "x" * 2000, address)
            statuses.append(200 if accepted else 403)
        except signins.OAuthRefusal as refusal:
            statuses.append(refusal.status)
    return statuses


async def test_one_customer_with_many_networks_keeps_nobody_out() -> None:
    stage = Stage()
    statuses = await guess(stage, [f"2001:db8:1:{number:x}::/64" for number in range(600)])
    assert statuses == [403] * 25 + [429] * 575
    browser, page = await asked(stage)
    stage.address = "198.51.100.9"
    assert "code" in (await browser.sign_in(page)).sent_to


async def test_what_strangers_with_networks_without_number_write_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signins, "FROM_STRANGERS", signins.FROM_STRANGERS._replace(for_all=100))
    stage = Stage()
    for number in range(1000):
        status = await guess(stage, [f"2001:db8:{number:x}:{number:x}::/64"], f"invented{number}")
        assert status == ([403] if number < 100 else [429])
    assert len(stage.state._entries.things) <= 5 * 100 + 10


@pytest.mark.parametrize("flood", ["of one name", "of all"])
async def test_no_flood_keeps_a_user_out_of_a_browser_of_theirs(flood: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if flood == "of all":
        monkeypatch.setattr(signins, "FROM_STRANGERS", signins.FROM_STRANGERS._replace(for_all=100))
    stage = Stage()
    mine, page = await asked(stage)
    await mine.sign_in(page)
    stage.clock.now += 3601  # a password is needed again
    name = "ann" if flood == "of one name" else "bob"
    assert 429 in await guess(stage, [f"198.51.{number // 250}.{number % 250}" for number in range(300)], name)
    stranger, page = await asked(stage)
    assert (await stranger.sign_in(page)).status == 429
    page = await mine.open(Program(stage).url())
    assert 'name="password"' in page.text
    assert (await mine.sign_in(page, password="wrong")).status == 403
    assert "code" in (await mine.sign_in(page)).sent_to


async def test_a_known_browser_is_no_way_to_guess() -> None:
    stage = Stage()
    browser, page = await asked(stage)
    await browser.sign_in(page)
    stage.clock.now += 3601
    page = await browser.open(Program(stage).url())
    tries = [(await browser.sign_in(page, password="wrong")).status for _ in range(40)]
    assert tries == [403] * (signins.AT_KNOWN_BROWSERS + signins.PER_NAME_AND_NETWORK) + [429] * 15
    others = [(await browser.sign_in(page, "bob", "wrong")).status for _ in range(6)]
    assert others == [403] * 5 + [429], "it is known for one user only"


async def test_a_browser_is_known_for_a_while_only() -> None:
    stage = Stage()
    browser, page = await asked(stage)
    await browser.sign_in(page)
    stage.clock.now += 91 * 86_400
    page = await browser.open(Program(stage).url())
    for _ in range(5):
        await browser.sign_in(page, password="wrong")
    assert (await browser.sign_in(page, password=PASSWORD)).status == 429
