"""Users who sign in over a fleet whose workers die, and do what its pages and errors tell them."""

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from dying_fleet import MAX_REPEATS
from fleet_client import Reply as Response
from fleet_client import post, running
from fleet_processes import Fleet, fleet
from fleet_sign_in_server import ISSUER, SharedClock

from authserver_stage import CALLBACK, Browser, Program, Reply, Stage
from identity_provider import IdentityProvider, provider, visit
from provider_kinds import CLIENT_ID, CLIENT_SECRET, USERS

SERVER = Path(__file__).parent / "fleet_sign_in_server.py"
WORKERS = 4
EXPIRES_IN = 200  # seconds, of tokens of the provider: less than those of ours
MOST_TRIES = 10  # of one user, to sign in
TIME_LIMIT = 90.0  # seconds for a response; longer than the claim of a dead worker
PROMPTLY = 20.0  # seconds; much more than anything takes
REFRESHING = "claim refreshing"
RELOAD = "reload this page in half a minute"
EVERYONE = tuple(USERS)


class Death(NamedTuple):
    """That of the worker which serves a step of the flow: "after put upstream", "before put upstream" or "while token".

    After or before it has written this record to the store, or while it waits for this endpoint of the provider.
    """

    step: str
    when: str


class DyingFleet:
    """Four workers behind nginx whose users sign in at one provider."""

    def __init__(self, workers: Fleet, folder: Path, at: IdentityProvider, clock: SharedClock) -> None:
        self.workers, self.at, self.clock = workers, at, clock
        self.killed = 0
        self.visiting = asyncio.Lock()  # one user at a time is signed in at the provider
        self._people = 0
        self._writes, self._doom = folder / "writes", folder / "doom"

    @property
    def writes(self) -> list[str]:
        """All of them in turn, each with its worker: "4711 put upstream"."""
        return self._writes.read_text().splitlines() if self._writes.exists() else []

    @asynccontextmanager
    async def death(self, when: str) -> AsyncIterator[None]:
        """One worker dies in this block."""
        assert not self.revive(), "a worker has died too early"
        if when.startswith("while "):
            async with running(self._kill_who_waits_for(when.removeprefix("while "))):
                yield
        else:
            self._doom.write_text(when)
            yield
        try:
            await until(self.revive)  # its connections break before it is gone
        except TimeoutError:
            raise AssertionError(f"no worker has died {when}") from None

    async def _kill_who_waits_for(self, endpoint: str) -> None:
        known = self.at.asked.count(endpoint)
        self.at.failures = {endpoint: "slow"}
        await until(lambda: self.at.asked.count(endpoint) > known)
        self.at.failures = {}
        pid = int(self.writes[-1].split()[0])
        (worker,) = (each for each in self.workers.workers if each.pid == pid)
        worker.kill()
        self.at.go.set()  # the provider does what it was asked for, and nobody hears of it
        self.at.go.clear()

    @asynccontextmanager
    async def crowd(self) -> AsyncIterator[None]:
        """Requests that need a fresh token of the provider, which answers when every worker has asked for it."""
        known = len(self.writes)
        pids = {str(worker.pid) for worker in self.workers.workers}

        async def answer() -> None:
            await until(lambda: {line.split()[0] for line in self.writes[known:] if REFRESHING in line} == pids)
            self.at.go.set()

        self.at.go.clear()
        self.at.failures = {"refresh": "slow"}
        async with running(answer()):
            yield
        assert self.at.go.is_set()

    async def deaths(self, chance: random.Random) -> None:
        """One worker after the other dies, and is started again; two at least are there."""
        while True:
            await asyncio.sleep(chance.uniform(0.1, 0.3))
            living = [worker for worker in self.workers.workers if worker.is_listening()]
            if len(living) > 2:
                chance.choice(living).kill()
                self.revive()

    def revive(self) -> int:
        """Start the workers that have died, without waiting for them; gives how many."""
        dead = [worker for worker in self.workers.workers if not worker.is_running]
        for worker in dead:
            worker.spawn()
        self.killed += len(dead)
        return len(dead)

    @asynccontextmanager
    async def person(self, user: str) -> AsyncIterator["Person"]:
        """A user with a browser and a program, at an address of their own: limits count for each address."""
        self._people += 1
        address = (f"127.0.{1 + self._people // 250}.{1 + self._people % 250}", 0)
        connector = aiohttp.TCPConnector(limit=0, force_close=True, local_addr=address)
        timeout, cookies = aiohttp.ClientTimeout(total=TIME_LIMIT), aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(connector=connector, cookie_jar=cookies, timeout=timeout) as http:
            yield Person(self, user, Front(http, self.workers.nginx.origin))

    def sent(self, name: str) -> Counter[str]:
        """How often the provider has got each `code` or `refresh_token`."""
        return Counter(form[name] for form in self.at.forms if name in form)


