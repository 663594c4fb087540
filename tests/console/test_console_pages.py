"""The console's server side: what is at which path, who may see it, and what is told of the server."""

import platform
from importlib.resources import files
from typing import Any

import pytest
from console_asking import ask, ask_api

import dovetail
from dovetail import Console, Server, SetupError

HEADERS = {"content-security-policy", "x-content-type-options", "referrer-policy", "cross-origin-opener-policy"}


def console_app(*, remote: bool = False, **options: Any) -> Any:
    server = Server("tried", title="To be tried", version="3.1")
    return server.asgi(routes=Console(server, remote=remote).routes(), **options)


# ── pages ──


async def test_the_page() -> None:
    told = await ask(console_app(), "/console/")
    assert told.status == 200
    assert told.headers["content-type"] == "text/html; charset=utf-8"
    assert b"<!doctype html>" in told.body[:100].lower()


async def test_without_its_slash_the_page_is_one_step_further() -> None:
    """Where that is depends on what the app is mounted below, and on what a proxy cuts off."""
    told = await ask(console_app(), "/console", root="/below")
    assert (told.status, told.headers["location"]) == (308, "console/")


async def test_every_file_that_the_page_may_load_is_there() -> None:
    app = console_app()
    names = [each.name for each in files("dovetail.console").joinpath("static").iterdir()]
    assert "index.html" in names
    for name in names:
        told = await ask(app, f"/console/static/{name}")
        assert told.status == 200, name
        assert told.body == files("dovetail.console").joinpath("static", name).read_bytes()


@pytest.mark.parametrize(
    "path",
    ["static/", "static", "static/nothing.js", "static/../console.py", "static//etc/passwd", "index.html", "api", "x",
     "static/../../__init__.py", "static/app.js/", "static/%2e%2e/console.py"],
)  # fmt: skip
async def test_nothing_else_can_be_reached(path: str) -> None:
    assert (await ask(console_app(), f"/console/{path}")).status == 404


