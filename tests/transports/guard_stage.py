"""Headers for a guard, and what it makes of them."""

from collections.abc import Callable

import pytest

from dovetail.errors import INVALID_REQUEST, ProtocolError
from dovetail.protocol.headers import Headers
from dovetail.transports.guard import (
    Guard,
)

LOCAL = ("127.0.0.1", 8000)
PUBLIC = ("192.0.2.7", 8000)

Lines = Callable[[], list[str]]


def headers(host: str | None = "localhost:8000", origin: str | None = None) -> Headers:
    given = {"host": host, "origin": origin}
    return Headers([(name.encode(), value.encode("latin-1")) for name, value in given.items() if value is not None])


def status(guard: Guard, host: str | None, origin: str | None = None, server=LOCAL) -> int:
    """200 if the guard lets it in, else the status of the refusal."""
    request = headers(host, origin)
    if guard.allows(request, server):
        guard.check(request, server)
        return 200
    with pytest.raises(ProtocolError) as refused:
        guard.check(request, server)
    assert refused.value.code == INVALID_REQUEST
    return refused.value.http_status
