"""The fetch for URLs of strangers: where it goes, what it takes back, and what it says when nothing comes of it."""

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from dovetail.auth import Introspection, Jwt, VerifierUnavailable
from dovetail.auth import fetch as module
from dovetail.auth.fetch import Fetch, FetchFailed, FetchRequest, is_allowed_address, is_loopback_url, make_fetch
from dovetail.errors import SetupError
from issuer_stage import AUDIENCE, ISSUER, Site, claims, site, token

PUBLIC = [
    "93.184.216.34", "8.8.8.8", "168.63.129.17", "192.0.1.1", "2001:4860:4860::8888", "2606:4700::1111",
    "64:ff9b::808:808",
]  # fmt: skip
PRIVATE = ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "fd00::1", "64:ff9b::a00:1"]
LOOPBACK = ["127.0.0.1", "127.255.0.1", "::1", "64:ff9b::7f00:1"]
# Where clouds keep secrets of a machine, IPv4 in disguise (6to4, Teredo, NAT64), relays, documentation, no address.
NEVER = [
    "0.0.0.0", "0.1.2.3", "169.254.169.254", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1",
    "::", "fe80::1", "fe80::1%eth0", "ff02::1", "fec0::1", "2001:db8::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1",
    "::ffff:8.8.8.8", "2002:7f00:1::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "64:ff9b::a9fe:a9fe", "192.0.0.192",
    "64:ff9b::c000:c0", "2002:c000:c0::1", "::ffff:192.0.0.192", "192.0.0.1", "192.0.0.9", "168.63.129.16",
    "64:ff9b::a83f:8110", "2002:a83f:8110::1", "::ffff:168.63.129.16", "2001:0:a83f:8110:8000:63bf:3fff:fdd2",
    "100.100.100.200", "64:ff9b::6464:64c8", "fd00:ec2::254", "fd00:ec2::23", "fd00:ec2:ffff::1", "fd20:ce::254",
    "192.88.99.1", "2001:20::1", "3fff::1", "64:ff9b:1::a00:1", "::7f00:1", "5f00::1", "localhost",
]  # fmt: skip


@pytest.mark.parametrize("address", [*PUBLIC, *PRIVATE, *LOOPBACK, *NEVER])
def test_addresses_that_may_be_asked(address: str) -> None:
    public, private, loopback = address in PUBLIC, address in PRIVATE, address in LOOPBACK
    assert is_allowed_address(address) is public
    assert is_allowed_address(address, allow_private=True) is (public or private)
    assert is_allowed_address(address, allow_loopback=True) is (public or loopback)
    assert is_allowed_address(address, allow_loopback=True, allow_private=True) is (address not in NEVER)


@pytest.fixture
def fetch() -> Fetch:
    return make_fetch(allow_loopback=True, max_bytes=1000, timeout=2.0)


@pytest.fixture
async def served() -> Any:
    async with site() as served:
        yield served


async def test_an_answer(fetch: Fetch, served: Site) -> None:
    served.pages["/a"] = {"x": 1}
    fetched = await fetch(
        FetchRequest(url=f"{served.origin}/a?q=%2F", method="POST", headers={"X-One": "1"}, body=b"hello")
    )
    assert (fetched.status, fetched.body) == (200, b'{"x": 1}')
    assert fetched.headers["content-type"] == "application/octet-stream"
    (request,) = served.requests
    assert (request.method, request.headers["X-One"], served.bodies) == ("POST", "1", [b"hello"])
    assert request.raw_path == "/a?q=%2F"
    assert request.headers["Accept-Encoding"] == "identity"
    assert (request.headers["Accept"], request.headers["User-Agent"]) == ("application/json", "dovetail")


@pytest.mark.parametrize(("options", "most"), [({"max_bytes": 1000}, 1000), ({}, 64 * 1024)], ids=["given", "default"])
async def test_an_answer_of_exactly_the_limit(served: Site, options: dict[str, Any], most: int) -> None:
    fetch = make_fetch(allow_loopback=True, **options)
    served.pages |= {"/most": bytes(most), "/more": bytes(most + 1)}
    assert len((await fetch(FetchRequest(url=f"{served.origin}/most"))).body) == most
    with pytest.raises(FetchFailed, match=f"more than {most} bytes"):
        await fetch(FetchRequest(url=f"{served.origin}/more"))


