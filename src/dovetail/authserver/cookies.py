"""Cookies of this host alone: a name and sealed text come in, a header goes out, and back."""

import hashlib

from dovetail.transports.routes import PageRequest

SIGNED_IN = "__Host-dovetail-user"
_ASKED = "__Host-dovetail-asked"


def asked_cookie(client_id: str) -> str:
    """One for each program, so that two questions at a time do not disturb each other."""
    return f"{_ASKED}-{hashlib.sha256(client_id.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def set_cookie(name: str, value: str, seconds: float) -> dict[str, str]:
    """`__Host-` makes browsers insist on Secure, this host and the whole of it."""
    return {"set-cookie": f"{name}={value}; Path=/; Max-Age={int(seconds)}; Secure; HttpOnly; SameSite=Lax"}


def cookie(request: PageRequest, name: str) -> str | None:
    """None if there is none, or more than one: then nobody knows which is ours."""
    pairs = [part.strip().partition("=") for line in request.headers.all("cookie") for part in line.split(";")]
    found = [value for key, _, value in pairs if key == name]
    return found[0] if len(found) == 1 else None
