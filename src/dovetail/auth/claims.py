"""What a token says: JSON of strangers comes in, and checked claims and the principal that they name go out."""

import json
import re
from collections.abc import Mapping
from math import inf
from typing import Any

import msgspec

from dovetail.auth.principal import Principal
from dovetail.protocol.scopes import read_scopes

MAX_MEMBERS = 256  # of one object
MAX_BRACKETS = 512  # so many objects and lists, and nothing nested deeper
MAX_AUDIENCES = 100
MAX_NAME = 1024  # characters of a subject or a client

_URL = re.compile(r"(https?)://([^/?#@\\\s]+)(\S*)", re.IGNORECASE)
_MOMENTS = ("exp", "nbf", "iat")
_CLIENT = ("client_id", "azp")  # RFC 9068, and what others call it
_SCOPE = ("scope", "scp")


def read_object(data: bytes) -> dict[str, Any] | None:
    """A JSON object of reasonable shape in which no name stands twice; two readers could not agree on which counts."""
    if data.count(b"{") + data.count(b"[") > MAX_BRACKETS:
        return None
    try:
        msgspec.json.decode(data)  # refuses what `json` lets pass: NaN, halves of characters, huge numbers
        found = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def in_time(claims: Mapping[str, Any], now: float, leeway: float, *, needs_end: bool) -> bool:
    """Whether the token has begun, has not ended, and was not made in the future."""
    moments = {name: claims[name] for name in _MOMENTS if name in claims}
    if needs_end and "exp" not in moments:
        return False
    if not all(type(moment) in (int, float) for moment in moments.values()):
        return False
    begun = max(moments.get("nbf", -inf), moments.get("iat", -inf)) <= now + leeway
    return bool(begun and now < moments.get("exp", inf) + leeway)


def meant_for(claims: Mapping[str, Any], audiences: frozenset[str]) -> bool:
    """Whether the token was issued for one of these, which are `comparable_url`."""
    aud = claims.get("aud")
    named = [aud] if isinstance(aud, str) else aud if isinstance(aud, list) else []
    return any(isinstance(each, str) and comparable_url(each) in audiences for each in named[:MAX_AUDIENCES])


def comparable_url(audience: str) -> str:
    """The same text for URLs that mean the same: scheme and host in small letters, no slash at the end."""
    url = _URL.fullmatch(audience)
    if url is None:
        return audience
    scheme, host, rest = url.groups()
    return f"{scheme.lower()}://{host.lower()}{rest if '?' in rest or '#' in rest else rest.removesuffix('/')}"


def principal_of(claims: dict[str, Any], issuer: str | None, scope_claim: str | None = None) -> Principal | None:
    """Whom the claims name. None if that is nobody, or can't be read."""
    subject = claims.get("sub")
    client = next((claims[name] for name in _CLIENT if claims.get(name) is not None), None)
    if not all(name is None or (isinstance(name, str) and 0 < len(name) <= MAX_NAME) for name in (subject, client)):
        return None
    if subject is None and client is None:
        return None
    scopes = next((claims[name] for name in ((scope_claim,) if scope_claim else _SCOPE) if name in claims), None)
    return Principal(
        subject=None if subject == client else subject,  # a program that acts for itself is no user
        client=client,
        issuer=issuer,
        scopes=read_scopes(scopes),
        claims=claims,
        expires_at=claims.get("exp"),
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs) or len(pairs) > MAX_MEMBERS:
        raise ValueError
    return found
