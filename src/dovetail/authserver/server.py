"""`AuthServer`: an issuer, users and scopes come in; pages to mount, and a verifier of their tokens, go out."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from dovetail.auth.signing import require_library
from dovetail.auth.verifier import Verifier
from dovetail.authserver.access_tokens import AccessTokens, OwnTokens
from dovetail.authserver.authorize import Authorization
from dovetail.authserver.cimd import PublishedClients
from dovetail.authserver.client_proofs import ClientProofs
from dovetail.authserver.client_record import OAuthClient
from dovetail.authserver.clients import KnownClients, checked_clients
from dovetail.authserver.forms import MAX_BYTES
from dovetail.authserver.grants import Grants
from dovetail.authserver.keyring import Keyring
from dovetail.authserver.marks import Marks, in_state_of_app
from dovetail.authserver.metadata import Places, describe
from dovetail.authserver.refusals import FOR_ANY_ORIGIN, for_programs
from dovetail.authserver.registration import Registration
from dovetail.authserver.seals import Seals
from dovetail.authserver.signins import SignIns
from dovetail.authserver.targets import Target
from dovetail.authserver.token_desk import TokenDesk
from dovetail.authserver.users import Users
from dovetail.engine.keys import secrets_in
from dovetail.errors import SetupError
from dovetail.protocol.scopes import checked_scopes
from dovetail.transports.asgi import App
from dovetail.transports.routes import PageRequest, PageResponse, route_app

if TYPE_CHECKING:
    from dovetail.state.base import StateBackend

ACCESS_SECONDS = 600.0
REFRESH_SECONDS = 30 * 86_400.0
LONGEST = 366 * 86_400.0
METADATA_SECONDS = 300  # for which others may keep the metadata and the keys


class AuthServer:
    """An OAuth 2.1 authorization server, for development and small deployments."""

    def __init__(
        self,
        issuer: str,
        *,
        resource: str,
        users: "str | os.PathLike[str] | Mapping[str, str]",
        clients: Iterable[OAuthClient] = (),
        scopes: Mapping[str, str] | None = None,
        state: "str | StateBackend | None" = None,
        access_seconds: float = ACCESS_SECONDS,
        refresh_seconds: float = REFRESH_SECONDS,
        registration: bool = True,
        cimd: bool = True,
        allow_loopback_cimd: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`issuer`: the URL that clients know it by, kept byte for byte. `resource`: that of the MCP endpoint.

        `users`: {"ann": hash_password("...")}, or a file with that as JSON. `scopes`: what each means, for people.
        `state`: a URL or a backend; else that of the app that it is mounted in, if workers share it, or the memory of
        this process. `refresh_seconds`: from the consent to the end of all that was made of it. `registration`:
        programs may register themselves. `cimd`: a program may be known by the URL of its metadata;
        `allow_loopback_cimd`: also one on this machine, for tests.
        """
        require_library("AuthServer")
        places, target = Places(issuer), Target(_checked_resource(resource), _checked_scopes(scopes))
        for name, seconds in (("access_seconds", access_seconds), ("refresh_seconds", refresh_seconds)):
            if not 1 <= seconds <= LONGEST:
                raise SetupError(f"AuthServer: {name}={seconds!r} is not possible; it is from 1 to {LONGEST:.0f}")
        self.issuer = issuer
        self.resource = resource
        self._places = places
        self._document = describe(places, target.scopes, registration=registration, cimd=cimd)
        static = checked_clients(clients, target.scopes)
        self._marks = marks = Marks(state, issuer)
        self._keyring = keyring = Keyring(marks, secrets_in(os.environ))
        seals = Seals(keyring, clock)
        self._users = Users(users, static)
        published = PublishedClients(marks, allow_loopback=allow_loopback_cimd) if cimd else None
        known = KnownClients(marks, static, published, registration=registration)
        self._grants = Grants(seals, marks, refresh_seconds, access_seconds)
        self._tokens = AccessTokens(issuer, resource, access_seconds, keyring, clock)
        proofs = ClientProofs(known, marks, frozenset({issuer, places.url("token")}), clock)
        self._desk = TokenDesk(proofs, self._grants, self._tokens, seals, self._users, target)
        self._registration = Registration(known, marks, clock) if registration else None
        self._authorization = Authorization(
            issuer=issuer, path=urlsplit(places.url("authorize")).path, clients=known, target=target,
            users=self._users, sign_ins=SignIns(self._users, marks), grants=self._grants, seals=seals, marks=marks,
            refresh_seconds=refresh_seconds,
        )  # fmt: skip

    def routes(self) -> dict[str, App]:
        """For `server.asgi(routes=...)` or `server.run("http", routes=...)`."""
        pages: dict[str, tuple[Any, list[str]]] = {
            self._places.metadata: (for_programs(self._metadata), ["GET", "OPTIONS"]),
            self._places.path("jwks"): (for_programs(self._jwks), ["GET", "OPTIONS"]),
            self._places.path("authorize"): (self._authorization.page, ["GET", "POST"]),
            self._places.path("token"): (self._desk.token_page, ["POST", "OPTIONS"]),
            self._places.path("revoke"): (self._desk.revoke_page, ["POST", "OPTIONS"]),
        }
        if self._registration is not None:
            pages[self._places.path("register")] = (self._registration.page, ["POST", "OPTIONS"])
        return {
            path: in_state_of_app(route_app(page, methods, max_body_bytes=MAX_BYTES, run_in_thread=_no_thread))
            for path, (page, methods) in pages.items()
        }

    def verifier(self) -> Verifier:
        """For `Server(auth=...)`: it knows its own tokens without asking anybody over HTTP."""
        return OwnTokens(self._tokens, self._grants, self._marks)

    async def close(self) -> None:
        """Let go of a state that was opened here, by a URL. What is asked for later opens another."""
        await self._marks.close()

    async def _metadata(self, _: PageRequest) -> PageResponse:
        return PageResponse(self._document, 200, _KEPT)

    async def _jwks(self, _: PageRequest) -> PageResponse:
        return PageResponse({"keys": [(await self._keyring.signing()).public]}, 200, _KEPT)


_KEPT = {"cache-control": f"public, max-age={METADATA_SECONDS}", **FOR_ANY_ORIGIN}


def _checked_resource(resource: str) -> str:
    parts = urlsplit(resource)
    if parts.scheme not in ("https", "http") or not parts.netloc or "#" in resource:
        raise SetupError(f'AuthServer: resource={resource!r} is not possible; write "https://notes.example.com/mcp"')
    return resource


def _checked_scopes(scopes: Mapping[str, str] | None) -> dict[str, str]:
    given: object = scopes or {}
    if not isinstance(given, Mapping):
        raise SetupError('AuthServer: scopes must say what each means: {"notes:read": "Read your notes"}')
    checked_scopes(list(given), "AuthServer")
    return dict(given)


async def _no_thread(function: Callable[[], Any], *, label: str) -> NoReturn:
    raise AssertionError(f"{label} ({function}) is async, and needs no thread")
