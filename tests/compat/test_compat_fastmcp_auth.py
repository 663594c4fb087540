"""Middleware, checks of access, verifiers and sign-in of FastMCP's programs on `dovetail.compat.fastmcp`."""

import json
import logging
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from dovetail.compat.fastmcp.exceptions import ToolError
from dovetail.compat.fastmcp.server.auth import (
    AccessToken,
    AuthContext,
    IntrospectionTokenVerifier,
    JWTVerifier,
    MultiAuth,
    OAuthProxy,
    OIDCProxy,
    RemoteAuthProvider,
    StaticTokenVerifier,
    TokenVerifier,
    require_roles,
    require_scopes,
    restrict_tag,
)
from dovetail.compat.fastmcp.server.auth.providers.auth0 import Auth0Provider
from dovetail.compat.fastmcp.server.auth.providers.aws import AWSCognitoProvider
from dovetail.compat.fastmcp.server.auth.providers.azure import AzureProvider
from dovetail.compat.fastmcp.server.auth.providers.clerk import ClerkProvider
from dovetail.compat.fastmcp.server.auth.providers.discord import DiscordProvider
from dovetail.compat.fastmcp.server.auth.providers.github import GitHubProvider
from dovetail.compat.fastmcp.server.auth.providers.google import GoogleProvider
from dovetail.compat.fastmcp.server.auth.providers.huggingface import HuggingFaceProvider
from dovetail.compat.fastmcp.server.auth.providers.keycloak import KeycloakAuthProvider
from dovetail.compat.fastmcp.server.auth.providers.scalekit import ScalekitProvider
from dovetail.compat.fastmcp.server.auth.providers.supabase import SupabaseProvider
from dovetail.compat.fastmcp.server.auth.providers.workos import AuthKitProvider, WorkOSProvider
from dovetail.compat.fastmcp.server.dependencies import get_access_token, get_http_headers
from dovetail.compat.fastmcp.server.middleware import AuthMiddleware, Middleware, MiddlewareContext, PingMiddleware
from dovetail.compat.fastmcp.server.middleware.caching import ResponseCachingMiddleware
from dovetail.compat.fastmcp.server.middleware.dereference import DereferenceRefsMiddleware
from dovetail.compat.fastmcp.server.middleware.error_handling import ErrorHandlingMiddleware
from dovetail.compat.fastmcp.server.middleware.logging import LoggingMiddleware, StructuredLoggingMiddleware
from dovetail.compat.fastmcp.server.middleware.rate_limiting import (
    RateLimitingMiddleware,
    SlidingWindowRateLimitingMiddleware,
)
from dovetail.compat.fastmcp.server.middleware.response_limiting import ResponseLimitingMiddleware
from dovetail.compat.fastmcp.server.middleware.timing import TimingMiddleware
from pydantic import AnyHttpUrl
from starlette.testclient import TestClient

import dovetail
from authserver_stage import served
from dovetail.auth import Principal
from dovetail.client import OAuth
from dovetail.compat.fastmcp import Client, Context, FastMCP, create_proxy
from dovetail.errors import SetupError
from identity_provider import provider
from issuer_stage import EC, ISSUER, RSA, claims, site, token
from provider_kinds import CLIENT_ID, CLIENT_SECRET
from test_docs_sign_in import BACK, Browser

ORIGIN = "http://127.0.0.1:8000"
ENDPOINT = f"{ORIGIN}/mcp"
ANN = Principal(subject="ann", client="app", scopes=frozenset({"read"}), claims={"level": 5, "roles": ["admin"]})


def plain() -> str:
    return "plain"


async def names(client: Any) -> set[str]:
    return {each.name for each in await client.list_tools(fresh=True)}


# ── middleware ──


