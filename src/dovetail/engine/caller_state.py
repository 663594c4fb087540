"""State of a caller that outlives its calls: `ctx.state`."""

import hashlib
import os

import msgspec

from dovetail.engine.request_context import RequestContext


def state_owner(context: RequestContext) -> str | None:
    """The key of the caller: its user, else its program, else its session, on stdio the local user; None if unknown."""
    principal, request = context.principal, context.request
    parts: tuple[str | None, ...]
    if principal is not None:
        if principal.subject is not None:
            parts = ("user", principal.issuer, principal.subject)
        elif principal.client is not None:
            parts = ("client", principal.issuer, principal.client)
        else:
            parts = ("principal", principal.key)
    elif request.headers is None and context.locate is None:  # no network: stdio, or in process
        parts = ("local", str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", ""))
    elif request.session is not None:
        parts = ("session", request.session.id)
    else:
        return None
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]
