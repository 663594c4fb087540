"""`WWW-Authenticate`: a refusal comes in, and the header that says what would help goes out."""

from collections.abc import Iterable

from dovetail.auth.metadata import told_scopes
from dovetail.errors import Unauthorized

DPOP_ERRORS = frozenset({"invalid_dpop_proof", "use_dpop_nonce"})  # which mean nothing to who sends no proofs
_QUOTED = {ord('"'): '\\"', ord("\\"): "\\\\"}


def challenge(
    refusal: Unauthorized,
    *,
    scheme: str = "Bearer",
    metadata_url: str | None = None,
    scopes: frozenset[str] = frozenset(),
    algs: str | None = None,
) -> bytes:
    """RFC 6750, RFC 9728, RFC 9449: what is wrong, which scopes would do, and where to find out more.

    `scopes`: what is needed besides, whatever was asked for: with fewer, the next request would be refused again.
    """
    error = None if scheme == "Bearer" and refusal.error in DPOP_ERRORS else refusal.error
    parts = {
        "error": error,
        "error_description": refusal.message if error else None,
        "scope": " ".join(told_scopes(refusal.scopes | scopes) or ()) or None,
        "resource_metadata": metadata_url,
        "algs": algs,
    }
    return f"{scheme} {_parameters(parts.items())}".rstrip().encode("ascii", "replace")


def _parameters(parts: Iterable[tuple[str, str | None]]) -> str:
    return ", ".join(f'{name}="{_quoted(value)}"' for name, value in parts if value is not None)


def _quoted(value: str) -> str:
    """No header can hold a line break, and nothing here may end its quotes."""
    return "".join(character for character in value if " " <= character <= "~").translate(_QUOTED)
