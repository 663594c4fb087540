"""Protected resource metadata (RFC 9728): where the document is, what is in it, and who may read it."""

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from dovetail import Server
from dovetail.auth import Auth, Principal
from dovetail.errors import SetupError
from http_serving import serving
from http_wire import HttpExchange, HttpWire

ROOT = "/.well-known/oauth-protected-resource"
ISSUER = "https://login.example.com/"
RESOURCE = "http://localhost:8000/mcp"


async def verify(token: str) -> Principal | None:
    return Principal(subject=token) if token == "good" else None


def notes(**options: Any) -> Server:
    server = Server("notes", version="1.0.0", auth=Auth(verify, **{"authorization_servers": [ISSUER], **options}))
    server.add_tool(lambda: "", name="write", scopes=["notes:write", "offline_access"])
    server.add_prompt(lambda: "", name="ask", scopes=["notes:ask"])
    server.add_resource("notes://all", lambda: "", name="all", scopes=["notes:read"])
    server.add_resource("notes://one/{name}", lambda name: name, name="one", scopes=["notes:one"])
    return server


async def get(app: Any, path: str, **options: Any) -> HttpExchange:
    root_path = options.pop("root_path", "")
    return await HttpWire(app, root_path=root_path).raw(options.pop("method", "GET"), path=path, **options).done()


async def document(app: Any, path: str, **options: Any) -> Any:
    answer = await get(app, path, **options)
    assert answer.status == 200, answer.raw
    return answer.json


async def metadata_url(app: Any, path: str = "/mcp", **options: Any) -> str:
    refused = await get(app, path, method="POST", **options)
    assert refused.status == 401
    return refused.headers["www-authenticate"].partition('resource_metadata="')[2].partition('"')[0]


# ── what is in it, and who may read it ──


@pytest.mark.rule("AUTH-4", "AUTH-14")
@pytest.mark.parametrize("path", [ROOT, f"{ROOT}/mcp", f"{ROOT}/mcp/"])
async def test_the_document(path: str) -> None:
    async with serving(notes(scopes=["notes:read"], documentation="https://notes.example.com/help")) as app:
        assert await document(app, path) == {
            "resource": RESOURCE,
            "authorization_servers": [ISSUER],  # byte for byte, with its slash
            "bearer_methods_supported": ["header"],
            "scopes_supported": ["notes:ask", "notes:one", "notes:read", "notes:write"],
            "resource_name": "notes",
            "resource_documentation": "https://notes.example.com/help",
        }


async def test_what_is_given_counts() -> None:
    async with serving(notes(scopes_supported=["notes:read"], dpop="required")) as app:
        found = await document(app, ROOT)
        assert found["scopes_supported"] == ["notes:read"]
        assert found["dpop_bound_access_tokens_required"] is True
        assert "ES256" in found["dpop_signing_alg_values_supported"]


@pytest.mark.rule("SEC-11")
async def test_without_first_scopes_nothing_is_said_of_others() -> None:
    """A client that finds none in the challenge asks for all that the document names: the whole catalog."""
    bare = Server("bare", auth=Auth(verify, authorization_servers=[ISSUER]))
    for server in (bare, notes()):
        async with serving(server) as app:
            assert "scopes_supported" not in await document(app, ROOT)
            assert "scope=" not in (await get(app, "/mcp", method="POST")).headers["www-authenticate"]