async def test_a_browser_that_has_a_file_does_not_get_it_again() -> None:
    app = console_app()
    first = await ask(app, "/console/")
    assert first.headers["cache-control"] == "no-cache"
    again = await ask(app, "/console/", if_none_match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert (await ask(app, "/console/", if_none_match='"other"')).status == 200


@pytest.mark.parametrize("path", ["/console/", "/console", "/console/none", "/console/api/none"])
async def test_whatever_is_answered_may_load_and_do_nothing_unforeseen(path: str) -> None:
    told = await ask(console_app(), path)
    assert told.headers.keys() >= HEADERS
    policy = told.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


async def test_another_path() -> None:
    server = Server("tried")
    app = server.asgi(routes=Console(server, path="/tools/look").routes())
    assert (await ask(app, "/tools/look/")).status == 200
    assert (await ask(app, "/tools/look")).headers["location"] == "look/"
    about = await ask(app, "/tools/look/api/about", x_dovetail_console="1")
    assert about.json["endpoint"] == "../../mcp"


@pytest.mark.parametrize("path", ["", "/", "console", "/console/", "/con sole", "/{x}"])
def test_a_path_that_is_none(path: str) -> None:
    with pytest.raises(SetupError, match="it must be like"):
        Console(Server("tried"), path=path)


# ── who may come ──

TRUSTED = {"trusted_proxies": ["127.0.0.1"]}
FARAWAY = ("192.0.2.7", 5)


@pytest.mark.parametrize(
    ("request_", "options", "said"),
    [
        ({}, {}, None),
        ({"client": ("::1", 5, 0, 0), "host": "[::1]:8000"}, {}, None),
        ({"client": ("::ffff:127.0.0.1", 5)}, {}, None),
        ({"client": FARAWAY}, {}, "remote=True"),
        ({"client": None}, {}, "remote=True"),
        # forwarded for somebody, by whom nobody vouches for
        ({"x_forwarded_for": "127.0.0.1"}, {}, "remote=True"),
        ({"forwarded": "for=127.0.0.1"}, {}, "remote=True"),
        ({"via": "1.1 tunnel"}, {}, "remote=True"),
        *(({name: "127.0.0.1"}, {}, "remote=True") for name in (
            "x_forwarded_port", "x_forwarded_client_cert", "x_real_ip", "x_cluster_client_ip", "fly_client_ip",
            "x_original_forwarded_for", "x_envoy_external_address", "cdn_loop", "cf_connecting_ip", "x_client_ip",
        )),
        ({"x_forwarded_for": "127.0.0.1"}, {"trusted_proxies": ["10.0.0.0/8"]}, "remote=True"),
        # by a proxy that is trusted
        ({}, TRUSTED, None),
        ({"x_forwarded_for": "127.0.0.1"}, TRUSTED, None),
        ({"x_forwarded_for": "203.0.113.9"}, TRUSTED, "remote=True"),
        ({"x_forwarded_for": "127.0.0.1, 203.0.113.9"}, TRUSTED, "remote=True"),
        ({"x_forwarded_for": "203.0.113.9, 127.0.0.1"}, TRUSTED, "remote=True"),
        ({"x_forwarded_for": "unknown"}, TRUSTED, "remote=True"),
        ({"forwarded": "for=127.0.0.1"}, TRUSTED, "remote=True"),
        ({"client": ("10.0.0.1", 5), "x_forwarded_for": "127.0.0.1"}, {"trusted_proxies": ["10.0.0.1"]}, "remote=True"),
        # a name that was made to point here
        ({"host": "evil.example:8000"}, {}, "allowed_hosts"),
        ({"host": "evil.example:8000"}, {"allowed_hosts": ["*"]}, "by a name that means this machine"),
        ({"host": ""}, {"allowed_hosts": ["*"]}, "by a name that means this machine"),
        # for others too
        ({"client": FARAWAY, "host": "mcp.example"}, {"remote": True, "allowed_hosts": ["mcp.example"]}, None),
        ({"client": FARAWAY, "host": "evil.example"}, {"remote": True, "allowed_hosts": ["mcp.example"]}, "Host"),
        ({"client": FARAWAY, "host": "evil.example"}, {"remote": True, "allowed_hosts": ["*"]}, "allowed_hosts"),
        ({"client": FARAWAY, "host": "evil.example"}, {"remote": True, "allowed_hosts": ["*:*"]}, "allowed_hosts"),
        ({"client": FARAWAY, "x_forwarded_for": "203.0.113.9"}, {"remote": True}, None),
    ],
)  # fmt: skip
async def test_who_may_see_it(request_: dict[str, Any], options: dict[str, Any], said: str | None) -> None:
    app = console_app(**options)
    for path in ("/console/", "/console", "/console/static/index.html", "/console/api/about"):
        told = await ask(app, path, x_dovetail_console="1", **request_)
        assert (told.status == 403) == (said is not None), path
        assert said is None or said in told.body.decode()


async def test_for_others_only_where_the_names_are_known() -> None:
    """A server that listens everywhere and does not know its names checks no Host: any page could be its own."""
    app = console_app(remote=True)
    anywhere = {"server": ("192.0.2.1", 8000)}

    async def from_anywhere(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, **anywhere}, receive, send)

    told = await ask(from_anywhere, "/console/", client=FARAWAY, host="evil.example:8000")
    assert told.status == 403
    assert b"allowed_hosts" in told.body


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec_fetch_site": ""}, 200),
        ({"origin": "http://localhost:8000"}, 200),
        ({"x_dovetail_console": ""}, 403),
        ({"x_dovetail_console": "0"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "none"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "http://127.0.0.1:8000"}, 403),
        ({"origin": "https://localhost:3000"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"host": "localhost", "origin": "https://localhost"}, 200),
        ({"host": "localhost", "origin": "http://localhost:8000"}, 403),
    ],
)
@pytest.mark.parametrize("cors", [True, False])
async def test_data_goes_to_the_page_itself_only(headers: dict[str, str], status: int, cors: bool) -> None:
    told = await ask_api(console_app(allowed_origins=["null"], cors=cors), "about", **headers)
    assert told.status == status
    assert "access-control-allow-origin" not in told.headers


async def test_no_other_page_is_let_in() -> None:
    """It would have to ask first, because of the header."""
    asks = {"origin": "http://localhost:3000", "access_control_request_headers": "x-dovetail-console"}
    told = await ask(console_app(), "/console/api/about", "OPTIONS", access_control_request_method="GET", **asks)
    assert told.status == 405
    assert not [name for name in told.headers if name.startswith("access-control")]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(method: str) -> None:
    assert (await ask_api(console_app(), "about", method=method)).status == 405


# ── what it tells ──


async def test_about() -> None:
    told = await ask_api(console_app(), "about")
    assert told.headers["cache-control"] == "no-store"
    assert told.json == {
        "endpoint": "../mcp",
        "name": "tried",
        "title": "To be tried",
        "version": "3.1",
        "revisions": ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"],
        "auth": False,
        "python": platform.python_version(),
        "dovetail": dovetail.__version__,
        "target": None,
    }
