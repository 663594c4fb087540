import secrets

from dovetail import Context, ElicitUrl, RouteRequest, Server, UrlElicitationRequired

server = Server("mail", version="1.0.0")
signed_in: set[str] = set()
visits: dict[str, str] = {}  # which account is to be signed in; the ids can't be guessed


def sign_in_url(visit: str) -> str:
    return f"https://mail.example.com/sign-in?visit={visit}"


@server.tool
async def connect(ctx: Context) -> str:
    """Let the user sign in at the mail provider."""
    visit = await ctx.step("visit", lambda: secrets.token_urlsafe(16))
    visits[visit] = "main"
    answer = await ctx.elicit_url("Sign in to your mail", sign_in_url(visit), elicitation_id=visit)
    return "Come back when you are done." if answer.accepted else "As you like."


@server.tool
async def unread(account: str, ctx: Context) -> str:
    """Count unread mail."""
    if account not in signed_in:
        visit = await ctx.step("visit", lambda: secrets.token_urlsafe(16))
        visits[visit] = account
        raise UrlElicitationRequired(ElicitUrl("Sign in to your mail", sign_in_url(visit), elicitation_id=visit))
    return "3"


@server.custom_route("/signed-in")
async def done(request: RouteRequest) -> str:
    """Where the provider sends the user's browser in the end; a visit is a secret, and good for one time."""
    visit = request.query["visit"][0]
    account = visits.pop(visit, None)
    if account is None:
        return "This page is not known."
    signed_in.add(account)
    await server.complete_elicitation(visit)
    return "You may close this page."


if __name__ == "__main__":
    server.run(transport="http")
