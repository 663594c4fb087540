"""Identity providers as rows of data: their endpoints, what they are asked for, and which claims name their users."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from dovetail.errors import SetupError

Claims = Mapping[str, Any]
Path = tuple[str, ...]  # the names that lead to a value in the claims
MAX_TEXT = 255  # characters of an id (OpenID Connect Core, 2), a name or an e-mail address


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """An identity provider. With an `issuer` it speaks OpenID Connect, and its metadata name the endpoints. Where each
    customer has an issuer, the row says what that is made of; `at` fills it in.
    """

    name: str  # for people: "GitHub"
    key: str  # begins the subject of its users: "github"
    issuer: str = ""
    issuers: tuple[str, ...] = ()  # in metadata and id tokens, if not the issuer; {tenantid} is their claim `tid`
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    userinfo_endpoint: str = ""
    asks_userinfo: bool = True  # False: the id token says all
    lists: Mapping[str, tuple[str, str]] = {}  # more claims: the URL of a list of objects, and the scope that it needs
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    parameters: Mapping[str, str] = {}  # of the authorization request
    # The claims that are, together, the stable id of a user.
    subject: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("sub",)
    full_name: str = "name"
    username: str = "preferred_username"
    emails: Path = ()  # to the addresses, if `email` is not the only one
    verified: str = "email_verified"  # says that the provider has verified an address; no other counts
    domains: Path = ()  # to the domain of an organization's account; else that of the address counts
    organizations: Path = ()
    groups: Path = ()
    allow_scopes: Mapping[str, str] = {}  # requested if `allow=` has this key: {"organizations": "read:org"}

    def at(self, **parts: str) -> "Provider":
        return msgspec.structs.replace(self, issuer=url_of(self.issuer, **parts))

    def identity(self, claims: Claims) -> "Identity | None":
        """The user of these claims; None if they hold no stable id."""
        ids = [str(claims[name]) if type(claims.get(name)) in (str, int) else "" for name in self.subject]
        if not all(0 < len(each) <= MAX_TEXT and each.isprintable() for each in ids):
            return None
        addresses = [each for each in _values_at(claims, self.emails) if isinstance(each, Mapping)]
        email = next((each.get("email") for each in addresses if self._is_verified(each)), None)
        known = {"name": claims.get(self.full_name), "preferred_username": claims.get(self.username), "email": email}
        profile = {name: text for name, text in known.items() if isinstance(text, str) and 0 < len(text) <= MAX_TEXT}
        return Identity(subject=":".join((self.key, *ids)), profile=profile, claims=claims)

    def _is_verified(self, address: Claims) -> bool:
        """Some write true as text or as a number. Of several addresses, the primary one counts."""
        return address.get("primary", True) is True and address.get(self.verified) in (True, 1, "1", "true")

    def values(self, kind: str, identity: "Identity") -> list[str]:
        """The domains, organizations or groups of a user."""
        if path := getattr(self, kind):
            return [each for each in _values_at(identity.claims, path) if isinstance(each, str)]
        return [identity.profile.get("email", "").rpartition("@")[2]]


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A user as the provider names them."""

    subject: str
    profile: dict[str, str]  # `name`, `preferred_username`, `email`: these are in our access tokens
    claims: Claims


def _values_at(value: Any, path: Path) -> list[Any]:
    """The values at a path, which leads through all members of lists."""
    found = value if isinstance(value, list) else [value]
    if not path:
        return found
    return [one for each in found if isinstance(each, Mapping) for one in _values_at(each.get(path[0]), path[1:])]


def check_texts(**given: Any) -> None:
    """Raises SetupError for None, which is what a missing environment variable gives; it shows no secret."""
    for name, value in given.items():
        if not isinstance(value, str) or not value.strip():
            raise SetupError(f"SignIn: {name}= is empty or no text; the provider shows what to write")


def url_of(template: str, **parts: str) -> str:
    """A URL of its parts; the first is a host or a whole URL. Raises SetupError."""
    check_texts(**parts)
    url = template.format(**{name: part.rstrip("/") for name, part in parts.items()})
    return url if "://" in url else f"https://{url}"


# ── with OpenID Connect ──

OFFLINE = ("openid", "profile", "email", "offline_access")
ORGANIZATION, GROUPS = ("org_id",), ("groups",)

GOOGLE = Provider(
    name="Google", key="google", issuer="https://accounts.google.com", asks_userinfo=False,
    issuers=("https://accounts.google.com", "accounts.google.com"),
    parameters={"access_type": "offline", "prompt": "consent"},  # without both there is no refresh token
    domains=("hd",),  # anyone can have a Google account with an e-mail address of a company
)  # fmt: skip
ENTRA = Provider(
    name="Microsoft", key="entra", issuer="{cloud}/{tenant}/v2.0", asks_userinfo=False, scopes=OFFLINE,
    organizations=("tid",), groups=GROUPS,
    subject=("tid", "oid"),  # `sub` is another one for each registered application
    verified="xms_edov",  # an address is whatever an administrator wrote, unless this vouches for its domain
)  # fmt: skip
AUTH0 = Provider(
    name="Auth0", key="auth0", issuer="{domain}/", scopes=OFFLINE, username="nickname", organizations=ORGANIZATION
)
OKTA = Provider(
    name="Okta", key="okta", issuer="{domain}/oauth2/{server}", scopes=OFFLINE, groups=GROUPS,
    allow_scopes={"groups": "groups"},
)  # fmt: skip
OKTA_ORG = msgspec.structs.replace(OKTA, issuer="{domain}")
KEYCLOAK = Provider(name="Keycloak", key="keycloak", issuer="{url}/realms/{realm}", groups=GROUPS)
COGNITO = Provider(
    name="Cognito", key="cognito", issuer="cognito-idp.{region}.amazonaws.com/{pool}", username="cognito:username",
    groups=("cognito:groups",),
)  # fmt: skip
WORKOS = Provider(name="WorkOS", key="workos", issuer="{domain}", scopes=OFFLINE)  # `org_id` is in access tokens only


# ── without ──


def github(url: str) -> Provider:
    """The row of github.com, or of a GitHub Enterprise Server, whose API is below the same origin."""
    site = url_of("{url}", url=url)
    api = "https://api.github.com" if site == "https://github.com" else f"{site}/api/v3"
    return Provider(
        name="GitHub", key="github", scopes=("read:user", "user:email"),
        authorization_endpoint=f"{site}/login/oauth/authorize",
        token_endpoint=f"{site}/login/oauth/access_token",
        userinfo_endpoint=f"{api}/user",
        lists={
            "emails": (f"{api}/user/emails", "user:email"),
            "orgs": (f"{api}/user/orgs?per_page=100", "read:org"),
        },
        subject=("id",),  # `login` can be changed, and be taken by others then
        username="login",
        emails=("emails",), verified="verified",  # the address in the profile may be hidden, or not verified
        organizations=("orgs", "login"), allow_scopes={"organizations": "read:org"},
    )  # fmt: skip


GITHUB = github("https://github.com")
DISCORD = Provider(
    name="Discord", key="discord", scopes=("identify", "email"), subject=("id",),
    authorization_endpoint="https://discord.com/oauth2/authorize",
    token_endpoint="https://discord.com/api/oauth2/token",
    userinfo_endpoint="https://discord.com/api/users/@me",
    lists={"guilds": ("https://discord.com/api/users/@me/guilds", "guilds")},
    full_name="global_name", username="username", verified="verified",
    organizations=("guilds", "id"), allow_scopes={"organizations": "guilds"},
)  # fmt: skip
