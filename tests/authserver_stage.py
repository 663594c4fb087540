"""An authorization server without a socket, a browser that fills in its forms, and a program that wants tokens."""

import base64
import hashlib
import html
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import aiohttp

from dovetail.authserver import AuthServer, OAuthClient, Passwords, hash_password
from dovetail.state.memory import MemoryState
from dovetail.transports.http.routes import RouteTable
from http_serving import hosted
from identity_provider import visit
from issuer_stage import Clock

ISSUER = "https://login.example.com"
RESOURCE = "https://notes.example.com/mcp"
CALLBACK = "https://app.example.com/callback"
NATIVE = "http://127.0.0.1/callback"
SCOPES = {"notes:read": "Read your notes", "notes:write": "Change your notes"}
PASSWORD = "correct horse battery"
USERS = {"ann": hash_password(PASSWORD, cost=16), "bob": hash_password("bob's own", cost=16)}
SECRET = "a-secret-of-some-length"
CLIENTS = (
    OAuthClient(id="app", name="The App", redirect_uris=[CALLBACK, NATIVE]),
    OAuthClient(id="web", redirect_uris=[CALLBACK], secret=SECRET),
    OAuthClient(id="ci", grant_types=["client_credentials"], secret=SECRET, scopes=["notes:read"]),
)
FORM = "application/x-www-form-urlencoded"


class Reply:
    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.headers = {name.decode(): value.decode("latin-1") for name, value in headers}
        self.body = body

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def sent_to(self) -> dict[str, str]:
        """The parameters of a redirect."""
        assert self.status == 303, (self.status, self.text)
        pairs = parse_qsl(urlsplit(self.headers["location"]).query, keep_blank_values=True)
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)


