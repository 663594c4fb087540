"""Trusted proxies: which may be named, which entries of X-Forwarded-For count, and where the caller shows."""

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import RouteRequest, Server, SetupError
from dovetail.transports.http.proxies import MAX_HOPS, TrustedProxies
from http_serving import serving
from http_wire import REVISIONS, HttpWire, open_wire

NAMED = ["10.0.0.0/8", "192.0.2.1", "fd00::/8", "unix"]
PROXIES = TrustedProxies(NAMED)


def scope(peer: str | None, *lines: str | bytes) -> dict[str, Any]:
    raw = [line if isinstance(line, bytes) else line.encode("latin-1", "replace") for line in lines]
    headers = [(b"host", b"localhost"), *((b"x-forwarded-for", line) for line in raw), (b"accept", b"*/*")]
    return {"type": "http", "client": None if peer is None else (peer, 5000), "headers": headers}


CALLERS = [
    # whose word counts
    ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
    ("::ffff:10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
    ("fd00::1%eth0", ["203.0.113.9"], "203.0.113.9"),
    (None, ["203.0.113.9"], "203.0.113.9"),
    ("192.0.2.2", ["203.0.113.9"], "192.0.2.2"),
    ("::ffff:192.0.2.2", ["203.0.113.9"], "::ffff:192.0.2.2"),
    ("testclient", ["203.0.113.9"], "testclient"),
    # from the right to the left
    ("10.0.0.1", ["1.1.1.1, 203.0.113.9"], "203.0.113.9"),
    ("10.0.0.1", ["1.1.1.1, 203.0.113.9, 10.0.0.2, 192.0.2.1"], "203.0.113.9"),
    ("10.0.0.1", ["1.1.1.1", "203.0.113.9 ,10.0.0.2", "\t10.0.0.3"], "203.0.113.9"),
    ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
    ("10.0.0.1", ["203.0.113.9, ::ffff:10.0.0.2"], "203.0.113.9"),
    # how addresses are written
    *(
        ("10.0.0.1", [text], "203.0.113.9")
        for text in ("203.0.113.9:4711", "[203.0.113.9]:1", "[::ffff:203.0.113.9]:80")
    ),
    *(("10.0.0.1", [text], "2001:db8::1") for text in ("2001:DB8:0::1", "[2001:db8::1]:443")),
    *(("10.0.0.1", [text], "fe80::1") for text in ("fe80::1%eth0", "[fe80::1%eth0]:80")),
    # what can't be read ends the walk where it is
    *((None, [], None), (None, ["1.1.1.1, _hidden"], None), ("10.0.0.1", [], "10.0.0.1")),
    ("10.0.0.1", ["1.1.1.1, unknown, 10.0.0.2"], "10.0.0.2"),
]
UNREADABLE = [
    *("", "1.1.1.1,", "1.1.1.1, unknown", "1.1.1.1, unix", "1.1.1.1, 203.0.113.9 203.0.113.8", "203.0.113.09"),
    *("3405803785", b"203.0.113.\xb2", "2001:db8::1" + " " * 100 + "2", "fe80::1%" + "z" * 100, "203.0.113.9:"),
    *("203.0.113.9:471100", "[2001:db8::1", "[2001:db8::1]x", '"203.0.113.9"'),
]


@pytest.mark.parametrize(("peer", "lines", "caller"), [*CALLERS, *(("10.0.0.1", [x], "10.0.0.1") for x in UNREADABLE)])
def test_the_caller(peer: str | None, lines: list[str | bytes], caller: str | None) -> None:
    assert PROXIES.address_of(scope(peer, *lines)) == caller


def test_only_those_who_are_named_are_believed() -> None:
    for peer in ("127.0.0.1", "10.0.0.1", "::1", None):
        assert TrustedProxies().address_of(scope(peer, "203.0.113.9")) == peer
    assert TrustedProxies(["10.0.0.0/8"]).address_of(scope(None, "203.0.113.9")) is None
    assert TrustedProxies(["unix"]).address_of(scope("127.0.0.1", "203.0.113.9")) == "127.0.0.1"


def test_the_work_is_bounded() -> None:
    hops = [f"10.0.0.{number}" for number in range(1, MAX_HOPS + 5)]
    assert PROXIES.address_of(scope("10.0.0.1", ", ".join(reversed(hops)))) == hops[MAX_HOPS - 1]
    for flood in (b"," * 1_000_000, b"1" * 1_000_000, b"10.0.0.1," * 100_000 + b"10.0.0.7", b"[" * 1_000_000):
        assert str(PROXIES.address_of(scope("10.0.0.1", flood))).startswith("10.0.0.")


ANY_TEXT = st.binary(max_size=80).map(lambda raw: raw.replace(b"\r", b"").replace(b"\n", b""))
ANY_ADDRESS = st.ip_addresses().map(str)
TEMPTING = st.lists(st.sampled_from([*NAMED, "10.0.0.1", "203.0.113.9", ",", " ", ":80", "[", "]", "%", "::ffff:"]))
ANY_LINES = st.lists(ANY_TEXT | ANY_ADDRESS.map(str.encode) | TEMPTING.map(lambda parts: "".join(parts).encode()))


def is_named(address: str) -> bool:
    parsed: Any = ipaddress.ip_address(address)
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return any(parsed in ipaddress.ip_network(each) for each in NAMED if each != "unix")


OTHERS = ANY_ADDRESS.filter(lambda address: not is_named(address))


@given(OTHERS, ANY_LINES, st.booleans(), st.lists(st.sampled_from(["10.0.0.2", "192.0.2.1", "fd00::7"]), max_size=3))
def test_no_other_peer_can_change_its_address(client: str, lines: list[bytes], joins: bool, more: list[str]) -> None:
    """Proxies write the address that they see behind what is there, on the same line or on one of its own."""
    address: Any = ipaddress.ip_address(client)
    plain = str(getattr(address, "ipv4_mapped", None) or address)
    added = ", ".join([client, *more]).encode()
    arrived = [b", ".join([*lines, added])] if joins else [*lines, added]
    assert PROXIES.address_of(scope("10.0.0.1", *arrived)) == plain
    assert PROXIES.address_of(scope(client, *lines)) == client


NO_PROXIES = ["nginx", "*", "", "10.0.0.0/33", "127.0.0.1:80", "fe80::1%eth0", "10.1.2.3/8", "::ffff:10.0.0.1"]


def test_a_wrong_entry_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = dict.fromkeys([*NO_PROXIES, "::ffff:0:0/96"], "write an address or a network")
    for entry, words in {**wrong, "0.0.0.0/0": "every caller could", "::/0": "every caller could"}.items():
        with pytest.raises(SetupError, match=words) as failure:
            Server("proxied").asgi(trusted_proxies=["127.0.0.1", entry])
        assert str(failure.value).startswith(f"trusted_proxies holds {entry!r}")
    monkeypatch.setenv("DOVETAIL_TRUSTED_PROXIES", "10.0.0.0/8,nginx")
    with pytest.raises(SetupError, match="'nginx'"):
        Server("proxied").asgi()
    with pytest.raises(SetupError, match="must be a list of strings"):
        Server("proxied").asgi(trusted_proxies="127.0.0.1")


def connected_from(app: Any, peer: str | None) -> Any:
    async def proxied(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "client": None if peer is None else (peer, 1)}, receive, send)

    return proxied


