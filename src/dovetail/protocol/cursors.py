"""Pagination cursors: opaque, signed, without memory on the server. The key and the time are arguments."""

import base64
import hashlib
import hmac
import struct

from dovetail.errors import INVALID_PARAMS, ProtocolError

LIFETIME = 24 * 3600  # seconds; a client that pages is done long before
_BODY = struct.Struct(">QI")  # registration number of the last item sent, time of issue
_SIGNATURE = 16


def encode_cursor(position: int, *, scope: str, key: bytes, now: float) -> str:
    """Points behind the item with registration number `position`; `scope` names the list it belongs to."""
    body = _BODY.pack(position, int(now))
    return base64.urlsafe_b64encode(body + _sign(body, scope, key)).decode()


def decode_cursor(cursor: str | None, *, scope: str, key: bytes, now: float) -> int:
    """The position a cursor points behind; 0, the first page, for none or an empty one."""
    if not cursor:
        return 0
    try:
        data = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)
        body, signature = data[: _BODY.size], data[_BODY.size :]
        position, issued = _BODY.unpack(body)
    except (ValueError, struct.error):
        raise _invalid() from None
    if not hmac.compare_digest(signature, _sign(body, scope, key)) or not 0 <= now - issued + 60 <= LIFETIME:
        raise _invalid()
    return int(position)


def _sign(body: bytes, scope: str, key: bytes) -> bytes:
    return hmac.digest(key, scope.encode() + b"\0" + body, hashlib.sha256)[:_SIGNATURE]


def _invalid() -> ProtocolError:
    return ProtocolError("Invalid or expired cursor; start again without one", code=INVALID_PARAMS)
