"""Signing in to a server behind a URL: the person at the terminal is asked first, then the browser opens.

The tokens are kept in the user's own file, so that the next command needs nobody.
"""

import webbrowser
from urllib.parse import urlsplit

from dovetail.cli.keyboard import confirm
from dovetail.cli.terminal import can_ask, in_line, tell
from dovetail.client.oauth import OAuth, TokenFile, TokenSet
from dovetail.client.oauth.provider import TokenRequest
from dovetail.client.transports.url import page_url
from dovetail.errors import NotSignedIn

TOKEN = "give a token with --token, or set DOVETAIL_CLIENT_TOKEN"
ADVICE = f"run the command in a terminal to sign in, or {TOKEN}"


class TerminalSignIn(OAuth):
    """`OAuth` that does nothing without a yes."""

    def __init__(self) -> None:
        super().__init__(client_name="Dovetail command line", tokens=TokenFile(), open_browser=_open)

    async def obtain(self, errand: TokenRequest) -> TokenSet:
        provider = errand.endpoint.provider
        if provider.is_guessed:
            raise NotSignedIn(f"The server needs a token, and names no authorization server to sign in at; {TOKEN}")
        page = page_url(provider.metadata.authorization_endpoint or "")
        if page is None:  # what is shown has to be what is opened
            raise NotSignedIn(f"The server names no page to sign in at that can be shown; {TOKEN}")
        host = in_line(urlsplit(page).netloc, 300)
        if not can_ask():
            raise NotSignedIn(f"The server wants somebody to sign in at {host}; {ADVICE}")
        if not await confirm(f"The server wants you to sign in at {host}. Open the browser?", default=True):
            raise NotSignedIn("Not signed in")
        return await super().obtain(errand)


def _open(url: str) -> None:
    tell(f"If the browser does not open by itself, open\n{in_line(url, 10_000)}", dim=True)
    webbrowser.open(url)