async def test_hooks_run_from_the_outside_in_and_see_messages_and_results() -> None:
    seen: list[str] = []

    class Outer(Middleware):
        async def on_message(self, context: MiddlewareContext, call_next: Any) -> Any:
            seen.append(f"message {context.method} {context.type}")
            return await call_next(context)

        async def on_request(self, context: MiddlewareContext, call_next: Any) -> Any:
            seen.append("request")
            return await call_next(context)

        async def on_call_tool(self, context: MiddlewareContext, call_next: Any) -> Any:
            seen.append(f"call {context.message.name} {context.message.arguments}")
            await context.fastmcp_context.set_state("caller", "ann")
            context.message.arguments["x"] *= 2
            return await call_next(context)

        async def on_list_tools(self, context: MiddlewareContext, call_next: Any) -> Any:
            return [each for each in await call_next(context) if "hidden" not in each.tags]

    class Inner(Middleware):
        async def __call__(self, context: MiddlewareContext, call_next: Any) -> Any:
            if context.method == "tools/call" and get_http_headers().get("x-key") != "good":
                found = await context.fastmcp_context.fastmcp.get_tool(context.message.name)
                seen.append(f"inner {found.tags}")
            return await call_next(context)

    server = FastMCP("test", middleware=[Outer(), Inner()])

    @server.tool(tags={"a"})
    async def twice(x: int, ctx: Context) -> str:
        return f"{x} {await ctx.get_state('caller')}"

    server.tool(plain, tags={"hidden"})
    async with Client(server) as client:
        assert await names(client) == {"twice"}
        seen.clear()
        assert (await client.call_tool("twice", {"x": 3})).data == "6 ann"
    assert seen == ["message tools/call request", "request", "call twice {'x': 3}", "inner {'a'}"]


async def test_a_hook_may_refuse_a_call() -> None:
    class Refuse(Middleware):
        async def on_call_tool(self, context: MiddlewareContext, call_next: Any) -> Any:
            raise ToolError(f"No {context.message.name}")

    server = FastMCP("test", middleware=[Refuse()], tools=[plain])
    async with Client(server) as client:
        with pytest.raises(ToolError, match="No plain"):
            await client.call_tool("plain")


async def test_messages_times_and_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    failures: list[Any] = []
    errors = ErrorHandlingMiddleware(error_callback=lambda failure, context: failures.append(context.method))
    server = FastMCP("test", tools=[plain])
    for each in (errors, LoggingMiddleware(include_payloads=True), StructuredLoggingMiddleware(), TimingMiddleware()):
        server.add_middleware(each)
    server.add_middleware(PingMiddleware(interval_ms=5000))
    server.add_middleware(DereferenceRefsMiddleware())
    async with Client(server) as client:
        await client.call_tool("plain")
        with pytest.raises(dovetail.ServerError):
            await client.get_prompt("none")
    said = [each.getMessage() for each in caplog.records]
    assert any(line.startswith("event=request_success method=tools/call") and '"plain"' in line for line in said)
    assert any(json.loads(line)["event"] == "request_error" for line in said if line.startswith("{"))
    assert any(each.name == "fastmcp.timing" and "duration_ms=" in each.getMessage() for each in caplog.records)
    assert failures == ["prompts/get"]


async def test_results_that_are_too_long_are_cut_and_their_tools_have_no_schema() -> None:
    server = FastMCP("test", middleware=[ResponseLimitingMiddleware(max_size=1000, tools=["long"])])
    server.tool(lambda: "x" * 5000, name="long")

    @server.tool
    def other() -> str:
        return "y" * 5000

    async with Client(server) as client:
        cut = (await client.call_tool("long")).text
        assert len(cut) < 1000
        assert cut.endswith("[Response truncated due to size limit]")
        assert len((await client.call_tool("other")).text) == 5000
        assert {each.name: each.output_schema is None for each in await client.list_tools()} == {
            "long": True,
            "other": False,
        }


async def test_results_are_cached_for_each_caller() -> None:
    server = FastMCP("test")
    ran: list[int] = []

    def count() -> str:
        ran.append(1)
        return str(len(ran))

    server.tool(count)
    server.add_middleware(ResponseCachingMiddleware(call_tool_settings={"ttl": 60, "excluded_tools": ["fresh"]}))
    server.tool(count, name="fresh")
    async with Client(server, principal=ANN) as client, Client(server, principal=Principal(subject="bob")) as other:
        assert [(await client.call_tool("count")).data for _ in range(2)] == ["1", "1"]
        assert (await other.call_tool("count")).data == "2"
        assert [(await client.call_tool("fresh")).data for _ in range(2)] == ["3", "4"]


