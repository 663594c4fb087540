"""What identity providers say and do, as their documentation has it: users in their words, endpoints, quirks."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from issuer_stage import encode

CLIENT_ID, CLIENT_SECRET = "Iv1.client-of-ours", "upstream-secret-of-some-length/+="
TENANT, OTHER_TENANT = "72f988bf-86f1-41af-91ab-2d7cd011db47", "5d471751-9675-428d-917b-70f44f9630b0"
CONSUMERS = "9188040d-6c67-4c5b-b112-36a304b66dad"  # the tenant of all personal accounts of Microsoft
OPENID = "openid email profile"
ELSEWHERE = "localhost"  # the name of this machine as another host than 127.0.0.1


class User(NamedTuple):
    number: int
    name: str
    email: str | None = None
    is_verified: bool = True
    organizations: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    domain: str | None = None
    tenant: str = TENANT


USERS = {
    "ann": User(583231, "Ann Arbor", "ann@example.com", True, ("acme", "tools"), ("staff", "admins"), "example.com"),
    "bob": User(583232, "Bob", "bob@elsewhere.example"),
    "twin": User(583233, "Ann Other", "ann@example.com", tenant=OTHER_TENANT),
    "nomail": User(583234, "No Mail"),
    "unverified": User(583235, "Un Verified", "ann@example.com", is_verified=False),
    "crowd": User(583236, "In Many Groups", "crowd@example.com", groups=tuple(f"group-{n}" for n in range(250))),
    "home": User(583237, "At Home", "home@outlook.example", tenant=CONSUMERS),
}


# ── who somebody is, in the words of each provider ──


def _guid(user: User) -> str:
    return f"00000000-0000-4000-8000-{user.number:012d}"


def _mail(user: User) -> dict[str, Any]:
    return {} if user.email is None else {"email": user.email, "email_verified": user.is_verified}


def _plain(user: User) -> dict[str, Any]:
    return {"sub": f"u-{user.number}", "name": user.name, "preferred_username": user.name.lower(), **_mail(user)}


def _github(user: User) -> dict[str, Any]:
    # `id` is a number; `email` is what a user shows to all, mostly null; a login can be changed, and taken by others.
    login = user.name.lower().replace(" ", "-")
    return {"id": user.number, "login": login, "name": user.name, "email": None, "type": "User"}


def _github_mails(user: User) -> Any:
    # Any number of addresses; one is primary, which may be unverified.
    more = {"email": "old@example.com", "primary": False, "verified": True, "visibility": None}
    mail = {"email": user.email, "primary": True, "verified": user.is_verified, "visibility": "private"}
    return [] if user.email is None else [more, mail] if user.is_verified else [mail]


def _discord(user: User) -> dict[str, Any]:
    # Snowflakes are texts. `global_name` may be null; `email` is there with its scope only, and `verified` is its.
    shown = user.name if user.is_verified else None
    login = user.name.lower().replace(" ", ".")
    return {
        "id": str(80351110224678912 + user.number), "username": login, "global_name": shown, "discriminator": "0",
        "email": user.email, "verified": user.is_verified,
    }  # fmt: skip


def _google(user: User) -> dict[str, Any]:
    # `hd` is there for accounts of Workspace only; an address of a domain alone is no proof.
    hd = {} if user.domain is None else {"hd": user.domain}
    return {"sub": f"1069{user.number:017d}", "name": user.name, "given_name": user.name, **_mail(user), **hd}


def _entra(user: User) -> dict[str, Any]:
    # `sub` is another for each app, `oid` is the same for all of a tenant; `email` is never verified; from 200 groups
    # on there is but a link to them.
    pairwise = encode(hashlib.sha256(f"{CLIENT_ID}{user.number}".encode()).digest())
    groups: dict[str, Any] = {"groups": list(user.groups)} if user.groups else {}
    if len(user.groups) > 200:
        link = {"endpoint": f"https://graph.windows.net/{user.tenant}/users/{_guid(user)}/getMemberObjects"}
        groups = {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": link}}
    mail = {} if user.email is None else {"email": user.email}
    login = user.email or f"{user.number}@example.onmicrosoft.com"
    return {
        "sub": pairwise, "oid": _guid(user), "tid": user.tenant, "name": user.name, "preferred_username": login,
        "ver": "2.0", **mail, **groups,
    }  # fmt: skip


def _auth0(user: User) -> dict[str, Any]:
    # The subject names the connection; claims of an Action have a URL as their name.
    organization = {"org_id": user.organizations[0]} if user.organizations else {}
    more = {"nickname": user.name.lower(), "https://example.com/roles": list(user.groups), **organization}
    return {"sub": f"auth0|{user.number}", "name": user.name, **_mail(user), **more}


def _okta(user: User) -> dict[str, Any]:
    mail = _mail(user)
    login = user.email or f"{user.number}@example.com"
    return {"sub": f"00u{user.number}", "name": user.name, "preferred_username": login, **mail,
            "groups": ["Everyone", *user.groups]}  # fmt: skip


def _keycloak(user: User) -> dict[str, Any]:
    # Groups are paths, by a mapper; `email_verified` is false for users that an administrator made.
    return {"sub": _guid(user), "name": user.name, "preferred_username": user.name.lower(), "typ": "ID",
            **_mail(user), "groups": [f"/{each}" for each in user.groups]}  # fmt: skip


def _cognito(user: User) -> dict[str, Any]:
    groups = {"cognito:groups": list(user.groups)} if user.groups else {}
    return {"sub": _guid(user), "name": user.name, "cognito:username": f"{user.number}", "token_use": "id",
            **_mail(user), **groups}  # fmt: skip


def _workos(user: User) -> dict[str, Any]:
    # The organization is a claim of access tokens, and of no others.
    return {"sub": f"user_{user.number}", "name": user.name, "given_name": user.name, **_mail(user)}


# ── the table of kinds ──


class Kind(NamedTuple):
    claims: Callable[[User], dict[str, Any]]
    authorize: str
    token: str
    userinfo: str
    jwks: str = ""
    issuer: str = ""  # its path
    scopes: str = f"{OPENID} offline_access groups"  # others are refused; none: they mean nothing
    has_id_tokens: bool = True
    expires_in: int | None = 3600
    offline: str = "scope"  # a refresh token: by the `scope` offline_access, `always`, `never`, by `parameters`
    # A refresh answers with: `rotated` (the old one is refused), `family` (and its use revokes the others), `another`
    # (the old one stays good), the `same` one, or `none`.
    refresh: str = "rotated"
    status: int = 400  # of a refused code or refresh token
    bad_code: tuple[str, str] = ("invalid_grant", "The code is not valid")
    bad_refresh: tuple[str, str] = ("invalid_grant", "The refresh token is not valid")
    bad_client: tuple[int, str] = (401, "invalid_client")
    client_auth: tuple[str, ...] = ("client_secret_basic", "client_secret_post")
    elsewhere: frozenset[str] = frozenset()  # endpoints on another host than the issuer
    userinfo_claims: Callable[[dict[str, Any]], dict[str, Any]] = dict
    in_userinfo_only: frozenset[str] = frozenset()
    callback: Mapping[str, str] = {}  # more that is sent to the redirect URI
    more_pages: Mapping[str, tuple[str, Callable[[User], Any]]] = {}  # with the scope that each needs
    metadata: Mapping[str, Any] = {}  # None takes a member away


_GITHUB = Kind(
    claims=_github, authorize="/login/oauth/authorize", token="/login/oauth/access_token", userinfo="/user",
    scopes="read:user user:email user read:org repo gist notifications", has_id_tokens=False,
    expires_in=None, offline="never",  # tokens of OAuth apps never expire
    status=200, bad_client=(200, "incorrect_client_credentials"),  # errors come with status 200
    bad_code=("bad_verification_code", "The code passed is incorrect or expired."),
    bad_refresh=("bad_refresh_token", "The refresh token passed is incorrect or expired."),
    elsewhere=frozenset({"userinfo"}),  # api.github.com; below /api/v3 on an Enterprise Server
    more_pages={
        "/user/emails": ("user:email", _github_mails),
        "/user/orgs": ("read:org", lambda user: [{"login": each, "id": 1} for each in user.organizations]),
    },
)  # fmt: skip
_OKTA = Kind(
    claims=_okta, issuer="/oauth2/default", authorize="/oauth2/default/v1/authorize",
    token="/oauth2/default/v1/token", userinfo="/oauth2/default/v1/userinfo", jwks="/oauth2/default/v1/keys",
    refresh="same", bad_refresh=("invalid_grant", "The refresh token is invalid or expired."),
    in_userinfo_only=frozenset({"email", "email_verified", "groups"}),  # id tokens beside access tokens are thin
)  # fmt: skip

KINDS = {
    "oidc": Kind(
        claims=_plain, authorize="/authorize", token="/token", userinfo="/userinfo", jwks="/jwks",
        client_auth=("client_secret_basic",),  # and the metadata say nothing: this is what the specification then means
        metadata={"token_endpoint_auth_methods_supported": None},
    ),
    "github": _GITHUB,
    # The old access token ends with the old refresh token. An app has permissions, no scopes.
    "github_app": _GITHUB._replace(scopes="", expires_in=28_800, offline="always"),
    "discord": Kind(
        claims=_discord, authorize="/oauth2/authorize", token="/api/oauth2/token", userinfo="/api/users/@me",
        scopes="identify email guilds openid", has_id_tokens=False, expires_in=604_800, offline="always",
        more_pages={"/api/users/@me/guilds": ("guilds", lambda user: [
            {"id": f"1970{number}", "name": each} for number, each in enumerate(user.organizations)
        ])},
    ),
    "google": Kind(
        claims=_google, authorize="/o/oauth2/v2/auth", token="/token", userinfo="/v1/userinfo", jwks="/oauth2/v3/certs",
        scopes=f"{OPENID} https://www.googleapis.com/auth/drive.readonly", offline="parameters", refresh="none",
        bad_refresh=("invalid_grant", "Token has been expired or revoked."),
        elsewhere=frozenset({"token", "userinfo", "jwks"}), callback={"iss": "", "authuser": "0", "prompt": "consent"},
    ),
    "entra": Kind(
        claims=_entra, issuer="/{tenant}/v2.0", authorize="/{tenant}/oauth2/v2.0/authorize",
        token="/{tenant}/oauth2/v2.0/token", userinfo="/oidc/userinfo", jwks="/{tenant}/discovery/v2.0/keys",
        scopes=f"{OPENID} offline_access User.Read", refresh="another",
        bad_refresh=("invalid_grant", "AADSTS50173: The provided grant has expired due to it being revoked."),
        elsewhere=frozenset({"userinfo"}), callback={"session_state": "5d0d"},
        userinfo_claims=lambda claims: {key: claims[key] for key in ("sub", "name", "email") if key in claims},
    ),
    "auth0": Kind(
        claims=_auth0, issuer="/", authorize="/authorize", token="/oauth/token", userinfo="/userinfo",
        jwks="/.well-known/jwks.json", scopes=f"{OPENID} offline_access read:things", expires_in=86_400,
        refresh="family", status=403, bad_refresh=("invalid_grant", "Unknown or invalid refresh token."),
    ),
    "okta": _OKTA,
    "okta_org": _OKTA._replace(issuer="", **{
        name: getattr(_OKTA, name).replace("/default", "") for name in ("authorize", "token", "userinfo", "jwks")
    }),
    "keycloak": Kind(
        claims=_keycloak, issuer="/realms/acme", scopes=f"{OPENID} offline_access roles",
        **{name: f"/realms/acme/protocol/openid-connect/{path}" for name, path in {
            "authorize": "auth", "token": "token", "userinfo": "userinfo", "jwks": "certs"}.items()},  # type: ignore[arg-type]
        expires_in=300, offline="always", refresh="another",  # the refresh token lives as long as the session
        bad_refresh=("invalid_grant", "Session not active"), callback={"iss": "", "session_state": "0be1"},
        metadata={"authorization_response_iss_parameter_supported": True},
    ),
    "cognito": Kind(
        claims=_cognito, issuer="/eu-central-1_abc", authorize="/oauth2/authorize", token="/oauth2/token",
        userinfo="/oauth2/userInfo", jwks="/eu-central-1_abc/.well-known/jwks.json",
        scopes=f"{OPENID} phone aws.cognito.signin.user.admin", offline="always", refresh="none",
        elsewhere=frozenset({"authorize", "token", "userinfo"}),  # the domain of the pool
        userinfo_claims=lambda claims: {  # says "true" as a text, and no groups
            key: str(value).lower() if key == "email_verified" else value
            for key, value in claims.items() if not key.startswith(("cognito:", "token_"))
        },
    ),
    "workos": Kind(
        claims=_workos, authorize="/oauth2/authorize", token="/oauth2/token", userinfo="/oauth2/userinfo",
        jwks="/oauth2/jwks", scopes=f"{OPENID} offline_access", expires_in=300, client_auth=("client_secret_post",),
    ),
}  # fmt: skip

BY_SCOPE = {  # claims that are there with a scope only
    "email": ("email", "email_verified", "verified"),
    "profile": ("name", "preferred_username", "given_name", "nickname", "oid"),
}
