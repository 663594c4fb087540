"""Passwords that are guessed: the guesser is slowed down, nobody else is, and the store does not fill up."""

import re

from authserver_stage import Browser, Program, Stage


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