async def test_calls_beyond_the_rate_are_refused() -> None:
    server = FastMCP("test", tools=[plain], middleware=[SlidingWindowRateLimitingMiddleware(2, window_minutes=1)])
    server.add_middleware(RateLimitingMiddleware(max_requests_per_second=100.0, burst_capacity=5))
    async with Client(server) as client:
        await client.call_tool("plain")
        await client.call_tool("plain")
        with pytest.raises(dovetail.DovetailError, match="2 requests per minute"):
            await client.call_tool("plain")


# ── checks of access ──


async def level(ctx: AuthContext) -> bool:
    return ctx.token is not None and ctx.token.claims.get("level", 0) >= 5


def broken(ctx: AuthContext) -> bool:
    raise ValueError(ctx)


CHECKS: dict[str, Any] = {
    "read": require_scopes("read"),
    "write": require_scopes("write"),
    "level": [level, require_scopes("read")],
    "both": [level, require_scopes("write")],
    "role": require_roles("admin", extract=lambda found: found["roles"]),
    "roles": require_roles("admin", "owner", extract=lambda found: found["roles"]),
    "broken": broken,
}


async def test_a_component_is_for_callers_that_all_its_checks_allow() -> None:
    server = FastMCP("test")
    for name, checks in CHECKS.items():
        server.tool(plain, name=name, auth=checks)
        server.resource(f"data://{name}", name=name, auth=checks)(plain)
        server.prompt(plain, name=name, auth=checks)
    expected = {"read", "level", "role"}
    async with Client(server, principal=ANN) as client:
        assert await names(client) == expected
        assert {each.name for each in await client.list_resources()} == expected
        assert {each.name for each in await client.list_prompts()} == expected
        assert (await client.call_tool("level")).data == "plain"
        with pytest.raises(dovetail.DovetailError):
            await client.call_tool("write")
    async with Client(server) as client:
        assert await names(client) == set()


async def test_the_middleware_guards_by_tag_what_is_listed_called_and_read_also_by_functions() -> None:
    mounted = FastMCP("mounted")
    mounted.tool(plain, name="theirs", tags={"admin"})
    server = FastMCP("test", middleware=[AuthMiddleware(auth=restrict_tag("admin", scopes=["write"]))])
    server.tool(plain, name="guarded", tags={"admin"})
    server.tool(plain, name="open")
    server.prompt(plain, name="guarded", tags={"admin"})
    server.resource("data://{name}/guarded", name="guarded", tags={"admin"})(lambda name: name)
    server.mount(mounted)

    @server.tool
    async def read(uri: str, ctx: Context) -> str:
        return str((await ctx.read_resource(uri)).contents[0].content)

    async with Client(server, principal=ANN) as client:
        assert await names(client) == {"open", "read"}
        assert await client.list_prompts() == []
        for attempt in (
            client.call_tool("guarded"), client.call_tool("theirs"), client.get_prompt("guarded"),
            client.read_resource("data://a/guarded"), client.read_resource("DATA://a/%67uarded"),
            client.call_tool("read", {"uri": "data://a/guarded"}),
        ):  # fmt: skip
            with pytest.raises(dovetail.DovetailError, match="Authorization failed"):
                await attempt
    async with Client(server, principal=Principal(subject="eve", scopes=frozenset({"write"}))) as client:
        assert await names(client) == {"open", "read", "guarded", "theirs"}
        assert (await client.call_tool("read", {"uri": "data://a/guarded"})).data == "a"


