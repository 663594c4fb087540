"""Credentials of requests to a URL: a token, or an object that signs in and renews tokens.

A request that was refused with 401 or 403 has not run. The credentials are told of it, may do something about it, and
say whether it is worth another try. They only ever see requests to the origin that the user named.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from dovetail.auth.fetch import is_loopback_host
from dovetail.client.transports.base import ServerUrl
from dovetail.errors import SetupError

log = logging.getLogger("dovetail.client")

AUTHORIZATION = "Authorization"
_TOKEN = re.compile(r"[!-~]{1,65536}")
FIX = 'give it a token as text, or OAuth(), or ClientCredentials("id", "secret") from dovetail.client.oauth'


class OutgoingRequest(NamedTuple):
    """A request that is about to be sent."""

    method: str
    url: str
    may_sign_in: bool  # somebody waits for its answer, and so may be asked to sign in for it
    pause_timeouts: Callable[[], AbstractContextManager[None]]  # inside, the time limits of requests stand still


class AuthChallenge(NamedTuple):
    """The refusal of a request: the `WWW-Authenticate` headers, and what the credentials had added to the request."""

    status: int
    challenges: Sequence[str]
    nonce: str | None  # of `DPoP-Nonce`
    sent_headers: Mapping[str, str]
    in_private_network: bool = False  # the server is in a private network

    def __repr__(self) -> str:
        return f"AuthChallenge({self.status})"  # what was sent is secret


class Credentials(Protocol):
    """What `auth=` may be, besides a text.

    Answers are kept only for those that also have an `identity`: a text that changes with the user.
    """

    async def headers(self, request: OutgoingRequest) -> Mapping[str, str]:
        """What the request has to carry; nothing, if nothing is known yet."""

    async def refused(self, request: OutgoingRequest, challenge: AuthChallenge) -> bool:
        """The request was refused with 401 or 403. True if it is worth another try. Raises NotSignedIn."""


class CredentialsSource(Protocol):
    """Or this: what has credentials for any server, as `OAuth()` has."""

    def for_server(self, url: str) -> Credentials: ...


ClientAuth = str | Credentials | CredentialsSource


class BearerToken:
    """A token that the user has, and that nobody can renew."""

    identity = ""  # it never changes

    def __init__(self, token: str) -> None:
        if not is_token(token):
            raise SetupError("Client: auth= is no token: empty, or with odd characters or spaces; leave out `Bearer `")
        self._headers = {AUTHORIZATION: f"Bearer {token}"}

    async def headers(self, request: OutgoingRequest) -> Mapping[str, str]:  # noqa: ARG002
        return self._headers

    async def refused(self, request: OutgoingRequest, challenge: AuthChallenge) -> bool:  # noqa: ARG002
        return False


def is_token(text: str | None) -> bool:
    """Whether it can travel in a header."""
    return text is not None and _TOKEN.fullmatch(text) is not None


def credentials_for(auth: ClientAuth | None, server_url: ServerUrl, headers: Mapping[str, str]) -> Credentials | None:
    """What `auth=` means for one server. `headers`: those of the user's own."""
    if auth is None:
        return None
    if any(name.lower() == AUTHORIZATION.lower() for name in headers):
        raise SetupError("Client: auth= and an Authorization header are two answers to one question; keep one of them")
    if isinstance(auth, str):
        if server_url.origin[0] != "https" and not is_loopback_host(server_url.origin[1]):
            log.warning("%s is not https: whoever is on the way there can read the token", server_url.shown)
        return BearerToken(auth)
    given: Any = auth
    if callable(getattr(given, "for_server", None)):
        made: Credentials = given.for_server(server_url.url)
        return made
    if callable(getattr(given, "headers", None)) and callable(getattr(given, "refused", None)):
        own: Credentials = given
        return own
    raise SetupError(f"Client: auth={type(given).__name__} can't be used; {FIX}")