@asynccontextmanager
async def dying_fleet(folder: Path, store: str, row: str = "auth0") -> AsyncIterator[DyingFleet]:
    clock = SharedClock(folder)
    async with provider(row, f"{ISSUER}/callback", clock) as at:
        at.expires_in = EXPIRES_IN
        client = {"PROVIDER_CLIENT_ID": CLIENT_ID, "PROVIDER_CLIENT_SECRET": CLIENT_SECRET}
        settings = {"PROVIDER": at.origin, "PROVIDER_USERINFO": at.url("userinfo"), "SIGN_IN": row, **client}
        with fleet(folder, workers=WORKERS, store=store, program=SERVER, **settings) as workers:
            yield DyingFleet(workers, folder, at, clock)
            workers.assert_clean()


async def until(is_so: Callable[[], Any], seconds: float = PROMPTLY) -> None:
    async with asyncio.timeout(seconds):
        while not is_so():  # noqa: ASYNC110  (most of what is waited for happens in other processes)
            await asyncio.sleep(0.01)


class Front(Stage):
    """The URL of the fleet. If a worker dies, the same request is sent again: nginx does so with a GET, browsers and
    programs with a POST, of which nginx can't know whether it had an effect.
    """

    def __init__(self, http: aiohttp.ClientSession, origin: str) -> None:
        self.http, self.origin, self.base = http, origin, ""

    async def request(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Reply:
        options: dict[str, Any] = {"data": body or None, "headers": headers, "allow_redirects": False}
        for _ in range(MAX_REPEATS):
            async with self.http.request(method, self.origin + target, **options) as response:
                raw = [(name.lower(), value) for name, value in response.raw_headers]
                reply = Reply(response.status, raw, await response.read())
            if reply.status != 502:
                return reply
            await asyncio.sleep(0.05)
        raise AssertionError(f"{method} {target.partition('?')[0]} is never answered")

    async def call(self, tool: str, token: str) -> Response:
        for _ in range(MAX_REPEATS):
            response = await post(self.http, f"{self.origin}/mcp", tool, {}, {"Authorization": f"Bearer {token}"})
            if response.status != 502:
                return response
            await asyncio.sleep(0.05)
        raise AssertionError(f"{tool} is never answered")


class Person:
    """Signs in, and begins again where a page or an error says so."""

    def __init__(self, fleet: DyingFleet, user: str, front: Front) -> None:
        self.fleet, self.user, self.front = fleet, user, front
        self.browser, self.program = Browser(front), Program(front)
        self.deaths: dict[str, str] = {}  # when a worker dies, by steps to come
        self.reloads = False  # a page that says so; or begins again at once
        self.begun_again: Counter[str] = Counter()  # by what has told so: a page, the code, a call, a renewal
        self.tokens: dict[str, Any] = {}
        self.consents: list[Reply] = []  # pages
        self.codes: Counter[Reply] = Counter()  # that came of each of these
        self.returns: list[str] = []  # URLs at which the provider has sent the browser back
        self.written: dict[tuple[str, str], None] = {}  # what was written in each step

    @asynccontextmanager
    async def step(self, name: str) -> AsyncIterator[None]:
        when, known = self.deaths.pop(name, None), len(self.fleet.writes)
        async with self.fleet.death(when) if when else contextlib.nullcontext():
            yield
        self.written |= {(name, line.partition(" ")[2]): None for line in self.fleet.writes[known:]}

    # ── what a program does ──

    async def register(self) -> None:
        metadata = {"redirect_uris": [CALLBACK], "grant_types": ["authorization_code", "refresh_token"]}
        async with self.step("register"):
            reply = await self.front.register(token_endpoint_auth_method="none", client_name="Editor", **metadata)
        assert reply.status == 201, reply.text
        self.program = Program(self.front, reply.json["client_id"])

    async def sign_in(self) -> None:
        """Until the program has tokens."""
        for _ in range(MOST_TRIES):
            code = await self.visit_pages()
            if code is not None and await self.redeem(code):
                return
            self.begun_again["page" if code is None else "code"] += 1
        raise AssertionError(f"{self.user} can't sign in")

    async def call_on(self) -> str:
        """The digest of the provider's token, after another sign-in if the grant has ended."""
        used = await self.call()
        if used is None:
            self.begun_again["call"] += 1
            await self.sign_in()
            used = await self.call()
        assert used is not None
        return used

    async def renew_on(self) -> None:
        if not await self.renew():
            self.begun_again["renewal"] += 1
            await self.sign_in()

    async def redeem(self, code: str) -> bool:
        async with self.step("redeem"):
            return self._took(await self.program.redeem(code))

    async def renew(self) -> bool:
        """False if the grant has ended."""
        async with self.step("renew"):
            return self._took(await self.program.refresh(self.tokens["refresh_token"]))

    def _took(self, reply: Reply) -> bool:
        if reply.status == 200:
            self.tokens = reply.json
            return True
        assert (reply.status, reply.json["error"]) == (400, "invalid_grant"), reply.text
        return False

    async def call(self, token: str = "") -> str | None:
        """The digest of the provider's token, which has to be a good one of this user; None if the grant has ended."""
        async with self.step("call"):
            response = await self.front.call("ask_provider", token or self.tokens["access_token"])
        if response.status == 401:
            return None
        assert response.status == 200, response.text
        said = json.loads(response.text.rpartition("data: ")[2])  # a call that takes long is answered by a stream
        if "error" in said:  # which had begun when the grant ended: so the next call gets the 401
            assert "Begin again" in said["error"]["message"], said
            return await self.call(token)
        told = said["result"]["structuredContent"]
        assert told["status"] == 200, told
        assert told["sub"].endswith(str(USERS[self.user].number)), told
        return str(told["token"])

    async def revoke(self) -> None:
        form = {"token": self.tokens["refresh_token"], "client_id": self.program.client_id}
        async with self.step("revoke"):
            reply = await self.front.post("revoke", form)
        assert reply.status == 200, reply.text

    # ── what a browser does ──

    async def visit_pages(self) -> str | None:
        """All pages of a sign-in, up to a code; None if one says to begin again."""
        async with self.step("open"):
            page = await self.browser.open(self.program.url())
        if page.status == 303:  # the consent is remembered
            return await self._visit_provider(page)
        assert page.status == 200, page.text
        self.consents.append(page)
        return await self.allow(page)

    async def allow(self, page: Reply) -> str | None:
        async with self.step("allow"):
            sent = await self.browser.answer(page)
        code = await self._visit_provider(sent)
        self.codes[page] += code is not None
        return code

    async def _visit_provider(self, sent: Reply) -> str | None:
        assert sent.status == 303, sent.text
        async with self.fleet.visiting:
            self.fleet.at.user = self.user
            self.returns.append(await visit(sent.headers["location"]))
        return await self.come_back(self.returns[-1])

    async def come_back(self, url: str) -> str | None:
        async with self.step("return"):
            reply = await self.browser.open(url.removeprefix(f"{ISSUER}/"))
        while self.reloads and RELOAD in reply.text:
            await asyncio.sleep(1)
            reply = await self.browser.open(url.removeprefix(f"{ISSUER}/"))
        if reply.status == 303:
            return reply.sent_to["code"]
        assert 400 <= reply.status < 500, reply.text
        assert RELOAD in reply.text or "Begin again" in reply.text, reply.text
        return None

    async def go_back(self) -> None:
        """Reload every URL, and answer every page again, twice: a consent is good for one code, and no more."""
        written = dict(self.written)
        for url in self.returns[:]:
            assert await self.come_back(url) is None
        for page in self.consents:
            for _ in range(2):
                await self.allow(page)
            assert self.codes[page] <= 1
        self.written = written