async def test_every_client_may_read_it() -> None:
    async with serving(notes()) as app:
        found = await get(app, ROOT, headers={"origin": "https://anywhere.example"})
        assert (found.status, found.headers["access-control-allow-origin"]) == (200, "*")
        assert found.headers["cache-control"] == "public, max-age=300"
        head = await get(app, ROOT, method="HEAD")
        assert (head.status, head.raw) == (200, b"")
        asked = {"origin": "https://anywhere.example", "access-control-request-method": "GET"}
        preflight = await get(app, ROOT, method="OPTIONS", headers=asked)
        assert (preflight.status, preflight.headers["access-control-allow-headers"]) == (204, "*")
        other = await get(app, ROOT, method="POST")
        assert (other.status, other.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


async def test_no_stranger_chooses_the_host_and_one_that_is_not_checked_is_still_a_host() -> None:
    async with serving(notes()) as app, serving(notes(), allowed_hosts=["*"]) as unchecked:
        for host, status, seen in [("evil.example", 403, "evil.example"), ('x"y', 400, "127.0.0.1:8000")]:
            assert (await get(app, ROOT, headers={"host": host})).status == status
            assert (await document(unchecked, ROOT, headers={"host": host}))["resource"] == f"http://{seen}/mcp"
        assert (await get(app, f"{ROOT}/other")).status == 404


# ── where it is ──


HERE = "http://localhost:8000"
PUBLIC = "https://example.com"
PLACES = {  # options; where the app is mounted, and the path of a request; the URL of the document; the resource
    "plain": ({}, "", "/mcp", f"{HERE}{ROOT}/mcp", f"{HERE}/mcp"),
    "another path": ({"path": "/api/v1"}, "", "/api/v1", f"{HERE}{ROOT}/api/v1", f"{HERE}/api/v1"),
    "mounted": ({}, "/notes", "/notes/mcp", f"{HERE}/notes{ROOT}/mcp", f"{HERE}/notes/mcp"),
    "mounted at its path": ({}, "/mcp", "/mcp", f"{HERE}/mcp{ROOT}", f"{HERE}/mcp"),
    "escaped": ({}, "/ü", "/ü/mcp", f"{HERE}/%C3%BC{ROOT}/mcp", f"{HERE}/%C3%BC/mcp"),
    "HTTP+SSE": ({}, "", "/sse", f"{HERE}{ROOT}/sse", f"{HERE}/sse"),
    "public": ({"public_url": f"{PUBLIC}/mcp"}, "", "/mcp", f"{PUBLIC}{ROOT}/mcp", f"{PUBLIC}/mcp"),
    "prefix cut off": ({"public_url": f"{PUBLIC}/x/mcp"}, "", "/mcp", f"{PUBLIC}/x{ROOT}/mcp", f"{PUBLIC}/x/mcp"),
    "path changed": ({"public_url": f"{PUBLIC}/Notes/"}, "", "/mcp", f"{PUBLIC}{ROOT}/Notes", f"{PUBLIC}/Notes/"),
    "public, below": ({"public_url": f"{PUBLIC}/x/mcp"}, "/x", "/x/mcp", f"{PUBLIC}/x{ROOT}/mcp", f"{PUBLIC}/x/mcp"),
    "public, there": ({"public_url": f"{PUBLIC}/mcp"}, "/mcp", "/mcp", f"{PUBLIC}/mcp{ROOT}", f"{PUBLIC}/mcp"),
    "public origin": ({"public_url": PUBLIC}, "", "/", f"{PUBLIC}{ROOT}", PUBLIC),
}


@pytest.mark.rule("AUTH-4", "AUTH-5")
@pytest.mark.parametrize(("options", "root", "path", "url", "resource"), PLACES.values(), ids=PLACES)
async def test_the_challenge_leads_to_the_document_of_this_endpoint(
    options: dict[str, Any], root: str, path: str, url: str, resource: str
) -> None:
    """A proxy that passes requests for the endpoint on to the app passes those for the document on as well."""
    async with serving(notes(), **options) as app:
        assert await metadata_url(app, path, root_path=root) == url
        below = url[url.index(ROOT) :]
        assert (await document(app, f"{root}{below}", root_path=root))["resource"] == resource


async def test_a_public_url_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_PUBLIC_URL", "https://env.example.com/mcp")
    async with serving(notes(public_url="https://auth.example.com/mcp")) as app:
        assert (await document(app, ROOT))["resource"] == "https://env.example.com/mcp"
    async with serving(notes(), public_url="https://option.example.com/mcp") as app:
        assert (await document(app, ROOT))["resource"] == "https://option.example.com/mcp"
        assert await metadata_url(app) == f"https://option.example.com{ROOT}/mcp"


async def test_only_a_trusted_proxy_says_by_what_it_was_reached() -> None:
    said = {"https": "https", "http, HTTPS": "https", "javascript": "http"}
    for trusted, schemes in (("127.0.0.1", said), ("10.0.0.0/8", dict.fromkeys(said, "http"))):
        async with serving(notes(), trusted_proxies=[trusted]) as app:
            for proto, scheme in schemes.items():
                headers: dict[str, str | None] = {"x-forwarded-proto": proto}
                assert (await document(app, ROOT, headers=headers))["resource"] == f"{scheme}://localhost:8000/mcp"
                assert (await metadata_url(app, headers=headers)).startswith(f"{scheme}://localhost:8000{ROOT}")


@pytest.mark.rule("AUTH-4")
@pytest.mark.parametrize("suffix", ["", "/notes/mcp", "/notes/mcp/"])
async def test_the_document_at_the_origin(suffix: str) -> None:
    server = notes()
    inner = server.asgi()
    for well_known in (
        server.well_known(path="/notes/mcp"),
        server.well_known(public_url="http://localhost:8000/notes/mcp"),
    ):
        host = Starlette(routes=[Mount("/.well-known", well_known), Mount("/notes", inner)])
        found = await document(host, ROOT + suffix)
        assert found["resource"] == "http://localhost:8000/notes/mcp"
        assert (await get(host, f"{ROOT}/other")).status == 404
        below = await metadata_url(host, "/notes/mcp")
        assert await document(host, below.removeprefix("http://localhost:8000")) == found
    await inner.drain(0)


def test_it_has_to_know_where_the_endpoint_is() -> None:
    with pytest.raises(SetupError, match=r"public_url= .*path="):
        notes().well_known()
    with pytest.raises(SetupError, match="auth="):
        Server("open").well_known(path="/mcp")
    with pytest.raises(SetupError, match="no metadata to serve"):
        Server("keys", auth=verify).well_known(path="/mcp")
