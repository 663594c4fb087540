"""Who may send a client into a private network: only the user, and servers that are in such a network themselves."""

from typing import Any

import aiohttp.connector
import pytest

from dovetail.client.address import ServerAddress
from dovetail.client.oauth import OAuth
from dovetail.client.oauth.discovery import discover
from dovetail.client.oauth.web import OAuthWeb
from dovetail.client.oauth.www_authenticate import Told
from dovetail.client.requests import HttpRequests
from dovetail.errors import ConnectionLost, NotSignedIn

pytestmark = pytest.mark.usefixtures("tidy")
PUBLIC, PRIVATE = "93.184.216.34", "10.0.0.5"
SERVER = f"https://{PUBLIC}/mcp"
ADMIN = f"https://{PRIVATE}:8443/admin"


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that somebody wanted to connect to; nobody ever gets there."""
    tried: list[str] = []

    async def start(addr_infos: Any, socket_factory: Any = None, **options: Any) -> Any:
        if socket_factory is not None:
            socket_factory(addr_infos[0]).close()
        tried.append(addr_infos[0][4][0])
        raise OSError(111, "refused")

    monkeypatch.setattr(aiohttp.connector.aiohappyeyeballs, "start_connection", start)
    return tried


@pytest.mark.parametrize("pinned", [None, "https://192.168.1.1"])
async def test_a_server_in_the_internet_sends_nobody_inside(tried: list[str], pinned: str | None) -> None:
    """Not even if the user names an issuer that is inside: that is one place, and no other."""
    mine: Any = OAuth(issuer=pinned).for_server(SERVER)
    with pytest.raises(NotSignedIn):
        await mine._discover(Told(resource_metadata=ADMIN), inside=False)
    assert set(tried) == {PUBLIC}  # the usual places, after the one that it names


@pytest.mark.parametrize("inside", [True, False])
async def test_a_server_inside_may_name_others_there(tried: list[str], inside: bool) -> None:
    mine: Any = OAuth().for_server("https://10.0.0.1/mcp")
    with pytest.raises(NotSignedIn):
        await mine._discover(Told(resource_metadata=ADMIN), inside=inside)
    assert (PRIVATE in tried) is inside


async def test_an_issuer_that_the_user_names_may_be_inside(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Described(OAuthWeb):
        async def document(self, url: str, kind: Any) -> Any:
            if "protected-resource" in url:
                return kind(resource=SERVER, authorization_servers=(f"https://{PRIVATE}",))
            return await super().document(url, kind)

    named = {"only": f"https://{PRIVATE}", "issuer_web": Described(SERVER, inside=True)}
    for web, expected in ((named, [PRIVATE]), ({}, [])):
        tried.clear()
        with pytest.raises(NotSignedIn):
            await discover(Described(SERVER), SERVER, None, **web)  # type: ignore[arg-type]
        assert tried == expected


@pytest.mark.parametrize(
    ("addresses", "inside"),
    [([PRIVATE], True), ([PUBLIC], False), ([PRIVATE, PUBLIC, PRIVATE], False), (["169.254.169.254"], False)],
)
async def test_where_a_server_is_shows_the_connection(tried: list[str], addresses: list[str], inside: bool) -> None:
    """The server's own name may lead elsewhere at the next lookup."""
    requests = HttpRequests(ServerAddress.of(SERVER), {})
    await requests.open()
    try:
        for address in addresses:
            requests.address = ServerAddress.of(f"https://{address}/mcp")
            with pytest.raises(ConnectionLost):
                async with requests.send("POST", {}, b"{}"):
                    pass
        assert tried == addresses
        assert requests._is_inside is inside
    finally:
        await requests.close()