@pytest.mark.parametrize(("version", "per"), [(REVISIONS[0], "address"), (REVISIONS[-1], "principal")])
async def test_callers_behind_a_proxy_are_counted_each_and_pages_see_them(version: str, per: str) -> None:
    server = Server("limited", version="1.0.0", rate_limit=f"1/day per {per}")
    server.add_tool(lambda: "done", name="free")

    @server.custom_route("/me")
    def me(request: RouteRequest) -> str:
        return str(request.client)

    async with serving(server, trusted_proxies=["127.0.0.1", "unix"]) as app:
        wire = await open_wire(app, version)

        async def status(forwarded: str) -> int:
            return (await wire.call("free", headers={"x-forwarded-for": forwarded})).status

        assert [await status(each) for each in ("203.0.113.1", "203.0.113.2")] == [200, 200]
        assert [await status(f"{each}, 203.0.113.1") for each in ("", "203.0.113.3", "127.0.0.1")] == [429] * 3
        wire.app = connected_from(app, "203.0.113.4")
        assert [await status(each) for each in ("203.0.113.5", "203.0.113.6")] == [200, 429]
        for peer, caller in (("127.0.0.1", "203.0.113.9"), (None, "203.0.113.9"), ("192.0.2.7", "192.0.2.7")):
            headers: dict[str, str | None] = {"x-forwarded-for": "1.1.1.1, 203.0.113.9"}
            answer = await HttpWire(connected_from(app, peer)).raw("GET", headers=headers, path="/me").done()
            assert answer.raw == caller.encode()
