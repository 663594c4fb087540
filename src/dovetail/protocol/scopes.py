"""OAuth scopes: checked where an author or a token gives them."""

import re
from collections.abc import Iterable

from dovetail.errors import SetupError

MAX_SCOPES = 1000  # in one token
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")  # RFC 6749, 3.3


def checked_scopes(given: object, where: str) -> frozenset[str]:
    """The scopes that an author gives; one string is one scope. Raises SetupError."""
    words = [given] if isinstance(given, str) else given
    if not isinstance(words, Iterable):
        raise SetupError(f'{where}: scopes={given!r} is not possible; write scopes=["notes:write"]')
    scopes = list(words)
    for scope in scopes:
        if not isinstance(scope, str) or not _SCOPE.fullmatch(scope):
            raise SetupError(f"{where}: {scope!r} can't be a scope; it is printable ASCII without spaces and quotes")
    return frozenset(scopes)


def read_scopes(claim: object) -> frozenset[str]:
    """The scopes in a token's claim: words in one string (RFC 6749), or a list, as some servers write."""
    words = claim.split(" ") if isinstance(claim, str) else claim if isinstance(claim, list) else []
    good = [word for word in words[:MAX_SCOPES] if isinstance(word, str) and _SCOPE.fullmatch(word)]
    return frozenset(good)
