"""The pages of the authorization server in a real browser: consent, password, refusal, failure, and the way through."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pytest

from authserver_stage import PASSWORD, SCOPES, USERS, Program, Stage, served
from dovetail import Server
from dovetail.authserver import AuthServer, OAuthClient, Passwords, SignIn
from identity_provider import IdentityProvider, provider
from provider_stage import SIGN_INS
from web_pages import violations

pytestmark = pytest.mark.slow
STATE = "st&te=1 é"
REASON = "Only people of Acme may come in. Ask it@acme.example to add you."
LONG = "A program whose name goes on and on " * 3 + "x" * 60


class Place(NamedTuple):
    """Where the servers are."""

    elsewhere: str  # the authorization server whose users sign in at the provider
    passwords: str  # that with users of its own
    at: IdentityProvider
    redirect_uri: str

    def url(self, issuer: str, client_id: str = "app", **changed: str | None) -> str:
        program = Program(Stage(), client_id, self.redirect_uri)
        return f"{issuer}/{program.url(**{'resource': None, 'scope': None, **changed})}"


def notes(issuer: str, redirect_uri: str, sign_in: Passwords | SignIn) -> Any:
    clients = [OAuthClient(id=id, name=name, redirect_uris=[redirect_uri]) for id, name in NAMES.items()]
    auth = AuthServer(issuer, resource=f"{issuer}/mcp", clients=clients, scopes=SCOPES, sign_in=sign_in)
    return Server("notes", auth=auth).asgi()


NAMES = {"app": "The App", "long": LONG}


def may_come_in(claims: Any) -> bool | str:
    return True if claims["name"] == "Ann Arbor" else REASON


async def serve(redirect_uri: str, found: "Future[Place]", stop: asyncio.Event) -> None:
    async with provider("keycloak") as at:
        sign_in = SIGN_INS["keycloak"](at, {"allow": may_come_in})
        async with (
            served(lambda root: notes(root, redirect_uri, sign_in)) as elsewhere,
            served(lambda root: notes(root, redirect_uri, Passwords(USERS))) as passwords,
        ):
            at.redirect_uri = f"{elsewhere}/callback"
            found.set_result(Place(elsewhere, passwords, at, redirect_uri))
            await stop.wait()


@pytest.fixture(scope="module")
def place(foreign: str) -> Iterator[Place]:
    found: Future[Place] = Future()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    serving = serve(f"http://127.0.0.1:{foreign}/back", found, stop)
    thread = threading.Thread(target=lambda: loop.run_until_complete(serving))
    thread.start()
    try:
        yield found.result(20)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


@pytest.fixture
def page(chromium: Any, place: Place) -> Iterator[Any]:
    """A tab of a new browser. Nothing may go wrong in it unseen, but for the status of a page that says why."""
    place.at.user, place.at.lies, place.at.failures = "ann", set(), {}
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    context.set_default_timeout(10_000)
    opened, complaints = context.new_page(), []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda failure: complaints.append(str(failure)))
    yield opened
    context.close()
    assert not [each for each in complaints if "the server responded with a status of" not in each]


def sent_to(page: Any, place: Place) -> dict[str, str]:
    """The parameters that the program has got."""
    page.wait_for_url(f"{place.redirect_uri}?*")
    return dict(parse_qsl(urlsplit(page.url).query))


def allow(page: Any) -> None:
    page.get_by_role("button", name="Allow", exact=True).click()


def link_back(page: Any) -> Any:
    return page.get_by_role("link", name="Go back to The App")


def test_a_user_allows_signs_in_elsewhere_and_is_back_at_the_program(page: Any, place: Place) -> None:
    page.goto(place.url(place.elsewhere, state=STATE))
    page.get_by_role("heading", name="Allow The App to act for you?").wait_for()
    for shown in (*SCOPES.values(), "Keycloak", place.redirect_uri):
        page.get_by_text(shown).first.wait_for()
    (cookie,) = page.context.cookies()
    assert cookie["name"].startswith("__Host-"), "also by http, on this machine"
    assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Lax")
    visits = len(place.at.authorizations)
    allow(page)
    back = sent_to(page, place)
    assert back.keys() == {"code", "state", "iss"}
    assert (back["state"], back["iss"]) == (STATE, place.elsewhere)
    assert len(place.at.authorizations) == visits + 1
    assert page.title() == "elsewhere"


def test_two_tabs_of_one_program_both_work(page: Any, place: Place) -> None:
    other = page.context.new_page()
    for tab in (page, other):
        tab.goto(place.url(place.elsewhere))
    for tab in (page, other):
        allow(tab)
        assert "code" in sent_to(tab, place)


def test_a_sign_in_ends_once_and_going_back_in_the_browser_says_so(page: Any, place: Place) -> None:
    answers: list[str] = []
    page.on("response", lambda answer: answers.append(answer.url))
    page.goto(place.url(place.elsewhere))
    allow(page)
    assert "code" in sent_to(page, place)
    (callback,) = [url for url in answers if url.startswith(f"{place.elsewhere}/callback?")]
    page.goto(callback)
    page.get_by_text("Begin again in your program").wait_for()
    assert not page.get_by_role("link").count()


def test_who_may_not_come_in_reads_why_and_goes_back_by_the_keyboard(page: Any, place: Place) -> None:
    place.at.user = "bob"
    page.goto(place.url(place.elsewhere))
    page.get_by_role("button", name="Allow", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_text(REASON).wait_for()
    page.keyboard.press("Tab")
    assert link_back(page).evaluate("it => it === document.activeElement")
    page.keyboard.press("Enter")
    back = sent_to(page, place)
    assert (back["error"], back["error_description"]) == ("access_denied", REASON)


def test_a_provider_that_lies_is_a_page_with_a_way_back(page: Any, place: Place) -> None:
    place.at.lies = {"nonce"}
    page.goto(place.url(place.elsewhere))
    allow(page)
    page.get_by_text("can't be trusted").wait_for()
    link_back(page).click()
    assert sent_to(page, place)["error"] == "server_error"


def test_a_user_with_a_password_is_told_that_it_is_wrong_and_tries_again(page: Any, place: Place) -> None:
    page.goto(place.url(place.passwords))
    for password in ("wrong", PASSWORD):
        page.get_by_label("Name").fill("ann")
        page.get_by_label("Password").fill(password)
        allow(page)
        if password == "wrong":
            page.get_by_role("alert").get_by_text("Name or password is wrong.").wait_for()
    assert "code" in sent_to(page, place)


def test_a_user_says_no(page: Any, place: Place) -> None:
    page.goto(place.url(place.passwords))
    page.get_by_role("button", name="Deny").click()
    assert sent_to(page, place)["error"] == "access_denied"


def show_consent(page: Any, place: Place) -> None:
    page.goto(place.url(place.elsewhere))


def show_long_names(page: Any, place: Place) -> None:
    page.goto(place.url(place.elsewhere, "long"))


def show_wrong_password(page: Any, place: Place) -> None:
    page.goto(place.url(place.passwords))
    page.get_by_label("Name").fill("ann")
    page.get_by_label("Password").fill("wrong")
    allow(page)
    page.get_by_role("alert").wait_for()


def show_refusal(page: Any, place: Place) -> None:
    place.at.user = "bob"
    show_consent(page, place)
    allow(page)
    link_back(page).wait_for()


def show_failure(page: Any, place: Place) -> None:
    place.at.failures = {"token": "down"}
    show_consent(page, place)
    allow(page)
    link_back(page).wait_for()


def show_dead_end(page: Any, place: Place) -> None:
    page.goto(f"{place.elsewhere}/callback?state=x&code=y")


PAGES = [show_consent, show_long_names, show_wrong_password, show_refusal, show_failure, show_dead_end]


@pytest.mark.parametrize("show", PAGES)
def test_nothing_is_in_the_way_of_people_with_disabilities(show: Any, page: Any, place: Place, axe: str) -> None:
    show(page, place)
    assert page.get_by_role("heading", level=1).count() == 1
    for width in (320, 1280):
        page.set_viewport_size({"width": width, "height": 640})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert not violations(page, axe)
