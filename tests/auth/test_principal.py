"""Whom claims name, and what belongs to whom."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import auth
from dovetail.auth.fetch import Fetched, FetchRequest
from dovetail.auth.jose import SigningKey, read_assertion, read_keys, read_object, read_token
from dovetail.auth.principal import (
    Confidential,
    Principal,
    ScopeHierarchy,
    has_audience,
    is_in_lifetime,
    normalized_url,
    to_principal,
)
from dovetail.authserver.clients import ClientMetadata, OAuthClient
from dovetail.errors import SetupError
from issuer_stage import encode, jwks, token
from stable_ids import stable


def test_the_same_user_and_program_have_one_key_with_every_token() -> None:
    one = Principal(subject="alice", client="editor", issuer="https://a", scopes=frozenset({"x"}), expires_at=1.0)
    two = Principal(subject="alice", client="editor", issuer="https://a", claims={"jti": "2"})
    assert one.key == two.key
    assert one.with_scopes(frozenset()).key == one.key


def test_no_other_principal_has_that_key() -> None:
    seen = {
        Principal(**given).key
        for given in (
            {"subject": "alice"},
            {"client": "alice"},
            {"issuer": "alice"},
            {"subject": "alice", "client": "editor"},
            {"subject": "alice", "issuer": "https://a"},
            {"subject": "alice", "issuer": "https://b"},
            {"subject": 'alice","editor'},
        )
    }
    assert len(seen) == 7


@pytest.mark.parametrize(
    ("given", "name"),
    [({"subject": "alice", "client": "editor"}, "alice"), ({"client": "editor"}, "editor"), ({}, "unknown")],
)
def test_the_name_of_a_caller_in_a_log(given: dict[str, str], name: str) -> None:
    assert Principal(**given).name == name
    assert len(Principal(**given).key) == 32


@pytest.mark.parametrize(
    ("granted", "found"),
    [("admin", {"admin", "write", "read"}), ("write", {"write", "read"}), ("read", {"read"}), ("loop", {"loop", "x"})],
)
def test_scopes_that_include_others(granted: str, found: set[str]) -> None:
    hierarchy = ScopeHierarchy({"admin": ["write"], "write": ["read"], "loop": ["x"], "x": ["loop"]})
    assert hierarchy.expand(frozenset({granted})) == found
    assert ScopeHierarchy().expand(frozenset({granted})) == {granted}


def test_the_package_has_what_it_lists() -> None:
    assert {name for name in auth.__all__ if getattr(auth, name).__name__ == name} == set(auth.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Jwts'"):
        auth.Jwts  # noqa: B018


def test_scopes_are_a_set_however_they_are_given() -> None:
    listed: Any = ["a", "b", "a"]
    principal = Principal(subject="carl", scopes=listed)
    assert principal.scopes == frozenset({"a", "b"})
    assert principal.may()
    assert principal.may("a", "b")
    assert not principal.may("a", "c")
    one: Any = "read"
    assert Principal(subject="carl", scopes=one).scopes == {"read"}


@pytest.mark.parametrize("scopes", ["read write", None, 5, [1], [""]], ids=stable)
def test_what_can_not_be_scopes(scopes: Any) -> None:
    with pytest.raises(SetupError, match="Principal: "):
        Principal(subject="carl", scopes=scopes)


@pytest.mark.parametrize(
    ("claims", "subject", "client"),
    [
        ({"sub": "alice", "client_id": "editor"}, "alice", "editor"),
        ({"sub": "alice", "azp": "editor"}, "alice", "editor"),
        ({"sub": "alice", "client_id": "editor", "azp": "other"}, "alice", "editor"),
        ({"sub": "alice"}, "alice", None),
        ({"sub": "robot", "client_id": "robot"}, None, "robot"),  # client credentials
        ({"sub": "robot", "azp": "robot"}, None, "robot"),
        ({"client_id": "robot"}, None, "robot"),
        ({"client_id": None, "azp": "robot"}, None, "robot"),
        ({"sub": "a" * 1024, "client_id": "b" * 1024}, "a" * 1024, "b" * 1024),
    ],
)
def test_who_is_named(claims: dict[str, Any], subject: str | None, client: str | None) -> None:
    principal = to_principal(claims, "https://a")
    assert principal is not None
    assert (principal.subject, principal.client, principal.issuer) == (subject, client, "https://a")


@pytest.mark.parametrize(
    "claims", [{}, {"sub": ""}, {"sub": 7}, {"sub": ["alice"]}, {"sub": "a" * 1025}, {"sub": "alice", "client_id": {}}]
)
def test_claims_without_a_name_give_no_principal(claims: dict[str, Any]) -> None:
    assert to_principal(claims, None) is None


@pytest.mark.parametrize(
    ("claims", "scope_claim", "scopes"),
    [
        ({"scope": "a b"}, None, {"a", "b"}),
        ({"scp": ["a", "b"]}, None, {"a", "b"}),
        ({"scp": "a b"}, None, {"a", "b"}),
        ({"scope": "a", "scp": "b"}, None, {"a"}),
        ({"scope": "a", "roles": ["r"]}, "roles", {"r"}),
        ({"scope": "a"}, "roles", set()),
        ({"scope": 7}, None, set()),
        ({}, None, set()),
    ],
)
def test_scopes_of_claims(claims: dict[str, Any], scope_claim: str | None, scopes: set[str]) -> None:
    principal = to_principal({"sub": "alice", **claims}, None, scope_claim)
    assert principal is not None
    assert principal.scopes == scopes


URL = "https://notes.example.com/mcp"
OTHERS = [
    "https://notes.example.com/MCP", "https://notes.example.com", "http://notes.example.com/mcp",
    "https://notes.example.com:8443/mcp", URL + "?x=/", "https://notes.example.com.evil.example/mcp",
    "https://x@notes.example.com/mcp", " " + URL, URL + "\n",
]  # fmt: skip


@pytest.mark.rule("AUTH-17")
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        *((URL, other, True) for other in ("HTTPS://Notes.Example.COM/mcp", URL + "/")),
        ("https://notes.example.com", "https://notes.example.com/", True),
        *((URL, other, False) for other in OTHERS),
        *(("notes", other, False) for other in ("Notes", "notes/")),
    ],
)
def test_audiences_that_mean_the_same(one: str, other: str, same: bool) -> None:
    assert (normalized_url(one) == normalized_url(other)) is same
    assert has_audience({"aud": ["somebody", other]}, frozenset({normalized_url(one)})) is same


@pytest.mark.parametrize("aud", [None, 7, [], {}, [None], [["a"]], "", {"a": 1}, True])
def test_an_audience_that_is_none(aud: Any) -> None:
    assert not has_audience({"aud": aud}, frozenset({"a"}))
    assert not has_audience({}, frozenset({"a"}))


@pytest.mark.parametrize(
    ("claims", "good"),
    [
        ({"exp": 1001}, True),
        ({"exp": 991}, True),  # within the leeway
        ({"exp": 990}, False),
        ({"exp": 1001.5, "nbf": 1010, "iat": 1010}, True),
        ({"exp": 2000, "nbf": 1011}, False),
        ({"exp": 2000, "iat": 1011}, False),
        *(({"exp": end}, False) for end in (True, "2000", None, [2000], -1)),
        ({"exp": 2000, "nbf": "0"}, False),
        ({}, False),
    ],
)
def test_time(claims: dict[str, Any], good: bool) -> None:
    assert is_in_lifetime(claims, 1000.0, 10.0, requires_exp=True) is good


def test_a_token_without_an_end_is_good_only_where_that_is_said() -> None:
    assert is_in_lifetime({}, 1000.0, 10.0, requires_exp=False)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"7", b'{"a":1,"a":2}', b'{"a":{"b":1,"b":2}}', b'{"a":1,"\\u0061":2}', b'{"a":NaN}',
        b'{"a":1e999}', b'{"a":"\\ud800"}', b'{"a":"\xff"}', b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":' + b"[" * 512 + b"]" * 512 + b"}", b'{"a":' + b"[" * 100_000,
        b"{" + b",".join(b'"%d":1' % number for number in range(257)) + b"}", b"\xef\xbb\xbf{}",
    ],
)  # fmt: skip
def test_objects_that_are_refused(data: bytes) -> None:
    assert read_object(data) is None


@pytest.mark.parametrize(
    ("size", "exponent", "good"),
    [(2048, 17, True), (8192, 17, True), (2048, 64, True), (2047, 17, False), (8193, 17, False), (2048, 65, False)],
)
def test_rsa_keys_of_exactly_the_limits(size: int, exponent: int, good: bool) -> None:
    n, e = (encode((2 ** (bits - 1) + 1).to_bytes(1025)) for bits in (size, exponent))
    assert len(read_keys({"keys": [{"kty": "RSA", "n": n, "e": e}]})) == good


@pytest.mark.parametrize(("algorithm", "good"), [("RS256", True), ("PS256", True), ("ES256", True), ("EdDSA", False)])
def test_assertions_of_clients(algorithm: str, good: bool) -> None:
    assert read_assertion(token({"sub": "ci"}, algorithm=algorithm), jwks()) == ({"sub": "ci"} if good else None)


@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:a1\\u0', max_size=60).map(str.encode))
def test_any_bytes_are_an_object_or_nothing(data: bytes) -> None:
    found = read_object(data)
    assert found is None or isinstance(found, dict)


SECRET = "a-word-that-nobody-may-see"
RECORDS: list[Any] = [
    FetchRequest(url="https://as.example/token", headers={"authorization": SECRET}, body=SECRET.encode()),
    Fetched(status=200, headers={"set-cookie": SECRET}, body=SECRET.encode()),
    OAuthClient(id="ci", secret=SECRET, jwks={"keys": [SECRET]}),
    ClientMetadata(client_id="https://app.example/id", client_secret=SECRET),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_nothing_of_it_is_shown(record: Confidential) -> None:
    for shown in (repr(record), str(record), f"{record}", str(list(record.__rich_repr__()))):
        assert SECRET not in shown
        assert "sha256" not in shown


def test_what_is_harmless_is_shown() -> None:
    assert repr(OAuthClient(id="ci")) == "OAuthClient(id='ci')"
    assert repr(read_token(SigningKey.new().sign({"sub": "ann"}, "at+jwt"))) == "SignedToken()"


def test_a_published_key_has_the_name_that_its_tokens_carry() -> None:
    key = SigningKey.new()
    signed = read_token(key.sign({}, "at+jwt"))
    assert signed is not None
    assert signed.header["kid"] == key.public["kid"] == key.id
    assert [each.kid for each in read_keys({"keys": [key.public]})] == [key.id]
