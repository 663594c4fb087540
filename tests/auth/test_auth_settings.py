"""`Auth`: which verifier is used, for how long its result is cached, and the verifiers of one app."""

import math
import time
from typing import Any

import msgspec
import pytest

from dovetail import Server
from dovetail.auth import Auth, Principal
from dovetail.auth.principal import MAX_TOKEN, Verification
from dovetail.errors import SetupError, Unauthorized
from http_serving import serving
from http_wire import HttpWire


class StubVerifier:
    """A verifier of one token, which is the name of its user."""

    def __init__(self, name: str, **attributes: Any) -> None:
        self.name = name
        vars(self).update(attributes)

    async def verify(self, token: str) -> Principal | None:
        return Principal(subject=self.name) if token == self.name else None


@pytest.mark.parametrize(
    "options",
    [
        {"dpop": "on"}, {"dpop": None}, {"dpop_nonces": True}, {"public_url": "https://user@notes.example.com/mcp"},
        {"public_url": "https://notes.example.com/mcp#x"}, {"public_url": "https:///mcp"},
        {"public_url": "notes.example.com"}, {"documentation": "https://a b/"},
        {"authorization_servers": ["https://user:pw@login.example.com"]}, {"public_url": "https://a.example/mcp?x=1"},
        {"documentation": "https://a.example/".ljust(2001, "x")}, {"scopes_supported": ["a b"]}, {"scopes": ["a b"]},
    ],
)  # fmt: skip
def test_what_is_refused_at_setup(options: dict[str, Any]) -> None:
    with pytest.raises(SetupError, match=rf"^Auth\b.*{next(iter(options)).removesuffix('s')}"):
        Auth(StubVerifier("ann"), **options)


# ── who answers ──


@pytest.mark.parametrize(
    ("token", "found"),
    [
        ("ann", ("ann", 5.0)),
        ("bob", ("bob", math.inf)),
        ("cy", ("cy", 0)),
        ("zoe", None),
        ("m" * MAX_TOKEN, ("m" * MAX_TOKEN, math.inf)),
        ("a" * (MAX_TOKEN + 1), None),
    ],
)
async def test_the_verifier_of_a_token_says_how_long_it_is_cached(token: str, found: tuple[str, float] | None) -> None:
    others = (StubVerifier("bob"), StubVerifier("cy", cache_seconds=0), StubVerifier("m" * MAX_TOKEN))
    auth = Auth([StubVerifier("ann", cache_seconds=5.0), *others])
    answer = await auth.verification(token)
    assert answer == (found and Verification(Principal(subject=found[0]), found[1]))
    assert await auth.verify(token) == (found and Principal(subject=found[0]))


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(("expires_in", "good"), [(None, True), (60.0, True), (0.0, False), (-1.0, False)])
async def test_a_function_verifies_until_its_principal_expires(
    expires_in: float | None, good: bool, is_async: bool
) -> None:
    ann = Principal(subject="ann", expires_at=None if expires_in is None else time.time() + expires_in)

    def verify(token: str) -> Principal | None:
        return ann if token == "ann" else None

    async def verify_later(token: str) -> Principal | None:
        return verify(token)

    auth = Auth(verify_later if is_async else verify)
    assert (await auth.verify("ann"), await auth.verify("bob")) == (ann if good else None, None)


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, -math.inf, "60", None, True, [1]])
def test_a_time_that_is_none_is_refused_at_once(seconds: Any) -> None:
    with pytest.raises(SetupError, match=r"StubVerifier has cache_seconds=.*; it is 0 or more"):
        Auth([StubVerifier("bob"), StubVerifier("ann", cache_seconds=seconds)])


# ── what a verifier knows of its tokens ──

URL = "https://notes.example.com/mcp"


@pytest.mark.parametrize("spelled", [None, URL, "https://NOTES.example.com/mcp", URL + "/"])
def test_the_public_url_is_what_tokens_are_made_for(spelled: str | None) -> None:
    verifiers = [StubVerifier("bob"), StubVerifier("ann", resource=URL)]
    assert Auth(verifiers, public_url=spelled).public_url == (spelled or URL)
    assert Auth(StubVerifier("ann")).public_url is None


