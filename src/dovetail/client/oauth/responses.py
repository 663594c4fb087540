"""What a browser comes back with: the URL that it was sent to comes in, the code in it goes out, or NotSignedIn."""

import hmac
from urllib.parse import parse_qsl, urlsplit

from dovetail.client.oauth.documents import Provider
from dovetail.client.oauth.web import plain, shown
from dovetail.errors import NotSignedIn

MAX_PARAMETERS = 50
MAX_URL = 32 * 1024  # characters


def parameters_of(url: str) -> dict[str, str] | None:
    """None if they can't be read, or one of them stands there twice."""
    try:
        pairs = parse_qsl(urlsplit(url).query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        return None
    found = dict(pairs)
    return found if len(found) == len(pairs) else None


def code_in(url: str, provider: Provider, state: str) -> str:
    """Nothing in it is looked at before it is clear that it answers our question (RFC 6749, 4.1.2; RFC 9207, 2.4)."""
    found = parameters_of(url) if len(url) <= MAX_URL else None
    if found is None or not hmac.compare_digest(found.get("state", "").encode(), state.encode()):
        raise NotSignedIn("The browser came back with the answer to another question: its state is not ours")
    issuer = found.get("iss")
    if issuer is None and provider.metadata.authorization_response_iss_parameter_supported:
        raise NotSignedIn("The browser came back without the name of the issuer, which should have been there")
    if issuer is not None and issuer != provider.issuer:
        raise NotSignedIn(f"The browser was sent to {shown(provider.issuer)}, but came back from {shown(issuer)}")
    if "error" in found:
        words = ": ".join(filter(None, (plain(found["error"]), plain(found.get("error_description", "")))))
        raise NotSignedIn(f"{shown(provider.issuer)} did not let you in: {words}")
    if not found.get("code"):
        raise NotSignedIn("The browser came back without a code")
    return found["code"]