async def test_what_functions_read_passes_the_hooks_of_middleware() -> None:
    class Refuse(Middleware):
        async def on_read_resource(self, context: MiddlewareContext, call_next: Any) -> Any:
            if context.message.uri == "data://secret":
                raise ToolError("refused")
            return await call_next(context)

    server = FastMCP("test", middleware=[Refuse()])
    server.resource("data://{name}", name="any")(lambda name: name)

    @server.tool
    async def read(name: str, ctx: Context) -> str:
        return str((await ctx.read_resource(f"data://{name}")).contents[0].content)

    async with Client(server) as client:
        assert (await client.call_tool("read", {"name": "open"})).data == "open"
        with pytest.raises(ToolError, match="refused"):
            await client.call_tool("read", {"name": "secret"})


async def test_what_a_mounted_server_guards_stays_guarded() -> None:
    mounted = FastMCP("mounted", middleware=[AuthMiddleware(auth=require_scopes("write"))])
    mounted.tool(plain, auth=require_scopes("read"))
    mounted.resource("data://a")(plain)
    server = FastMCP("test")
    server.mount(mounted)

    @server.tool
    async def read(ctx: Context) -> str:
        return str((await ctx.read_resource("data://a")).contents[0].content)

    for scopes, expected in (({"read"}, set()), ({"write"}, set()), ({"read", "write"}, {"plain"})):
        async with Client(server, principal=Principal(subject="ann", scopes=frozenset(scopes))) as client:
            assert await names(client) == {"read", *expected}
            assert len(await client.list_resources()) == ("write" in scopes)
            if "write" in scopes:
                assert (await client.call_tool("read")).data == "plain"
            else:
                with pytest.raises(dovetail.DovetailError):
                    await client.call_tool("read")


async def test_hooks_find_tools_of_servers_elsewhere_before_they_are_listed(tmp_path: Path) -> None:
    class Refuse(Middleware):
        async def on_call_tool(self, context: MiddlewareContext, call_next: Any) -> Any:
            found = await context.fastmcp_context.fastmcp.get_tool(context.message.name)
            if found is not None and "admin" in found.tags:
                raise ToolError("refused")
            return await call_next(context)

    path = tmp_path / "elsewhere.py"
    path.write_text(
        "from dovetail import Server\nserver = Server()\n@server.tool(tags={'admin'})\ndef f(): ...\nserver.run()"
    )
    server = create_proxy([sys.executable, str(path)], middleware=[Refuse()])
    async with Client(server) as client:
        with pytest.raises(ToolError, match="refused"):
            await client.call_tool("f")


async def test_a_function_that_lists_tools_sees_those_of_its_caller() -> None:
    server = FastMCP("test")
    server.tool(plain, name="more", auth=require_scopes("write"))

    @server.tool
    async def listed(ctx: Context) -> list[str]:
        return [each.name for each in await ctx.fastmcp.list_tools()]

    async with Client(server, principal=ANN) as client:
        assert (await client.call_tool("listed")).data == ["listed"]
    assert [each.name for each in await server.list_tools()] == ["more", "listed"]


async def test_a_check_may_look_at_headers() -> None:
    server = FastMCP("test")
    server.tool(plain, auth=lambda _: get_http_headers().get("x-key") == "good")
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "plain", "arguments": {}}}
    with TestClient(server.http_app(stateless_http=True), base_url=ORIGIN) as http:
        for key, expected in (("good", '"result"'), ("bad", '"error"')):
            headers = {"accept": "application/json, text/event-stream", "x-key": key}
            assert expected in http.post("/mcp", json=body, headers=headers).text


# ── verifiers ──


