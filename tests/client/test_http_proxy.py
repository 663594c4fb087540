"""Proxies and certificates of the environment: which requests go through a proxy, what it hears, and errors."""

import asyncio
import base64
import datetime
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from scripted import Scripted, brisk_client, free_port, modern

from dovetail.client.auth import AuthChallenge, OutgoingRequest
from dovetail.client.oauth.metadata import OAuthHttp, ResourceMetadata
from dovetail.client.transports.environment import find_proxy
from dovetail.errors import ConnectionLost, NotSignedIn, ServerError, SetupError

pytestmark = pytest.mark.usefixtures("tidy")

HOST = "server.example"  # no DNS knows it: only a proxy leads there
HTTP, HTTPS = (("http", HOST, 80), ("https", HOST, 443))
PASSWORD = "p@ss/w#rd"
USER = f"ada:{PASSWORD.replace('@', '%40').replace('/', '%2F').replace('#', '%23')}@"
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD")


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, *map(str.lower, VARIABLES), "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


class PassingServer:
    """Passes all bytes of a connection on to a local port, if `admit` names it. `async with PassingServer(…)`."""

    def __init__(self, port: int = 0, context: ssl.SSLContext | None = None) -> None:
        self._target, self._context = port, context
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "PassingServer":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._context)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *details: object) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, bytes] | None:
        """The local port, and the bytes to begin with; None if the connection is refused."""
        return self._target, b""

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if (admitted := await self.admit(reader, writer)) is not None:
                there, back = await asyncio.open_connection("127.0.0.1", admitted[0])
                back.write(admitted[1])
                try:
                    await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
                finally:
                    back.transport.abort()
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._connections.discard(task)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


