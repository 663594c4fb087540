"""Identity providers as rows of data: their endpoints, what they are asked for, and which claims name their users."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

Claims = Mapping[str, Any]
Path = tuple[str, ...]  # the names that lead to a value in the claims
MAX_TEXT = 255  # characters of an id (OpenID Connect Core, 2), a name or an e-mail address
CONSUMERS = "9188040d-6c67-4c5b-b112-36a304b66dad"  # the tenant of all personal Microsoft accounts


class ListRequest(msgspec.Struct, frozen=True):
    """A list that is no part of the user's profile. It is requested with one of the scopes that it needs."""

    claim: str
    url: str
    scope: str


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """An identity provider. With an `issuer` it speaks OpenID Connect, and its metadata name the endpoints."""

    name: str  # for people: "GitHub"
    key: str  # begins the subject of its users: "github"
    issuer: str = ""
    issuers: tuple[str, ...] = ()  # in metadata and id tokens, if not the issuer; {tenantid} is their claim `tid`
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    userinfo_endpoint: str = ""
    asks_userinfo: bool = True  # False: the id token says all
    lists: tuple[ListRequest, ...] = ()
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    parameters: Mapping[str, str] = {}  # of the authorization request
    # The claims that are, together, the stable id of a user.
    subject: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("sub",)
    full_name: str = "name"
    username: str = "preferred_username"
    emails: str = ""  # the claim with a list of addresses, if `email` is not the only one
    verified: str = "email_verified"  # says that the provider has verified an address; no other counts
    domain: str = ""  # the claim with the domain of an organization's account; else that of the address
    organizations: Path = ()
    organizations_scope: str = ""
    groups: Path = ()
    groups_scope: str = ""

    def identity(self, claims: Claims) -> "Identity | None":
        """The user of these claims; None if they hold no stable id."""
        ids = [str(claims[name]) if type(claims.get(name)) in (str, int) else "" for name in self.subject]
        if not all(0 < len(each) <= MAX_TEXT and each.isprintable() for each in ids):
            return None
        known = {"name": claims.get(self.full_name), "preferred_username": claims.get(self.username)}
        known["email"] = next((each["email"] for each in self._addresses(claims) if self._is_verified(each)), None)
        profile = {name: text for name, text in known.items() if isinstance(text, str) and 0 < len(text) <= MAX_TEXT}
        return Identity(subject=":".join((self.key, *ids)), profile=profile, claims=claims)

    def _addresses(self, claims: Claims) -> list[Claims]:
        found = claims.get(self.emails) if self.emails else [claims]
        return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []

    def _is_verified(self, address: Claims) -> bool:
        """Some write true as text or as a number. Of several addresses, the primary one counts."""
        is_primary = address.get("primary", True) is True
        return "email" in address and is_primary and address.get(self.verified) in (True, 1, "1", "true")

    def values(self, kind: str, identity: "Identity") -> list[str]:
        """The domains, organizations or groups of a user."""
        if kind != "domains":
            return texts_at(identity.claims, getattr(self, kind))
        if self.domain:
            return texts_at(identity.claims, (self.domain,))
        return [identity.profile["email"].rpartition("@")[2]] if "email" in identity.profile else []


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A user as the provider names them."""

    subject: str
    profile: dict[str, str]  # `name`, `preferred_username`, `email`: these are in our access tokens
    claims: Claims


def texts_at(claims: Any, path: Path) -> list[str]:
    """The texts at a path, in one value or in a list."""
    found = claims if isinstance(claims, list) else [claims]
    if not path:
        return [each for each in found if isinstance(each, str)]
    return [text for each in found if isinstance(each, Mapping) for text in texts_at(each.get(path[0]), path[1:])]


def base_url(domain: str) -> str:
    """The URL of a domain; a whole URL stays as it is, without a slash at its end."""
    return (domain if "://" in domain else f"https://{domain}").rstrip("/")


# ── with OpenID Connect ──

OFFLINE = ("openid", "profile", "email", "offline_access")
ORGANIZATION, GROUPS = ("org_id",), ("groups",)

GOOGLE = Provider(
    name="Google", key="google", issuer="https://accounts.google.com", asks_userinfo=False,
    issuers=("https://accounts.google.com", "accounts.google.com"),
    parameters={"access_type": "offline", "prompt": "consent"},  # without both there is no refresh token
    domain="hd",  # anyone can have a Google account with an e-mail address of a company
)  # fmt: skip
ENTRA = Provider(
    name="Microsoft", key="entra", asks_userinfo=False, scopes=OFFLINE, organizations=("tid",), groups=GROUPS,
    subject=("tid", "oid"),  # `sub` is another one for each registered application
    verified="xms_edov",  # an address is whatever an administrator wrote, unless this vouches for its domain
)  # fmt: skip
AUTH0 = Provider(name="Auth0", key="auth0", scopes=OFFLINE, username="nickname", organizations=ORGANIZATION)
OKTA = Provider(name="Okta", key="okta", scopes=OFFLINE, groups=GROUPS, groups_scope="groups")
KEYCLOAK = Provider(name="Keycloak", key="keycloak", groups=GROUPS)
COGNITO = Provider(name="Cognito", key="cognito", username="cognito:username", groups=("cognito:groups",))
WORKOS = Provider(name="WorkOS", key="workos", scopes=OFFLINE)  # `org_id` is in its access tokens only


def entra(tenant: str, cloud: str) -> Provider:
    """The row of a tenant, or of the accounts of many: "organizations", "consumers", "common"."""
    tenant = CONSUMERS if tenant == "consumers" else tenant.lower()
    authority = base_url(cloud)
    issuers = (f"{authority}/{{tenantid}}/v2.0",) if tenant in ("organizations", "common") else ()
    return msgspec.structs.replace(ENTRA, issuer=f"{authority}/{tenant}/v2.0", issuers=issuers)


def openid_connect(issuer: str, name: str) -> Provider:
    """The row of any issuer."""
    host = urlsplit(issuer).netloc
    return Provider(name=name or host, key=host, issuer=issuer, organizations=ORGANIZATION, groups=GROUPS)


# ── without ──


def github(url: str) -> Provider:
    """The row of github.com, or of a GitHub Enterprise Server, whose API is below the same origin."""
    site = base_url(url)
    api = "https://api.github.com" if site == "https://github.com" else f"{site}/api/v3"
    return Provider(
        name="GitHub", key="github", scopes=("read:user", "user:email"),
        authorization_endpoint=f"{site}/login/oauth/authorize",
        token_endpoint=f"{site}/login/oauth/access_token",
        userinfo_endpoint=f"{api}/user",
        lists=(
            ListRequest("emails", f"{api}/user/emails", "user:email"),
            ListRequest("orgs", f"{api}/user/orgs?per_page=100", "read:org"),
        ),
        subject=("id",),  # `login` can be changed, and be taken by others then
        username="login",
        emails="emails", verified="verified",  # the address in the profile may be hidden, or not verified
        organizations=("orgs", "login"), organizations_scope="read:org",
    )  # fmt: skip


GITHUB = github("https://github.com")
DISCORD = Provider(
    name="Discord", key="discord", scopes=("identify", "email"), subject=("id",),
    authorization_endpoint="https://discord.com/oauth2/authorize",
    token_endpoint="https://discord.com/api/oauth2/token",
    userinfo_endpoint="https://discord.com/api/users/@me",
    lists=(ListRequest("guilds", "https://discord.com/api/users/@me/guilds", "guilds"),),
    full_name="global_name", username="username", verified="verified",
    organizations=("guilds", "id"), organizations_scope="guilds",
)  # fmt: skip
