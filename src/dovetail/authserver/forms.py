"""What a request says: a query or a form comes in, its fields go out, each of them once."""

from urllib.parse import parse_qsl

from dovetail.authserver.refusals import OAuthRefusal
from dovetail.transports.routes import PageRequest

FORM = "application/x-www-form-urlencoded"
MAX_FIELDS = 50
MAX_BYTES = 32 * 1024


def query_fields(request: PageRequest) -> dict[str, str]:
    return _fields(request.scope.get("query_string", b""))


async def form_fields(request: PageRequest) -> dict[str, str]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM:
        raise OAuthRefusal("invalid_request", f"The body must be {FORM}", status=415)
    return _fields(await request.body())


def _fields(raw: bytes) -> dict[str, str]:
    """Empty ones count as not given (RFC 6749, 3.1)."""
    if len(raw) > MAX_BYTES:
        raise OAuthRefusal("invalid_request", f"More than {MAX_BYTES} bytes", status=413)
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:
        raise OAuthRefusal("invalid_request", "The fields can't be read") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise OAuthRefusal("invalid_request", "A field came more than once")
    return {name: value for name, value in fields.items() if value}
