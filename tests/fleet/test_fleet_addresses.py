"""Rates per address behind a real nginx: its clients count each for themselves, whatever they say of themselves.

All of 127.0.0.0/8 is this machine, so each client has an address of its own. nginx has 127.0.0.1.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import fleet_processes
import pytest
from fleet_ledger import Loud
from fleet_processes import Fleet, fleet
from fleet_raw import PATIENCE, modern

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "darwin", reason="there 127.0.0.1 is the only address of its network"),
]
PROGRAM = Path(__file__).parent / "fleet_address_server.py"
DONE, TOO_SOON = "done", "429"


SETS, ADDS = "$remote_addr;", "$proxy_add_x_forwarded_for;"


@pytest.fixture(scope="module", params=[SETS, ADDS], ids=["sets", "adds"])
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Their nginx sets the header, as documented, or adds to it. They count together, in a file."""
    folder = tmp_path_factory.mktemp("addresses")
    shown = fleet_processes.NGINX_CONF.read_text()
    assert f"X-Forwarded-For {SETS}" in shown
    (folder / "variant.conf").write_text(shown.replace(f"X-Forwarded-For {SETS}", f"X-Forwarded-For {request.param}"))
    trusted = {"DOVETAIL_TRUSTED_PROXIES": "127.0.0.1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_processes, "NGINX_CONF", folder / "variant.conf")
        with fleet(folder, workers=2, store="sqlite", program=PROGRAM, **trusted) as two:
            yield two
            two.assert_clean()


async def call(url: str, address: str, forwarded: str | None = None) -> str:
    connector = aiohttp.TCPConnector(local_addr=(address, 0), force_close=True)
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as http:
        try:
            return str(await modern(http, url, "work"))
        except Loud as refusal:
            return str(refusal).partition(":")[0]


async def test_clients_of_nginx_count_each(two: Fleet) -> None:
    for address in ("127.0.0.5", "127.0.0.6"):
        assert [await call(two.url, address) for _ in range(3)] == [DONE, DONE, TOO_SOON]


async def test_what_a_client_says_of_itself_changes_nothing(two: Fleet) -> None:
    said = [None, "203.0.113.1", "203.0.113.2", "127.0.0.1", "203.0.113.3, 127.0.0.1", ", ,"]
    assert [await call(two.url, "127.0.0.7", each) for each in said] == [DONE] * 2 + [TOO_SOON] * 4


async def test_past_nginx_nobody_is_believed(two: Fleet) -> None:
    said = ["203.0.113.4", "203.0.113.5", "203.0.113.6"]
    assert [await call(two.urls[0], "127.0.0.8", each) for each in said] == [DONE, DONE, TOO_SOON]
    assert await call(two.url, "127.0.0.8") == TOO_SOON  # it is the same by way of nginx