def asked(server: FastMCP, token_: str | None, tool: str = "whoami", **options: Any) -> Any:
    """The HTTP response for a call of a tool."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {}}}
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
    headers |= {} if token_ is None else {"authorization": f"Bearer {token_}"}
    with TestClient(server.http_app(stateless_http=True, **options), base_url=ORIGIN) as http:
        return http.post("/mcp", json=body, headers=headers)


def whoami() -> dict[str, Any]:
    token_ = get_access_token()
    assert token_ is not None
    with pytest.raises(SetupError, match="upstream_token"):
        str(token_.token)
    assert "authorization" not in get_http_headers(include_all=True)
    with pytest.raises(ImportError, match="tokens never reach functions"):
        get_http_headers(include={"Authorization"})
    return {"client": token_.client_id, "scopes": token_.scopes, "sub": token_.claims.get("sub")}


class OwnVerifier(TokenVerifier):
    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token, "own", ["read"]) if token == "own-token" else None


STATIC = StaticTokenVerifier({
    "dev-ann": {"client_id": "ann@example.com", "scopes": ["read", "write"], "sub": "ann"},
    "dev-guest": {"client_id": "guest", "scopes": []},
}, required_scopes=["read"])  # fmt: skip
KEY: Any = {
    "public_key": RSA.as_pem(private=False).decode(), "issuer": ISSUER, "audience": ENDPOINT, "algorithm": "RS256",
}  # fmt: skip
JWT = JWTVerifier(**KEY, required_scopes=["notes:read"])


class Stricter(JWTVerifier):
    async def verify_token(self, token: str) -> AccessToken | None:
        found = await super().verify_token(token)
        return found if found is not None and found.claims["sub"] == "alice" else None


class Elsewhere(TokenVerifier):
    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token, "own", resource="https://other.example.com/mcp")


SECRET = JWTVerifier(public_key="a shared secret of 32 characters", issuer=ISSUER, audience=ENDPOINT, algorithm="HS256")
GOOD: list[tuple[Any, str, dict[str, Any]]] = [
    (STATIC, "dev-ann", {"client": "ann@example.com", "scopes": ["read", "write"], "sub": "ann"}),
    (JWT, token(claims(aud=ENDPOINT)), {"client": "editor", "scopes": ["notes:read", "notes:write"], "sub": "alice"}),
    (OwnVerifier(), "own-token", {"client": "own", "scopes": ["read"], "sub": None}),
    (
        MultiAuth(verifiers={"a": STATIC, "b": JWT}, required_scopes=[]),
        token(claims(aud=ENDPOINT, scope="notes:read")),
        {"client": "editor", "scopes": ["notes:read"], "sub": "alice"},
    ),
    (Stricter(**KEY), token(claims(aud=ENDPOINT, scope="")), {"client": "editor", "scopes": [], "sub": "alice"}),
]  # fmt: skip


@pytest.mark.parametrize(("auth", "good", "expected"), GOOD)
def test_a_caller_with_a_good_token_is_known_and_its_token_is_not(
    auth: Any, good: str, expected: dict[str, Any]
) -> None:
    server = FastMCP("test", auth=auth, tools=[whoami])
    answer = asked(server, good)
    assert answer.status_code == 200, answer.text
    assert json.loads(answer.text.partition("data: ")[2] or answer.text)["result"]["structuredContent"] == expected
    assert asked(server, None).status_code == 401
    assert asked(server, "another-token").status_code == 401


@pytest.mark.parametrize(("auth", "bad", "status"), [
    (STATIC, "dev-guest", 403),
    (JWT, token(claims(aud="https://other.example.com/mcp")), 401),
    (JWT, token(claims(aud=ENDPOINT, iss="https://evil.example.com")), 401),
    (JWT, token(claims(aud=ENDPOINT), algorithm="ES256", key=EC), 401),
    (JWT, token(claims(aud=ENDPOINT, scope="other")), 403),
    (Stricter(**KEY), token(claims(aud=ENDPOINT, sub="eve")), 401),
    (RemoteAuthProvider(Stricter(**KEY), [ISSUER], ORIGIN), token(claims(aud=ENDPOINT, sub="eve")), 401),
    (RemoteAuthProvider(Elsewhere(), [ISSUER], ORIGIN), "any", 401),
    (MultiAuth(verifiers=[Elsewhere()], base_url=ORIGIN), "any", 401),
    (MultiAuth(verifiers=[STATIC, JWT], required_scopes=[]), "dev-guest", 401),
    (MultiAuth(verifiers=[OwnVerifier(), JWT]), token(claims(aud=ENDPOINT, scope="other")), 401),
])  # fmt: skip
def test_a_token_of_another_issuer_for_another_server_or_without_scopes_is_refused(
    auth: Any, bad: str, status: int
) -> None:
    assert asked(FastMCP("test", auth=auth, tools=[whoami]), bad).status_code == status


@pytest.mark.parametrize("given", [{}, {"issuer": ISSUER}, {"audience": ENDPOINT}])
def test_a_verifier_without_issuer_or_audience_is_refused(given: Mapping[str, Any]) -> None:
    with pytest.raises(ImportError, match=r'made by others, or for others.*"From FastMCP"'):
        JWTVerifier(jwks_uri="https://login.example.com/jwks", **given)


async def test_users_of_one_program_whom_a_verifier_names_in_claims_do_not_share_state() -> None:
    server = FastMCP("test")

    @server.tool
    async def remember(text: str, ctx: Context) -> str:
        before = await ctx.get_state("text")
        await ctx.set_state("text", text)
        return str(before)

    for user, expected in (("ann", "None"), ("bob", "None"), ("ann", "of ann")):
        caller = AccessToken("any", "editor", claims={"sub": user}).to_principal()
        async with Client(server, principal=caller) as client:
            assert (await client.call_tool("remember", {"text": f"of {user}"})).data == expected


async def test_the_issuer_is_asked_about_tokens() -> None:
    async with site() as issuer:
        verifier = IntrospectionTokenVerifier(
            introspection_url=f"{issuer.origin}/introspect", client_id="notes", client_secret="secret",
            audience=ENDPOINT, required_scopes=["read"], base_url=ORIGIN,
        )  # fmt: skip
        auth = verifier.auth("/mcp")
        assert (auth.public_url, auth.scopes) == (ENDPOINT, {"read"})
        good = {"active": True, "sub": "alice", "client_id": "editor", "scope": "read write", "aud": ENDPOINT}
        for change, expected in (
            ({}, "alice"),
            ({"aud": "https://other.example.com/mcp"}, None),
            ({"active": False}, None),
        ):
            issuer.pages["/introspect"] = good | change
            assert getattr(await auth.verify("opaque"), "subject", None) == expected
        assert asked(FastMCP("test", auth=verifier, tools=[whoami]), None).status_code == 401


def test_every_way_to_serve_over_http_asks_for_tokens() -> None:
    for serve in (lambda server: server.http_app(), lambda server: server.asgi()):
        server = FastMCP("test", auth=STATIC, tools=[whoami])
        with TestClient(serve(server), base_url=ORIGIN) as http:
            assert http.post("/mcp", json={}).status_code == 401
    server = FastMCP("test", auth=STATIC)
    assert server.http_options({}, running=True).path == "/mcp"
    assert server.engine.options.auth is not None


REMOTE: dict[str, tuple[Any, str]] = {
    "remote": (
        RemoteAuthProvider(JWT, [AnyHttpUrl("https://login.example.com")], ORIGIN, resource_documentation="https://docs.example"),
        "https://login.example.com/",
    ),
    "keycloak": (KeycloakAuthProvider(realm_url="https://id.example/realms/a", base_url=ORIGIN), "https://id.example/realms/a"),
    "authkit": (AuthKitProvider(authkit_domain="https://a.authkit.app/", base_url=ORIGIN), "https://a.authkit.app"),
    "scalekit": (
        ScalekitProvider(environment_url="https://a.scalekit.com", resource_id="res_1", base_url=ORIGIN),
        "https://a.scalekit.com/resources/res_1",
    ),
    "supabase": (SupabaseProvider(project_url="https://a.supabase.co", base_url=ORIGIN), "https://a.supabase.co/auth/v1"),
}  # fmt: skip


@pytest.mark.parametrize("name", REMOTE)
def test_clients_are_sent_to_the_authorization_server(name: str) -> None:
    auth, issuer = REMOTE[name]
    server = FastMCP("test", auth=auth, tools=[whoami])
    with TestClient(server.http_app(), base_url=ORIGIN) as http:
        found = http.get("/.well-known/oauth-protected-resource/mcp").json()
    assert (found["resource"], found["authorization_servers"]) == (ENDPOINT, [issuer])
    assert asked(server, None).status_code == 401


# ── sign-in ──

COMMON = {"client_id": "id", "client_secret": "secret", "base_url": ORIGIN}
OPEN_ID = "/.well-known/openid-configuration"
TENANT = "0b1f9851-1bf0-433f-aec3-cb9272f093dc"
SIGN_INS: dict[str, Callable[[], Any]] = {
    "github": lambda: GitHubProvider(**COMMON, required_scopes=["user"], redirect_path="/auth/callback"),
    "google": lambda: GoogleProvider(**COMMON, valid_scopes=["openid"], extra_authorize_params={"hl": "de"}),
    "discord": lambda: DiscordProvider(**COMMON, timeout_seconds=10),
    "azure": lambda: AzureProvider(**COMMON, tenant_id=TENANT, required_scopes="read,write"),
    "workos": lambda: WorkOSProvider(**COMMON, authkit_domain="https://a.authkit.app"),
    "cognito": lambda: AWSCognitoProvider(**COMMON, user_pool_id="eu-central-1_Ab3"),
    "auth0": lambda: Auth0Provider(**COMMON, config_url=f"https://a.auth0.com{OPEN_ID}", audience="x"),
    "clerk": lambda: ClerkProvider(**COMMON, domain="a.clerk.accounts.dev"),
    "huggingface": lambda: HuggingFaceProvider(**COMMON),
    "oidc": lambda: OIDCProxy(**COMMON, config_url=f"https://a.example{OPEN_ID}"),
    "proxy": lambda: OAuthProxy(
        upstream_authorization_endpoint="https://a.example/authorize", upstream_token_endpoint="https://a.example/token",
        upstream_client_id="id", upstream_client_secret="secret", token_verifier=JWT, base_url=ORIGIN,
    ),
    "multi": lambda: MultiAuth(server=GitHubProvider(**COMMON), verifiers=[JWT]),
}  # fmt: skip


@pytest.mark.parametrize("name", SIGN_INS)
def test_a_provider_is_an_authorization_server_where_users_sign_in(name: str) -> None:
    server = FastMCP("test", auth=SIGN_INS[name](), tools=[whoami])
    with TestClient(server.http_app(), base_url=ORIGIN) as http:
        assert ORIGIN in http.get("/.well-known/oauth-protected-resource/mcp").json()["authorization_servers"]
        found = http.get("/.well-known/oauth-authorization-server").json()
        assert found["registration_endpoint"] == f"{ORIGIN}/register"
        assert http.get("/callback").status_code == 403  # nobody was sent to the provider
    expected = {"github": ["user"], "google": ["openid"], "azure": ["read", "write"], "proxy": ["notes:read"]}
    assert found["scopes_supported"] == expected.get(name, [])


def test_what_a_provider_can_not_do_is_refused_and_what_has_no_effect_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    GitHubProvider(**COMMON, jwt_signing_key="x")
    assert "GitHubProvider(jwt_signing_key=) has no effect" in caplog.text
    for attempt in (
        lambda: GitHubProvider(**COMMON, allowed_client_redirect_uris=["http://localhost:*"]),
        lambda: AzureProvider.from_b2c(tenant_name="a"),
        lambda: OIDCProxy(**COMMON, config_url=f"https://a.example{OPEN_ID}", token_verifier=JWT),
        lambda: type("Own", (GitHubProvider,), {"verify_token": OwnVerifier.verify_token})(**COMMON),
        lambda: OAuthProxy(
            upstream_authorization_endpoint="a", upstream_token_endpoint="b", upstream_client_id="c",
            token_verifier=Stricter(**KEY), base_url=ORIGIN,
        ),
        lambda: OAuthProxy(
            upstream_authorization_endpoint="a", upstream_token_endpoint="b", upstream_client_id="c",
            token_verifier=STATIC, base_url=ORIGIN,
        ),
    ):  # fmt: skip
        with pytest.raises(ImportError, match='"From FastMCP"'):
            attempt()
    for typo in (
        lambda: GitHubProvider(**COMMON, require_scopes=["user"]),
        lambda: JWTVerifier(**KEY, required_scope=["user"]),
        lambda: KeycloakAuthProvider(realm_url="https://id.example/realms/a", base_url=ORIGIN, scopes=["user"]),
    ):
        with pytest.raises(TypeError, match='"From FastMCP"'):
            typo()
    for missing, attempt in (
        ("realm_url", lambda: KeycloakAuthProvider(base_url=ORIGIN)),
        ("tenant_id", lambda: FastMCP("test", auth=AzureProvider(**COMMON)).http_app()),
        ("user_pool_id", lambda: FastMCP("test", auth=AWSCognitoProvider(**COMMON)).http_app()),
    ):
        with pytest.raises(TypeError, match=f"the provider needs {missing}="):
            attempt()
    with pytest.raises(SetupError, match="client_id= is empty"):
        FastMCP("test", auth=GitHubProvider(client_id="", client_secret="", base_url=ORIGIN)).http_app()


@asynccontextmanager
async def signed_in(*withheld: str, **options: Any) -> AsyncIterator[tuple[Any, Browser]]:
    """A client of a program whose users sign in at a provider with OpenID Connect, and grant it not all scopes."""
    browser = Browser()
    async with provider("keycloak") as at:
        at.withheld = set(withheld)

        def make(root: str) -> Any:
            at.redirect_uri = f"{root}/callback"
            url = f"{at.issuer}{OPEN_ID}"
            keys = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}
            server = FastMCP("test", auth=OIDCProxy(config_url=url, base_url=root, **keys, **options), tools=[whoami])
            server.tool(plain, name="mail", auth=require_scopes("email"))
            server.tool(plain, name="more", auth=require_scopes("notes:admin"))
            return server.http_app()

        async with served(make) as root:
            auth = OAuth(redirect_uri=BACK, redirect_handler=browser.visit, client_name="Editor")
            async with Client(f"{root}/mcp", auth=auth) as client:
                yield client, browser


async def test_a_user_who_signs_in_has_the_scopes_that_the_provider_has_granted() -> None:
    async with signed_in(required_scopes=["openid", "email"]) as (client, browser):
        assert await names(client) == {"whoami", "mail"}
        found = (await client.call_tool("whoami")).data
        assert found["scopes"] == ["email", "openid"]
        assert found["sub"].startswith("127.0.0.1")
    assert "Editor" in browser.pages[0]
    async with signed_in("email", required_scopes=["openid"], valid_scopes=["email"]) as (client, _):
        assert await names(client) == {"whoami"}
        assert (await client.call_tool("whoami")).data["scopes"] == ["openid"]


async def test_a_user_may_come_in_where_no_scopes_are_asked_for() -> None:
    async with signed_in() as (client, _):
        assert (await client.call_tool("whoami")).data["scopes"] == []


PROGRAM = """
import httpx
from dovetail.compat.fastmcp import FastMCP
from dovetail.compat.fastmcp.server.auth import require_scopes
from dovetail.compat.fastmcp.server.middleware import AuthMiddleware

mounted = FastMCP("mounted")
server = FastMCP("main", middleware=[AuthMiddleware(auth=require_scopes("api"))])

@mounted.tool(auth=require_scopes("admin"))
def theirs() -> str:
    return "theirs"

@server.tool(auth=require_scopes("admin"))
def ours() -> str:
    return "ours"

@server.tool
async def over_http(name: str) -> str:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": {}}}
    transport = httpx.ASGITransport(server.http_app(stateless_http=True))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
        return (await http.post("/mcp", json=body, headers={"accept": "application/json, text/event-stream"})).text

server.mount(mounted)
server.run()
"""


async def test_only_on_stdio_the_user_of_this_machine_may_use_everything(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    async with Client([sys.executable, str(path)]) as client:
        assert await names(client) == {"ours", "theirs", "over_http"}
        for name in ("ours", "theirs"):
            assert (await client.call_tool(name)).data == name
            assert '"error"' in (await client.call_tool("over_http", {"name": name})).data
