"""DPoP: whether the URL that a proof is for is the one that was asked for, however each is spelled."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proof_making import URL

from dovetail.auth.dpop import same_target


@pytest.mark.parametrize(
    ("htu", "url"),
    [
        ("HTTPS://Notes.Example.COM/mcp", URL),
        ("https://notes.example.com:443/mcp", URL),
        ("https://notes.example.com:/mcp", URL),
        ("http://localhost:80/mcp", "http://localhost/mcp"),
        (URL + "?x=1", URL),
        (URL, URL + "?session=2#there"),
        ("https://a.example", "https://a.example/"),
        ("https://a.example?x", "https://a.example"),
        ("https://a.example/%7euser/%c3%a4", "https://a.example/~user/%C3%A4"),
        ("http://[::1]:8000/mcp", "http://[::1]:8000/mcp"),
    ],
)
def test_the_same_target_in_two_spellings(htu: str, url: str) -> None:
    assert same_target(htu, url)
    assert same_target(url, htu)


@pytest.mark.parametrize(
    "htu",
    [
        "",
        "mcp",
        "//notes.example.com/mcp",
        "https:notes.example.com/mcp",
        "https:///mcp",
        "https://notes.example.com/MCP",
        "https://notes.example.com/mcp/",
        "https://notes.example.com//mcp",
        "https://notes.example.com/mcp;v=1",
        "https://notes.example.com:8443/mcp",
        "https://notes.example.com:443x/mcp",
        "https://notes.example.com:99999/mcp",
        "https://notes.example.com.evil.example/mcp",
        "https://evil@notes.example.com/mcp",
        "https://notes.example.com@evil.example/mcp",
        "https://evil.example\\@notes.example.com/mcp",
        "https://evil.example/https://notes.example.com/mcp",
        "https://[::1/mcp",
        "ftp://notes.example.com/mcp",
        "javascript:alert(1)",
        "https://notes.example.com/m\tcp",
        "https://notes.exam\nple.com/mcp",
        " https://notes.example.com/mcp",
        "https://nötes.example.com/mcp",
        "https://notes.example.com/m%63p%2F",
    ],
)
def test_another_target(htu: str) -> None:
    assert not same_target(htu, URL)
    assert not same_target(URL, htu)


def test_an_escaped_slash_is_no_slash() -> None:
    assert not same_target("https://a.example/x%2Fy", "https://a.example/x/y")


hosts = st.from_regex(r"[a-z][a-z0-9-]{0,10}(\.[a-z]{2,5})?", fullmatch=True)
ports = st.integers(1, 65535)
segments = st.lists(st.text(max_size=6).map(lambda each: quote(each, safe="")), max_size=4)


@given(st.sampled_from(["http", "https"]), hosts, st.none() | ports, segments, st.text(max_size=8), st.data())
def test_any_url_is_the_same_in_all_its_spellings(
    scheme: str, host: str, port: int | None, path: list[str], query: str, data: st.DataObject
) -> None:
    place = f"{host}:{port}" if port is not None else host
    url = f"{scheme}://{place}/{'/'.join(path)}"
    other = f"{scheme.upper()}://{place.upper()}/{'/'.join(path)}?{quote(query)}#{quote(query)}"
    assert same_target(other, url)
    another = data.draw(ports)
    effective = {"http": 80, "https": 443}[scheme] if port is None else port
    assert same_target(f"{scheme}://{host}:{another}/{'/'.join(path)}", url) is (another == effective)
    assert not same_target(f"{scheme}://x{place}/{'/'.join(path)}", url)
    assert not same_target(url + "x", url)


@given(st.text(), st.text())
def test_any_two_texts_can_be_compared(htu: str, url: str) -> None:
    assert same_target(htu, url) is same_target(url, htu)
    assert not same_target(htu, URL) or htu.lower().startswith("https:")
