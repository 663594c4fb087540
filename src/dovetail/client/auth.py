"""Credentials of HTTP requests: a token, or an object that signs in and renews tokens.

A request that was refused with 401 or 403 has not run. The credentials get the challenge, and say whether to send the
request again. They only ever see requests to the origin of the user's URL.
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


class OutgoingRequest(NamedTuple):
    """A request that is about to be sent."""

    method: str
    url: str
    may_sign_in: bool  # a caller waits for the response, so the user may be asked to sign in
    pause_timeouts: Callable[[], AbstractContextManager[None]]


class AuthChallenge(NamedTuple):
    """A response with status 401 or 403."""

    status: int
    challenges: Sequence[str]  # of `WWW-Authenticate`
    nonce: str | None  # of `DPoP-Nonce`
    sent_headers: Mapping[str, str]  # that the credentials had added to the request
    in_private_network: bool = False  # where the server is

    def __repr__(self) -> str:
        return f"AuthChallenge({self.status})"  # the headers are secret


class Credentials(Protocol):
    """An object for `auth=`. Responses are cached only if it has an `identity`, which changes with the user."""

    async def headers(self, request: OutgoingRequest) -> Mapping[str, str]:
        """The headers to add; none before the first challenge, if no token is stored."""

    async def refused(self, request: OutgoingRequest, challenge: AuthChallenge) -> bool:
        """Whether to send the request again. Raises NotSignedIn."""


class CredentialsSource(Protocol):
    """An object for `auth=` with credentials for any server, such as `OAuth()`."""

    def for_server(self, url: str) -> Credentials: ...


ClientAuth = str | Credentials | CredentialsSource


class BearerToken:
    """A token that can't be renewed."""

    identity = ""  # never changes

    def __init__(self, token: str) -> None:
        if not is_token(token):
            raise SetupError("Client: auth= is no token: empty, or with odd characters or spaces; leave out `Bearer `")
        self._headers = {AUTHORIZATION: f"Bearer {token}"}

    async def headers(self, request: OutgoingRequest) -> Mapping[str, str]:  # noqa: ARG002
        return self._headers

    async def refused(self, request: OutgoingRequest, challenge: AuthChallenge) -> bool:  # noqa: ARG002
        return False


def is_token(text: str | None) -> bool:
    """Whether a header can carry it."""
    return text is not None and _TOKEN.fullmatch(text) is not None


def credentials_for(auth: ClientAuth | None, server_url: ServerUrl, headers: Mapping[str, str]) -> Credentials | None:
    """The credentials that `auth=` gives for one server. `headers`: the user's own."""
    if auth is None:
        return None
    if any(name.lower() == AUTHORIZATION.lower() for name in headers):
        raise SetupError("Client: auth= and an Authorization header are two answers to one question; keep one of them")
    if isinstance(auth, str):
        if server_url.origin[0] != "https" and not is_loopback_host(server_url.origin[1]):
            log.warning("%s is not https: others on the network can read the token", server_url.shown)
        return BearerToken(auth)
    given: Any = auth
    if callable(getattr(given, "for_server", None)):
        given = given.for_server(server_url.url)
    elif not (callable(getattr(given, "headers", None)) and callable(getattr(given, "refused", None))):
        use = 'give it a token as text, or OAuth(), or ClientCredentials("id", "secret") from dovetail.client.oauth'
        raise SetupError(f"Client: auth={type(given).__name__} can't be used; {use}")
    credentials: Credentials = given
    return credentials
