"""`Server(auth=auth_server)` serves the routes of the authorization server, wherever the app is."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from sign_in_stage import Person
from starlette.applications import Starlette
from starlette.routing import Mount

from authserver_stage import ISSUER, RESOURCE, SCOPES, USERS, served
from dovetail import Client, Server
from dovetail.auth import Auth, Principal
from dovetail.authserver import AuthServer, Passwords
from dovetail.client.oauth import OAuth
from dovetail.errors import SetupError
from dovetail.transports.http.app import HttpApp
from http_wire import HttpExchange, HttpWire
from processes import PROMPTLY


def beside(issuer: str = ISSUER, resource: str = RESOURCE) -> AuthServer:
    return AuthServer(issuer, resource=resource, sign_in=Passwords(USERS), scopes=SCOPES)


def notes(auth: Any) -> Server:
    server = Server("notes", auth=auth)

    @server.tool
    def read() -> str:
        """Read a note."""
        return "a note"

    return server


class Host:
    """An app in front of ours, which is started and drained itself."""

    def __init__(self, app: HttpApp, outer: Any) -> None:
        self.start, self.drain, self._outer = app.start, app.drain, outer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._outer(scope, receive, send)


def mounted(server: Server) -> Host:
    app, well_known = server.asgi(), server.well_known(path="/notes/mcp")
    return Host(app, Starlette(routes=[Mount("/.well-known", well_known), Mount("/notes", app)]))


def mounted_on(server: Server, path: str) -> Host:
    app, host = server.asgi(), FastAPI()
    app.mount_on(host, path)
    host.mount("/.well-known", server.well_known(path="/notes/mcp"))
    return Host(app, host)


def behind_a_proxy(server: Server) -> Host:
    """That removes the prefix without a word."""
    app = server.asgi()

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "path": scope["path"].removeprefix("/notes")}, receive, send)

    return Host(app, proxy)


PLACES: dict[str, tuple[str, Callable[[AuthServer], Any]]] = {
    "the origin": ("", lambda auth: notes(auth).asgi(path="/notes/mcp")),
    "whole path": ("/notes", lambda auth: notes(auth).asgi(path="/notes/mcp")),
    "Auth": ("/notes", lambda auth: notes(Auth(auth, scopes=["notes:read"])).asgi(path="/notes/mcp")),
    "list": ("/notes", lambda auth: notes([unknown, auth]).asgi(path="/notes/mcp")),
    "routes=": ("/notes", lambda auth: notes(auth).asgi(path="/notes/mcp", routes=auth.routes())),
    "function": ("/notes", lambda auth: notes(by_function(auth)).asgi(path="/notes/mcp", routes=auth.routes())),
    "mounted": ("/notes", lambda auth: mounted(notes(auth))),
    "mount_on": ("/notes", lambda auth: mounted_on(notes(auth), "/notes")),
    "the endpoint is mounted": ("/notes/mcp", lambda auth: mounted_on(notes(auth), "/notes/mcp")),
    "behind a proxy": ("/notes", lambda auth: behind_a_proxy(notes(auth))),
}


def by_function(auth_server: AuthServer) -> Auth:
    """Its pages are not served by this."""
    return Auth(auth_server.verify, authorization_servers=[auth_server.issuer], public_url=auth_server.resource)


async def unknown(token: str) -> Principal | None:
    return None


@pytest.mark.parametrize(("base", "make"), PLACES.values(), ids=PLACES)
async def test_a_user_signs_in_and_calls(base: str, make: Callable[[AuthServer], Any]) -> None:
    person = Person()
    async with served(lambda root: make(beside(root + base, f"{root}/notes/mcp"))) as root:
        auth = OAuth(open_browser=person.open, client_name="A test")
        async with Client(f"{root}/notes/mcp", auth=auth, timeout=PROMPTLY) as client:
            assert (await client.call_tool("read")).data == "a note"
        assert len(person.asked) == 1


async def get(app: Any, path: str, host: str, **headers: str | None) -> HttpExchange:
    return await HttpWire(app).raw("GET", path=path, headers={"host": host, **headers}).done()


async def test_a_route_of_the_author_takes_the_place_of_one_of_ours() -> None:
    """So middleware can be put around it."""
    server = notes(beside())

    @server.custom_route("/register", methods=["POST"])
    def register(request: Any) -> str:
        return "mine"

    app = server.asgi()
    wire = HttpWire(app)
    assert (await wire.raw("POST", path="/register").done()).raw == b"mine"
    assert (await wire.raw("GET", path="/jwks").done()).json["keys"]
    await app.drain(1)


def test_the_class_is_no_authorization_server() -> None:
    with pytest.raises(SetupError, match="give it an AuthServer, a verifier"):
        Server("notes", auth=AuthServer)


# ── the host of the public URL ──


METADATA = "/.well-known/oauth-authorization-server"
HOSTS = {"notes.example.com": 200, "notes.example.com:8443": 200, "localhost:8000": 200, "rebound.example": 403}


@pytest.mark.parametrize(("host", "status"), HOSTS.items())
async def test_the_host_of_the_public_url_is_known(host: str, status: int) -> None:
    server = notes(beside())
    listening = HttpApp(server.engine, server.http_options({}), bound_to="0.0.0.0")
    for app in (server.asgi(), server.asgi(allowed_hosts=["other.example.com"]), listening):
        expected = 200 if app is listening else status  # where a proxy may send any name
        assert (await get(app, METADATA, host)).status == expected
        assert (await get(app, METADATA, host, origin="https://rebound.example")).status == 403
        await app.drain(1)


@pytest.mark.parametrize(("host", "status"), HOSTS.items())
async def test_so_are_the_documents_at_the_origin(host: str, status: int) -> None:
    server = notes(beside("https://notes.example.com/notes", "https://notes.example.com/notes/mcp"))
    documents = server.well_known(path="/notes/mcp")
    for app in (documents, Starlette(routes=[Mount("/.well-known", documents)])):
        found = await get(app, f"{METADATA}/notes", host, origin="https://a.page.example")
        assert found.status == status, "any page may read it"
        if status == 200:
            assert found.json["issuer"] == "https://notes.example.com/notes"
        assert (await get(app, f"{METADATA}/other", host)).status in (403, 404)
        assert (await get(app, "/.well-known/oauth-protected-resource", host)).status == status


async def test_a_page_of_the_public_url_may_post_its_form() -> None:
    """Also where a proxy says how it reaches us."""
    app = notes(beside()).asgi()
    for origin, status in {"https://notes.example.com": 415, "https://rebound.example": 403}.items():
        for host in ("notes.example.com", "127.0.0.1:8000"):
            headers: dict[str, str | None] = {"host": host, "origin": origin}
            answer = await HttpWire(app).raw("POST", path="/authorize", headers=headers).done()
            assert answer.status == status, "415: it has come so far that its form is read, and there is none"
    await app.drain(1)


async def test_a_public_url_of_this_machine_says_nothing_of_hosts(caplog: pytest.LogCaptureFixture) -> None:
    server = notes(beside("http://127.0.0.1:8000", "http://127.0.0.1:8000/mcp"))
    app = HttpApp(server.engine, server.http_options({}), bound_to="0.0.0.0")
    assert "is not checked" in caplog.text
    assert (await get(app, METADATA, "in-my-network.example")).status == 200
    await app.drain(1)