class TestProxy(PassingServer):
    """An HTTP proxy: tunnels by CONNECT, and plain requests. It knows the ports of names, and who may use it."""

    __test__ = False

    def __init__(self, ports: Mapping[str, int], login: str | None = None) -> None:
        super().__init__()
        self._ports, self._login = ports, login
        self.heads: list[str] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def asked(self) -> list[str]:
        """Verb and target of the first request of each connection."""
        return [head.rpartition(" HTTP/1.1")[0] for head in (each.partition("\r\n")[0] for each in self.heads)]

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, bytes] | None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        verb, target, _ = head.split(" ", 2)
        name = target if verb == "CONNECT" else target.partition("://")[2].partition("/")[0]
        wanted = None if self._login is None else base64.b64encode(self._login.encode()).decode()
        if wanted is not None and f"Proxy-Authorization: Basic {wanted}\r\n" not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        elif name not in self._ports:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        else:
            if verb == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            return self._ports[name], b"" if verb == "CONNECT" else head.encode()
        return None


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A certificate authority, and the context of a server for HOST."""
    folder, pem = tmp_path_factory.mktemp("tls"), serialization.Encoding.PEM
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST), x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    authority, secret = folder / "ca.pem", folder / "server.key"
    authority.write_bytes(certificate.public_bytes(pem))
    secret.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, secret)
    return authority, context


# ── which proxy ──


@pytest.mark.parametrize(
    ("variables", "origin", "source"),
    [
        ({"HTTP_PROXY": "http://p:1"}, HTTP, "HTTP_PROXY"),
        ({"http_proxy": "http://p:1", "HTTP_PROXY": "http://q:1"}, HTTP, "http_proxy"),
        ({"HTTPS_PROXY": "p:1"}, HTTPS, "HTTPS_PROXY"),
        ({"all_proxy": "p:1"}, HTTPS, "all_proxy"),
        ({"ALL_PROXY": "socks5://q:1", "https_proxy": "p:1"}, HTTPS, "https_proxy"),
        ({"HTTP_PROXY": "http://p:1"}, HTTPS, None),
        ({"HTTPS_PROXY": ""}, HTTPS, None),
        ({"HTTP_PROXY": "http://p:1", "REQUEST_METHOD": "GET"}, HTTP, None),  # a header of a CGI program
        *(
            ({"ALL_PROXY": "p:1", "NO_PROXY": no}, HTTPS, None)
            for no in ("*", "a, server.example", ".example", "example")
        ),
        ({"ALL_PROXY": "p:1", "no_proxy": "server.example:443"}, HTTPS, None),
        ({"ALL_PROXY": "p:1", "NO_PROXY": "server.example:444,rver.example"}, HTTPS, "ALL_PROXY"),
        ({"ALL_PROXY": "p:1", "NO_PROXY": "2001:db8::1"}, ("https", "2001:db8::1", 443), None),
        *(
            ({"ALL_PROXY": "p:1"}, ("http", host, 80), None)
            for host in ("localhost", "127.1.2.3", "::1", "a.localhost")
        ),
    ],
)
def test_which_proxy(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], origin: tuple[str, str, int], source: str | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = find_proxy(origin)
    assert (None if found is None else (found.url, found.source)) == (
        None if source is None else ("http://p:1", source)
    )


@pytest.mark.parametrize(
    "proxy",
    ["socks5://ada:secret@p:1", "http://ada:12#secret@p:1", "ada:12/secret@p", "http://", "http://p:secret", "p q"],
)
async def test_what_is_no_proxy_is_not_shown(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(
        SetupError, match=r"^Client: HTTPS_PROXY names no HTTP proxy; write http://.* NO_PROXY$"
    ) as caught:
        async with brisk_client(f"https://{HOST}/mcp"):
            pass
    assert "secret" not in str(caught.value)


# ── through a proxy ──


async def test_plain_http_goes_through_the_proxy_with_its_user(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with Scripted(modern()) as server:
        port = int(server.origin.rpartition(":")[2])
        async with TestProxy({HOST: port}, login=f"ada:{PASSWORD}") as proxy:
            monkeypatch.setenv("HTTP_PROXY", f"http://{USER}{proxy.address}")
            async with brisk_client(f"http://{HOST}/mcp", headers={"X-Tenant": "acme"}) as client:
                await client.list_tools()
                await client.list_tools(fresh=True)
    assert set(proxy.asked) == {f"POST http://{HOST}/mcp"}
    assert {request.headers["host"] for request in server.requests} == {HOST}
    assert len(server.requests) >= 2
    assert PASSWORD not in caplog.text


async def test_a_tunnel_leads_to_the_server_and_shows_the_proxy_nothing(
    monkeypatch: pytest.MonkeyPatch, tls: tuple[Path, ssl.SSLContext]
) -> None:
    authority, context = tls
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    async with (
        Scripted(modern()) as server,
        PassingServer(int(server.origin.rpartition(":")[2]), context) as secure,
        TestProxy({f"{HOST}:443": secure.port}, login=f"ada:{PASSWORD}") as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", f"http://{USER}{proxy.address}")
        async with brisk_client(f"https://{HOST}/mcp", auth="token-of-ada") as client:
            await client.list_tools()
    assert set(proxy.asked) == {f"CONNECT {HOST}:443"}
    assert "token-of-ada" not in "".join(proxy.heads)
    for request in server.requests:
        assert request.headers["authorization"] == "Bearer token-of-ada"
        assert "proxy-authorization" not in request.headers


async def test_a_certificate_counts_only_if_its_authority_is_named(
    monkeypatch: pytest.MonkeyPatch, tls: tuple[Path, ssl.SSLContext], tmp_path: Path
) -> None:
    authority, context = tls
    async with Scripted(modern()) as server, PassingServer(int(server.origin.rpartition(":")[2]), context) as secure:
        url = f"https://localhost:{secure.port}/mcp"
        with pytest.raises(ConnectionLost, match="its certificate is not valid here"):
            async with brisk_client(url):
                pass
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        async with brisk_client(url) as client:
            await client.list_tools()
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
        with pytest.raises(SetupError, match=r"^Client: SSL_CERT_FILE='.*missing.pem' holds no certificates"):
            async with brisk_client(url):
                pass
        async with brisk_client(server.url) as client:  # plain HTTP needs none
            await client.list_tools()


class Watching:
    """Credentials that hear of challenges, and have no token."""

    def __init__(self) -> None:
        self.challenges: list[AuthChallenge] = []

    async def headers(self, request: OutgoingRequest) -> Mapping[str, str]:
        return {}

    async def refused(self, request: OutgoingRequest, challenge: AuthChallenge) -> bool:
        self.challenges.append(challenge)
        return False


async def test_a_server_behind_a_proxy_does_not_count_as_one_of_the_private_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it could send a sign-in to addresses of the private network that the proxy is in."""
    watching = Watching()
    async with (
        Scripted(lambda request: request.answer(401)) as server,
        TestProxy({HOST: int(server.origin.rpartition(":")[2])}) as proxy,
    ):
        monkeypatch.setenv("HTTP_PROXY", proxy.address)
        with pytest.raises(NotSignedIn):
            async with brisk_client(f"http://{HOST}/mcp", auth=watching):
                pass
    assert [challenge.in_private_network for challenge in watching.challenges[:1]] == [False]