@pytest.mark.parametrize("other", ["http://notes.example.com/mcp", "https://notes.example.com", URL + "/x"])
def test_a_public_url_that_no_token_is_made_for_is_refused(other: str) -> None:
    for make in (
        lambda: Auth(StubVerifier("ann", resource=URL), public_url=other),
        lambda: Auth([StubVerifier("ann", resource=URL), StubVerifier("bob", resource=other)]),
        lambda: Server("notes", auth=StubVerifier("ann", resource=URL)).asgi(public_url=other),
    ):
        with pytest.raises(SetupError, match="tokens are made for") as caught:
            make()
        assert other in str(caught.value)
        assert URL in str(caught.value)


@pytest.mark.parametrize("resource", [5, "notes", "https://notes.example.com/mcp#x"])
def test_what_tokens_are_made_for_is_a_url(resource: Any) -> None:
    with pytest.raises(SetupError, match="`resource` of a verifier"):
        Auth(StubVerifier("ann", resource=resource), public_url=URL)


def test_required_proofs_need_a_verifier_of_bound_tokens() -> None:
    own = StubVerifier("ann", binds_keys=False)
    with pytest.raises(SetupError, match='dpop="required" lets no caller in: StubVerifier'):
        Auth([own, own], dpop="required")
    assert Auth([own, StubVerifier("bob")], dpop="required").dpop == "required"
    assert Auth(own, dpop="optional").dpop == "optional"


# ── of one app ──


class PerAppVerifier(StubVerifier):
    """Gives each app a verifier of its own, and knows which are there."""

    def __init__(self, here: list[Any], failure: Exception | None = None) -> None:
        super().__init__("ann")
        self.here = here
        self.failure = failure

    def for_app(self, state: Any) -> "AppVerifier":
        self.here.append(state)
        return AppVerifier(self, state)


class AppVerifier(StubVerifier):
    def __init__(self, home: PerAppVerifier, state: Any) -> None:
        super().__init__("ann")
        self.home = home
        self.state = state

    async def verify(self, token: str) -> Principal | None:
        assert self.state in self.home.here
        return await super().verify(token)

    async def close(self) -> None:
        self.home.here.remove(self.state)
        if self.home.failure is not None:
            raise self.home.failure


async def _status(app: Any, token: str = "ann") -> int:
    headers = {"authorization": f"Bearer {token}"}
    return (await HttpWire(app, headers=headers).post("server/discover")).status


def notes(*verifiers: Any) -> Server:
    return Server("notes", auth=Auth(list(verifiers)))


async def test_each_app_has_a_verifier_of_its_own_until_it_ends() -> None:
    here: list[Any] = []
    server = notes(PerAppVerifier(here))
    first, second = server.asgi(), server.asgi()
    await first.start()
    await second.start()
    assert len(here) == 2
    await first.drain(1)
    assert len(here) == 1
    assert await _status(second) == 200
    await first.start()
    assert await _status(first) == 200
    for app in (first, second):
        await app.drain(1)
    assert not here


async def test_an_app_that_cannot_start_closes_its_verifiers() -> None:
    class Broken(StubVerifier):
        def for_app(self, state: Any) -> Any:
            raise ValueError("no room")

    here: list[Any] = []
    app = notes(PerAppVerifier(here), Broken("bob")).asgi()
    for _ in range(2):
        with pytest.raises(ValueError, match="no room"):
            await app.start()
        assert not here
    await app.drain(1)


async def test_a_verifier_that_fails_to_close_does_not_keep_others_open(caplog: pytest.LogCaptureFixture) -> None:
    here: list[Any] = []
    app = notes(PerAppVerifier(here, RuntimeError("stuck")), PerAppVerifier(here)).asgi()
    await app.start()
    assert len(here) == 2
    await app.drain(1)
    assert not here
    assert "a verifier failed when its app ended" in caplog.text


async def test_a_verifier_may_have_one_of_the_two() -> None:
    class OnlyBegins(StubVerifier):
        def for_app(self, state: Any) -> Any:
            return StubVerifier(self.name)

    class OnlyEnds(StubVerifier):
        async def close(self) -> None:
            raise AssertionError("no request has come")

    class Plain(StubVerifier):
        left = 0

        def for_app(self, state: Any) -> Any:
            return self

        def close(self) -> None:
            self.left += 1

    plain = Plain("cy")
    async with serving(notes(OnlyBegins("ann"), OnlyEnds("bob"), plain)) as app:
        assert [await _status(app, token) for token in ("ann", "bob", "cy", "zoe")] == [200, 200, 200, 401]
    assert plain.left == 1