async def test_so_many_names_are_looked_up_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    def getaddrinfo(*_: Any, **__: Any) -> Any:
        let_go.wait(10)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    fetch, request = make_fetch(), FetchRequest(url="https://slow.example/")
    tasks = [asyncio.create_task(fetch(request)) for _ in range(33)]
    with pytest.raises(FetchFailed, match="too many names"):
        await tasks.pop()
    let_go.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert set(map(str, outcomes)) == {"there is no host slow.example"}


async def test_redirects_are_not_followed(fetch: Fetch, served: Site) -> None:
    served.pages["/a"] = lambda request: answered(web.Response(status=302, headers={"Location": "/secret"}))
    assert (await fetch(FetchRequest(url=f"{served.origin}/a"))).status == 302
    assert served.asked == ["/a"]


async def test_cookies_are_not_kept(fetch: Fetch, served: Site) -> None:
    served.pages["/a"] = lambda request: answered(web.Response(headers={"Set-Cookie": "a=b; Path=/"}))
    for _ in range(2):
        await fetch(FetchRequest(url=f"{served.origin}/a"))
    assert "Cookie" not in served.requests[1].headers


async def test_proxies_of_the_environment_are_not_used(
    fetch: Fetch, served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    served.pages["/a"] = b"direct"
    assert (await fetch(FetchRequest(url=f"{served.origin}/a"))).body == b"direct"


async def answered(response: web.Response) -> web.Response:
    return response


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(10_000):
        await response.write(b"x" * 100)
    return response


async def slow(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(5)
    return web.Response()


async def drop(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (b"x" * 1001, "more than 1000 bytes"),
        (endless, "more than 1000 bytes"),
        (lambda request: answered(web.Response(headers={"Content-Encoding": "gzip"}, body=b"x")), "compressed"),
        (drop, "can't be reached"),
        (slow, "did not answer within 0.3 s"),
    ],
)
async def test_answers_that_are_not_taken(fetch: Fetch, served: Site, page: Any, says: str) -> None:
    served.pages["/a"] = page
    with pytest.raises(FetchFailed, match=says) as caught:
        await fetch(FetchRequest(url=f"{served.origin}/a?token=secret", timeout=0.3 if page is slow else None))
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_what_is_no_http(fetch: Fetch) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-x\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(FetchFailed, match=r"does not speak HTTP|can't be reached"):
        await fetch(FetchRequest(url=f"http://127.0.0.1:{port}/"))
    with pytest.raises(FetchFailed, match=r"TLS|can't be reached"):
        await fetch(FetchRequest(url=f"https://127.0.0.1:{port}/"))
    server.close()
    await server.wait_closed()
    with pytest.raises(FetchFailed, match="can't be reached"):
        await fetch(FetchRequest(url=f"http://127.0.0.1:{port}/"))


@pytest.mark.parametrize(
    "url",
    [
        "", "x", "/etc/passwd", "file:///etc/passwd", "ftp://127.0.0.1/", "gopher://127.0.0.1/",
        "http://example.com/", "http://example.com@127.0.0.1/", "https://user@example.com/",
        "https://user:secret@example.com/", "https://example.com\\@127.0.0.1/", "https://example.com/\r\nX: y",
        "https://example.com/ x", "https://exämple.com/", "https:///x", "https://[::1",
        "https://example.com:99999999/", "https://example.com/".ljust(4097, "x"),
    ],
)  # fmt: skip
async def test_urls_that_are_refused_before_anything_is_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_address(*_: Any) -> Any:
        raise AssertionError("asked for an address")

    monkeypatch.setattr(module, "_resolve", no_address)
    for each in (make_fetch(), make_fetch(allow_loopback=True)):
        with pytest.raises(FetchFailed) as caught:
            await each(FetchRequest(url=url))
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "[::1]", "localhost", "10.0.0.1", "169.254.169.254", "[::ffff:127.0.0.1]", "[fd00::1]"),
        *("2130706433", "0x7f.1", "127.1", "0177.0.0.1", "0"),
    ],
)
async def test_addresses_inside_are_refused_however_they_are_written(host: str) -> None:
    with pytest.raises(FetchFailed, match=r"not an address|no host|not a URL"):
        await make_fetch()(FetchRequest(url=f"https://{host}:1/"))


