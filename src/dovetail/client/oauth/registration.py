"""Programs that introduce themselves (RFC 7591): a provider and a redirect URI come in, a client goes out."""

from dovetail.client.oauth.documents import Provider, RegistrationAnswer
from dovetail.client.oauth.token_endpoint import BASIC, POST, PUBLIC
from dovetail.client.oauth.tokens import RegisteredClient
from dovetail.client.oauth.web import OAuthWeb, problem_in, read_as, shown
from dovetail.errors import NotSignedIn

GRANTS = ("authorization_code", "refresh_token")
METHODS = (PUBLIC, BASIC, POST)  # the first that the authorization server takes
FIX = 'get a client_id from whoever runs it, and give it to OAuth(client_id="…")'


async def register(
    web: OAuthWeb, provider: Provider, name: str, redirect_uri: str, *, native: bool
) -> RegisteredClient:
    """Raises NotSignedIn."""
    url = provider.metadata.registration_endpoint
    if url is None:
        raise NotSignedIn(f"{shown(provider.issuer)} does not let programs register themselves; {FIX}")
    supported = provider.metadata.token_endpoint_auth_methods_supported
    wanted = next((each for each in METHODS if supported is None or each in supported), PUBLIC)
    answer = await web.post_json(
        url,
        {
            "client_name": name,
            "redirect_uris": [redirect_uri],
            "grant_types": GRANTS,
            "response_types": ["code"],
            "token_endpoint_auth_method": wanted,
            "application_type": "native" if native else "web",
        },
    )
    made = read_as(answer.body, RegistrationAnswer) if answer.status in (200, 201) else None
    if made is None or not made.client_id:
        problem = problem_in(answer)
        words = ": ".join(filter(None, (problem.error, problem.error_description)))
        raise NotSignedIn(f"{shown(url)} did not register this program: {words}; {FIX}")
    method = made.token_endpoint_auth_method or wanted
    if method not in METHODS or (method != PUBLIC and not made.client_secret):
        raise NotSignedIn(f"{shown(url)} registered this program in a way that it can't use")
    if method == PUBLIC:
        return RegisteredClient(made.client_id, None, method, redirect_uri)
    until = made.client_secret_expires_at or None  # 0 is for ever
    return RegisteredClient(made.client_id, made.client_secret, method, redirect_uri, until)