# ── challenges and metadata ──


def test_the_challenges_of_a_refusal_and_the_metadata() -> None:
    auth = Auth(StubVerifier("ann"), authorization_servers=["https://login.example.com"], dpop="optional")
    refusal = Unauthorized('no "token"', error="invalid_token", scopes=frozenset({"read"}))
    bearer, dpop = (value.decode() for _, value in auth.challenges(refusal, "https://a.example/metadata"))
    said = r'error="invalid_token", error_description="no \"token\"", scope="read", '
    assert bearer == f'Bearer {said}resource_metadata="https://a.example/metadata"'
    assert dpop.startswith(f"DPoP {said}")
    assert not auth.challenges(Unauthorized("not yours", http_status=403), None)
    document = msgspec.json.decode(auth.metadata("https://a.example/mcp", name="notes", scopes=["read"]))
    assert document.pop("dpop_signing_alg_values_supported")
    assert document == {
        "resource": "https://a.example/mcp",
        "authorization_servers": ["https://login.example.com"],
        "bearer_methods_supported": ["header"],
        "resource_name": "notes",
    }


@pytest.mark.parametrize(
    ("dpop", "status", "error", "said"),
    [
        ("off", 401, None, ["Bearer"]),
        ("off", 403, None, []),
        ("off", 403, "insufficient_scope", ['Bearer error="insufficient_scope"']),
        ("required", 401, None, ['DPoP algs="ES256 ES384 Ed25519 EdDSA PS256 RS256"']),
        ("optional", 401, "invalid_dpop_proof", ["Bearer", 'DPoP error="invalid_dpop_proof"']),
        ("optional", 401, "use_dpop_nonce", ["Bearer", 'DPoP error="use_dpop_nonce"']),
    ],
)
def test_the_challenges_of_each_policy(dpop: Any, status: int, error: str | None, said: list[str]) -> None:
    auth = Auth(StubVerifier("ann"), dpop=dpop)  # no authorization server: metadata would lead nowhere
    found = auth.challenges(Unauthorized("no", http_status=status, error=error), "https://a.example/metadata")
    assert [value.decode().partition(', error_description="no"')[0] for _, value in found] == said


@pytest.mark.parametrize(
    ("options", "listed"),
    [
        ({}, None),
        ({"scopes": ["a"]}, ["a", "b"]),
        ({"scopes_supported": ["d", "c"]}, ["c", "d"]),
        ({"scopes": ["a"], "scopes_supported": ["c"]}, ["c"]),
    ],
)
@pytest.mark.parametrize("dpop", ["off", "required"])
def test_the_scopes_and_the_dpop_of_the_metadata(options: dict[str, Any], listed: list[str] | None, dpop: Any) -> None:
    auth = Auth(StubVerifier("ann"), dpop=dpop, documentation="https://a.example/docs", **options)
    document = msgspec.json.decode(auth.metadata(URL, name="notes", scopes=["b", "offline_access"]))
    assert document.get("scopes_supported") == listed
    assert document["resource_documentation"] == "https://a.example/docs"
    assert document.get("dpop_bound_access_tokens_required", False) is (dpop == "required")
    assert ("dpop_signing_alg_values_supported" in document) is (dpop == "required")
    for name in ("scopes", "scopes_supported"):
        with pytest.raises(SetupError, match="offline_access is not this server's"):
            Auth(StubVerifier("ann"), **{name: ["offline_access"]})


async def test_a_verifier_of_an_app_says_itself_how_long_it_is_cached() -> None:
    class Replacing(StubVerifier):
        def for_app(self, state: Any) -> StubVerifier:
            return StubVerifier("ann", cache_seconds=7.0)

    auth = await Auth(Replacing("ann", cache_seconds=1.0)).for_app(None)
    assert await auth.verification("ann") == Verification(Principal(subject="ann"), 7.0)
