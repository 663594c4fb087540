"""Base64 for URLs, without padding (RFC 7515, appendix C): bytes go in and text comes out, and back."""

import base64


def encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64url(text: str) -> bytes:
    """Raises ValueError unless it is the one right spelling: others of the same bytes would make two texts of one."""
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if encode_base64url(data) != text:
        raise ValueError("no Base64 for URLs")
    return data
