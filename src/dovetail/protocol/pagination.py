"""Pagination cursors, signed so that the server stores nothing, and base64url (RFC 7515, appendix C)."""

import base64
import struct
from collections.abc import Sequence

from dovetail.errors import INVALID_PARAMS, ProtocolError


def encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64url(text: str) -> bytes:
    """Raises ValueError unless it is the canonical spelling: one value must not have two texts."""
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if encode_base64url(data) != text:
        raise ValueError("no Base64 for URLs")
    return data


CURSOR_TTL = 24 * 3600  # seconds
CLOCK_SKEW = 60  # seconds that another worker's clock may be ahead
_BODY = struct.Struct(">QI")  # registration number of the last item sent, time of issue
_SIGNATURE_BYTES = 16


def encode_cursor(position: int, *, scope: str, key: bytes, now: float) -> str:
    """Points behind the item with registration number `position` of the list `scope`."""
    return _signed(_BODY.pack(position, int(now)), scope, key).decode()


def decode_cursor(cursor: str | None, *, scope: str, keys: Sequence[bytes], now: float) -> int:
    """The position in a cursor that one of the keys signed; 0, the first page, for none or an empty one."""
    if not cursor:
        return 0
    try:
        given = cursor.encode("ascii")
        body = base64.urlsafe_b64decode(given)[: _BODY.size]
        position, issued = _BODY.unpack(body)
    except (ValueError, struct.error):
        raise _invalid() from None
    import hmac  # late: it brings OpenSSL, and few clients send a cursor

    # The whole cursor is made again and compared: Base64 has several spellings of the same bytes.
    ours = any(hmac.compare_digest(given, _signed(body, scope, key)) for key in keys)
    if not ours or not -CLOCK_SKEW <= now - issued <= CURSOR_TTL:
        raise _invalid()
    return int(position)


def _signed(body: bytes, scope: str, key: bytes) -> bytes:
    import hmac

    signature = hmac.digest(key, scope.encode() + b"\0" + body, "sha256")[:_SIGNATURE_BYTES]
    return base64.urlsafe_b64encode(body + signature)


def _invalid() -> ProtocolError:
    return ProtocolError("Invalid or expired cursor; start again without one", code=INVALID_PARAMS)