class Stage:
    def __init__(self, issuer: str = ISSUER, **options: Any) -> None:
        self.clock = options.pop("clock", None) or Clock(1_800_000_000.0)
        given = {"resource": RESOURCE, "clients": CLIENTS, "scopes": SCOPES, "clock": self.clock}
        self.state = options.pop("state", None) or MemoryState(clock=self.clock)
        self.sign_in = options.pop("sign_in", None) or Passwords(USERS)
        self.server = AuthServer(issuer, state=self.state, sign_in=self.sign_in, **given | options)
        self.table = RouteTable(self.server.routes(), ())
        self.base = urlsplit(issuer).path.rstrip("/")
        self.address = "203.0.113.7"

    async def request(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Reply:
        path, _, query = target.partition("?")
        app = self.table.find(path)
        if app is None:
            return Reply(404, [], b"")
        scope = {
            "type": "http", "method": method, "path": path, "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
            "client": (self.address, 1234),
        }  # fmt: skip
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await app(scope, receive, send)
        start = sent[0]
        return Reply(start["status"], start["headers"], b"".join(each.get("body", b"") for each in sent[1:]))

    async def get(self, name: str, headers: dict[str, str] | None = None) -> Reply:
        return await self.request("GET", f"{self.base}/{name}", headers=headers)

    async def post(self, name: str, form: Any, headers: dict[str, str] | None = None) -> Reply:
        return await self.request(
            "POST", f"{self.base}/{name}", urlencode(form).encode(), {"content-type": FORM, **(headers or {})}
        )

    async def register(self, **metadata: Any) -> Reply:
        body = json.dumps(metadata).encode()
        return await self.request("POST", f"{self.base}/register", body, {"content-type": "application/json"})

    async def token(self, headers: dict[str, str] | None = None, **form: str) -> Reply:
        reply = await self.post("token", form, headers)
        assert reply.headers["cache-control"] == "no-store"
        return reply

    async def may_call(self, token: str) -> bool:
        return await self.server.verify(token) is not None


class Browser:
    """Keeps cookies as the `__Host-` prefix demands, and reads the form of a page."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.cookies: dict[str, str] = {}

    async def open(self, target: str) -> Reply:
        return self._keep(await self.stage.get(target, self._headers()))

    async def answer(self, page: Reply, answer: str = "allow", **fields: str) -> Reply:
        form = {**hidden_fields(page.text), "answer": answer, **fields}
        return self._keep(await self.stage.post("authorize", form, self._headers()))

    async def sign_in(self, page: Reply, name: str = "ann", password: str = PASSWORD) -> Reply:
        """Allow; here, or at the identity provider. `page` may lead there itself, if the consent is remembered."""
        reply = page if page.status == 303 else await self.answer(page, name=name, password=password)
        if reply.status == 303 and "client_id" in reply.sent_to:
            return await self.come_back(await visit(reply.headers["location"]))
        return reply

    async def sign_in_elsewhere(self, page: Reply) -> Reply:
        """Allow, go to the identity provider, and come back. Gives what `/callback` answers."""
        return await self.come_back(await visit((await self.answer(page)).headers["location"]))

    async def come_back(self, url: str) -> Reply:
        """From the identity provider."""
        return await self.open(url.removeprefix(f"{self.stage.server.issuer.rstrip('/')}/"))

    def _headers(self) -> dict[str, str]:
        return {"cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())} if self.cookies else {}

    def _keep(self, reply: Reply) -> Reply:
        line = reply.headers.get("set-cookie")
        if line is not None:
            pair, *attributes = line.split("; ")
            assert {"Path=/", "Secure", "HttpOnly", "SameSite=Lax"} <= set(attributes)
            assert "Domain" not in line
            name, _, value = pair.partition("=")
            assert name.startswith("__Host-")
            self.cookies[name] = value
            if "Max-Age=0" in attributes:
                del self.cookies[name]
        return reply


class Program:
    """Asks for a code, and changes it for tokens."""

    def __init__(self, stage: Stage, client_id: str = "app", redirect_uri: str = CALLBACK) -> None:
        self.stage = stage
        self.client_id = client_id
        self.redirect_uri = redirect_uri
        self.verifier = secrets.token_urlsafe(32)

    @property
    def challenge(self) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()

    def parameters(self, **changed: str | None) -> dict[str, str]:
        usual = {
            "response_type": "code", "client_id": self.client_id, "redirect_uri": self.redirect_uri,
            "code_challenge": self.challenge, "code_challenge_method": "S256", "state": "st&te=1 é",
            "resource": RESOURCE, "scope": "notes:read",
        }  # fmt: skip
        return {name: value for name, value in {**usual, **changed}.items() if value is not None}

    def url(self, **changed: str | None) -> str:
        return f"authorize?{urlencode(self.parameters(**changed))}"

    async def code(self, browser: Browser | None = None, **changed: str | None) -> str:
        browser = browser or Browser(self.stage)
        reply = await browser.sign_in(await browser.open(self.url(**changed)))
        return reply.sent_to["code"]

    async def redeem(self, given: str, headers: dict[str, str] | None = None, **changed: str | None) -> Reply:
        form = {
            "grant_type": "authorization_code", "code": given, "redirect_uri": self.redirect_uri,
            "client_id": self.client_id, "code_verifier": self.verifier, **changed,
        }  # fmt: skip
        return await self.stage.token(headers, **{name: value for name, value in form.items() if value is not None})

    async def tokens(self, **changed: str | None) -> dict[str, Any]:
        reply = await self.redeem(await self.code(**changed))
        assert reply.status == 200, reply.text
        return reply.json

    async def refresh(self, refresh_token: str, **more: str) -> Reply:
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": self.client_id, **more}
        return await self.stage.token(**form)


def hidden_fields(page: str) -> dict[str, str]:
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page)
    return {name: html.unescape(value) for name, value in found}


def basic(id: str, secret: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{id}:{secret}".encode()).decode()}


def payload(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the claims of a JWT, unchecked."""
    header, claims, _ = (part + "=" * (-len(part) % 4) for part in token.split("."))
    return json.loads(base64.urlsafe_b64decode(header)), json.loads(base64.urlsafe_b64decode(claims))


def written_in(folder: Path) -> bytes:
    """All that a store has in its files."""
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


# ── on a socket ──


@asynccontextmanager
async def served(make: Callable[[str], Any]) -> AsyncIterator[str]:
    """`make` gets the URL of the root, and gives what `server.asgi()` gives."""
    apps: list[Any] = []

    async def later(scope: Any, receive: Any, send: Any) -> None:
        await apps[0](scope, receive, send)

    async with hosted(later, lifespan="off") as root:
        apps.append(make(root))
        await apps[0].start()
        try:
            yield root
        finally:
            await apps[0].drain(1)


class UncachedVerifier:
    """A verifier that wants to be asked about every request."""

    cache_seconds = 0.0
    binds_keys = False

    def __init__(self, verifier: Any) -> None:
        self.issuer, self.resource, self.verify = verifier.issuer, verifier.resource, verifier.verify
        self.upstream_token = verifier.upstream_token
        self._verifier = verifier

    def for_app(self, state: Any) -> "UncachedVerifier":
        return UncachedVerifier(self._verifier.for_app(state))

    async def close(self) -> None:
        await self._verifier.close()


async def say_yes(url: str) -> str:
    """What a user does: opens the page, allows, and signs in, here or at the identity provider. Gives where the browser
    is sent.
    """
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        async with session.get(url) as page:
            text = await page.text()
            assert page.status == 200, text
            cookie = page.headers["Set-Cookie"].partition(";")[0]
        form = {**hidden_fields(text), "name": "ann", "password": PASSWORD, "answer": "allow"}
        parts = urlsplit(url)
        headers = {"Cookie": cookie, "Origin": f"{parts.scheme}://{parts.netloc}"}
        target = url.partition("?")[0]
        async with session.post(target, data=form, headers=headers, allow_redirects=False) as answer:
            assert answer.status == 303, await answer.text()
            location = answer.headers["Location"]
        if "client_id" not in dict(parse_qsl(urlsplit(location).query)):
            return location
        async with session.get(await visit(location), headers={"Cookie": cookie}, allow_redirects=False) as answer:
            assert answer.status == 303, await answer.text()
            return answer.headers["Location"]