async def test_a_sign_in_goes_through_the_proxy_which_is_given_no_private_address(
    monkeypatch: pytest.MonkeyPatch, tls: tuple[Path, ssl.SSLContext]
) -> None:
    authority, context = tls
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    metadata = {"resource": f"https://{HOST}/mcp"}
    async with (
        Scripted(lambda request: request.answer(200, metadata)) as server,
        PassingServer(int(server.origin.rpartition(":")[2]), context) as secure,
        TestProxy({f"{HOST}:443": secure.port}) as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", f"http://{USER}{proxy.address}")
        oauth = OAuthHttp(f"https://{HOST}/mcp")
        found = await oauth.document(f"https://{HOST}/.well-known/oauth-protected-resource/mcp", ResourceMetadata)
        assert found == ResourceMetadata(metadata["resource"])
        for host in ("10.0.0.1", "169.254.169.254", "[fd00::1]", "0x7f.1", "2130706433"):
            with pytest.raises(NotSignedIn, match=r"may be asked|no host"):
                await oauth.document(f"https://{host}/metadata", ResourceMetadata)
        with pytest.raises(NotSignedIn, match=r"^https://other.example/x: the proxy of the environment answers 502$"):
            await oauth.document("https://other.example/x", ResourceMetadata)
    assert proxy.asked == [f"CONNECT {HOST}:443", "CONNECT other.example:443"]
    monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{free_port()}")
    with pytest.raises(NotSignedIn, match="because the proxy of the environment can't"):
        await oauth.document(f"https://{HOST}/x", ResourceMetadata)


# ── not through a proxy ──


async def test_no_proxy_and_this_machine_are_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Scripted(modern()) as server, TestProxy({}) as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.address)
        async with brisk_client(server.url) as client:
            await client.list_tools()
        monkeypatch.setenv("NO_PROXY", "nowhere.invalid")
        with pytest.raises(ConnectionLost, match=r"http://nowhere.invalid/mcp: there is no such host$"):
            async with brisk_client("http://nowhere.invalid/mcp"):
                pass
    assert proxy.asked == []


# ── errors ──


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_errors_name_the_variable_and_no_password(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    caplog.set_level(logging.DEBUG)
    variable, url = f"{scheme.upper()}_PROXY", f"{scheme}://{HOST}/mcp"
    said = []

    async def fail(proxy: str, kind: type[Exception]) -> str:
        monkeypatch.setenv(variable, proxy)
        with pytest.raises(kind) as caught:
            async with brisk_client(url):
                pass
        said.append(repr(caught.value))
        return str(caught.value)

    port = free_port()
    unreachable = await fail(f"http://{USER}127.0.0.1:{port}", ConnectionLost)
    assert f"{url}, through the proxy 127.0.0.1:{port} of {variable}: can't connect to the proxy: " in unreachable
    unknown = await fail(f"http://{USER}proxy.invalid:3128", ConnectionLost)
    assert f"through the proxy proxy.invalid:3128 of {variable}: there is no such proxy" in unknown
    async with TestProxy({}, login="ada:another") as proxy:
        refused = await fail(f"http://{USER}{proxy.address}", ConnectionLost if scheme == "https" else ServerError)
        assert "407" in refused
        assert f"{proxy.address} of {variable}" in refused
        assert "wants another user and password" in refused
    async with TestProxy({}) as proxy:
        lost = await fail(f"http://{USER}{proxy.address}", ConnectionLost)
        assert "502" in lost
    assert not [text for text in (*said, caplog.text) if PASSWORD in text or USER in text]


def test_the_password_is_not_in_the_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://{USER}p:1")
    found = find_proxy(HTTPS)
    assert found is not None
    assert repr(found) == "HttpProxy(the proxy p:1 of HTTPS_PROXY)"
    login = base64.b64encode(f"ada:{PASSWORD}".encode()).decode()
    assert found.headers == {"Proxy-Authorization": f"Basic {login}"}
