"""`/token` and `/revoke`: what a program was given by a user, or is itself, comes in; access tokens go out, or end."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from dovetail.authserver.access_tokens import GRANT, AccessTokens
from dovetail.authserver.client_proofs import ClientProofs
from dovetail.authserver.client_record import CODE, CREDENTIALS, REFRESH, OAuthClient
from dovetail.authserver.forms import form_fields
from dovetail.authserver.grants import Grant, Grants, RefreshToken
from dovetail.authserver.refusals import FOR_ANY_ORIGIN, NOT_KEPT, OAuthRefusal, for_programs
from dovetail.authserver.seals import Seals
from dovetail.authserver.targets import Target
from dovetail.authserver.users import Users
from dovetail.state.base import NoRoom, StoreTrouble
from dovetail.transports.routes import PageRequest, PageResponse

Form = Mapping[str, str]
Answer = dict[str, object]


class TokenDesk:
    """The endpoints that only programs see."""

    def __init__(
        self,
        proofs: ClientProofs,
        grants: Grants,
        tokens: AccessTokens,
        seals: Seals,
        users: Users,
        target: Target,
    ) -> None:
        self._proofs = proofs
        self._grants = grants
        self._tokens = tokens
        self._seals = seals
        self._users = users
        self._target = target
        self._ways: dict[str, Callable[[OAuthClient, Form], Awaitable[Answer]]] = {
            CODE: self._by_code,
            REFRESH: self._by_refresh,
            CREDENTIALS: self._by_itself,
        }
        self.token_page = for_programs(self._token)
        self.revoke_page = for_programs(self._revoke)

    async def _token(self, request: PageRequest) -> PageResponse:
        form = await form_fields(request)
        client = await self._proofs.client(request, form)
        kind = form.get("grant_type", "")
        way = self._ways.get(kind)
        if way is None:
            raise OAuthRefusal("unsupported_grant_type", f"grant_type must be one of {', '.join(self._ways)}")
        if kind not in client.grant_types:
            raise OAuthRefusal("unauthorized_client", f"This program may not use {kind}")
        self._target.check_resource(form.get("resource"))
        return PageResponse(await way(client, form), 200, {**NOT_KEPT, **FOR_ANY_ORIGIN})

    async def _by_code(self, client: OAuthClient, form: Form) -> Answer:
        code, verifier = _needed(form, "code"), _needed(form, "code_verifier")
        grant = await self._grants.read_code(code, client.id, form.get("redirect_uri"), verifier)
        return await self._answer(client, grant, frozenset(grant.scopes), number=0)

    async def _by_refresh(self, client: OAuthClient, form: Form) -> Answer:
        token = await self._grants.read_refresh_token(_needed(form, "refresh_token"), client.id)
        wanted = self._target.wanted(form.get("scope"), frozenset(token.grant.scopes))
        return await self._answer(client, token.grant, wanted, token.number)

    async def _by_itself(self, client: OAuthClient, form: Form) -> Answer:
        scopes = self._target.wanted(form.get("scope"), client.scopes)
        return self._told(await self._tokens.issue(client.id, client.id, scopes), sorted(scopes))

    async def _answer(self, client: OAuthClient, grant: Grant, wanted: frozenset[str], number: int) -> Answer:
        """What the user allowed then, and is still possible now. The use comes last: what fails before costs none."""
        if await self._users.mark(grant.user) != grant.mark:
            await self._grants.revoke(grant.id, grant.ends)
            raise OAuthRefusal("invalid_grant", "This user is not known any more, or has a new password")
        scopes = sorted(wanted & self._target.wanted(None, client.scopes) & self._target.scopes.keys())
        answer = self._told(await self._tokens.issue(client.id, grant.user, scopes, grant.id), scopes)
        if REFRESH in client.grant_types:
            answer["refresh_token"] = await self._grants.refresh_token(grant, number + 1)
        await self._grants.use(grant, number)
        with suppress(StoreTrouble, NoRoom):  # its next refresh does the same
            await self._proofs.used(client)
        return answer

    def _told(self, access: str, scopes: list[str]) -> Answer:
        return {
            "access_token": access,
            "token_type": "Bearer",
            "expires_in": int(self._tokens.seconds),
            "scope": " ".join(scopes),
        }

    async def _revoke(self, request: PageRequest) -> PageResponse:
        """RFC 7009: whatever the token was, it is no good any more. What was made of the same grant ends with it."""
        form = await form_fields(request)
        client = await self._proofs.client(request, form)
        token = _needed(form, "token")
        refresh = await self._seals.open(token, RefreshToken)
        if refresh is not None and refresh.grant.client == client.id:
            await self._grants.revoke(refresh.grant.id, refresh.grant.ends)
        elif refresh is None:
            claims = await self._tokens.read(token)
            if claims is not None and claims["client_id"] == client.id:
                acts_for_itself = claims["sub"] == client.id
                await self._grants.revoke(claims[GRANT], claims["exp"], is_of_one_token=acts_for_itself)
        return PageResponse({}, 200, {**NOT_KEPT, **FOR_ANY_ORIGIN})


def _needed(form: Form, name: str) -> str:
    value = form.get(name)
    if value is None:
        raise OAuthRefusal("invalid_request", f"{name} is missing")
    return value