def as_addresses(*addresses: str) -> list[Any]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]


async def test_http_goes_to_this_machine_only_whatever_its_name_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: as_addresses("93.184.216.34"))
    with pytest.raises(FetchFailed, match="localhost is not an address that may be asked"):
        await make_fetch(allow_loopback=True)(FetchRequest(url="http://localhost:1/"))


@pytest.mark.parametrize("addresses", [("10.0.0.1",), ("93.184.216.34", "127.0.0.1"), ("169.254.169.254",)])
async def test_a_name_with_an_inner_address_is_refused(
    addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> Any:
        return as_addresses(*addresses)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(FetchFailed, match="not an address that may be asked"):
        await make_fetch()(FetchRequest(url="https://rebinding.example/"))


async def test_the_connection_goes_to_the_address_that_was_judged(
    served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that means something else when it is asked for again (DNS rebinding) is not asked for again."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: str, *rest: Any, **more: Any) -> Any:
        if host != "localhost":
            return real(host, *rest, **more)
        asked.append(host)
        return as_addresses("127.0.0.1" if len(asked) == 1 else "10.255.255.1")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    served.pages["/a"] = b"the first"
    fetch = make_fetch(allow_loopback=True, allow_private=True, timeout=2.0)
    url = served.origin.replace("127.0.0.1", "localhost") + "/a"
    assert (await fetch(FetchRequest(url=url))).body == b"the first"
    assert asked == ["localhost"]


VERIFIERS: dict[str, Callable[[str], Any]] = {
    "issuer": lambda origin: Jwt(origin, AUDIENCE),
    "keys": lambda origin: Jwt(ISSUER, AUDIENCE, jwks_uri=f"{origin}/keys"),
    "introspection": lambda origin: Introspection(f"{origin}/x", client_id="a", client_secret="s"),
}


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize(
    ("host", "address", "is_asked"),
    [
        ("login.example.com", "93.184.216.34", True),
        ("login.internal", "10.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        ("login.example.com", "127.0.0.1", False),
        ("login.internal", "169.254.169.254", False),
    ],
)
async def test_an_issuer_that_the_operator_named_may_be_inside(
    verifier: str, host: str, address: str, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()

    def connect(_: socket.socket, where: tuple[str, int]) -> None:
        asked.add(where[0])
        raise ConnectionRefusedError

    origin = f"https://{host}"
    made = VERIFIERS[verifier](origin)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: as_addresses(address))
    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(VerifierUnavailable):
        await made.verify(token(claims(iss=origin if verifier == "issuer" else ISSUER)))
    assert asked == ({address} if is_asked else set())


async def test_a_name_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> Any:
        time.sleep(0.3)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(FetchFailed, match="did not answer within"):
        await make_fetch(timeout=0.05)(FetchRequest(url="https://slow.example/"))


@given(st.text(max_size=60).map("https://".__add__) | st.text(max_size=60))
async def test_any_text_is_refused_in_plain_words(url: str) -> None:
    async def nowhere(*_: Any) -> Any:
        raise socket.gaierror(-2, "nothing")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_resolve", nowhere)
        with pytest.raises(FetchFailed):
            await make_fetch(allow_loopback=True)(FetchRequest(url=url))


def test_urls_of_this_machine() -> None:
    for url in ("http://localhost:1/x", "http://LOCALHOST", "http://127.9.9.9", "http://[::1]:1"):
        assert is_loopback_url(url) is True, url
    for url in ("http://localhost.example.com", "http://127.0.0.1.example.com", "http://[::1", ""):
        assert is_loopback_url(url) is False, url


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://me:s3cret@a.example:1/x?key=s3cret#s3cret", "https://a.example:1/x"),
        ("https://a.example/a\u2028b\x1b ", "https://a.example/a b"),
        ("https://a.example/".ljust(201, "x"), "https://a.example/".ljust(200, "x")),
        ("https://[::1", "a URL that can't be read"),
    ],
)
def test_a_url_in_messages_is_one_short_line_without_secrets(url: str, text: str) -> None:
    assert module.shown(url) == text


def test_without_aiohttp_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(SetupError, match=r"pip install \"dovetail-mcp\[auth\]\""):
        make_fetch()
