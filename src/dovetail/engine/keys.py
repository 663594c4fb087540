"""The secrets of a server: an option, the environment or chance goes in, bytes come out. They are never shown."""

import os
from collections.abc import Mapping, Sequence

from dovetail.errors import SetupError

VARIABLE = "DOVETAIL_SECRET"
SHORTEST = 16  # bytes
_GOOD_ONE = """python -c "import secrets; print(secrets.token_urlsafe(32))" makes a good one"""


class Secrets(tuple[bytes, ...]):
    """The first one seals and signs, all of them open. Wherever this is printed, they are not."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} hidden>"


def checked_secrets(given: object, where: str) -> Secrets:
    """One secret or a sequence of them; raises SetupError for what is no secret, or too short to be one."""
    several = given if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]
    secrets = Secrets(dict.fromkeys(_checked(each, where) for each in several))
    if not secrets:
        raise SetupError(f"{where} must be one secret at least; {_GOOD_ONE}")
    return secrets


def secrets_in(environ: Mapping[str, str]) -> Secrets:
    """What stands in DOVETAIL_SECRET, divided by commas or blanks; none if it is not set, or empty."""
    text = environ.get(VARIABLE)
    return checked_secrets(text.replace(",", " ").split(), VARIABLE) if text else Secrets()


def random_secrets() -> Secrets:
    return Secrets([os.urandom(32)])


def _checked(given: object, where: str) -> bytes:
    # No message shows what was given, and no other exception does: hence `from None`.
    try:
        secret = given.encode() if isinstance(given, str) else given
    except UnicodeEncodeError:
        raise SetupError(f"{where} is not text: it holds half a surrogate pair; {_GOOD_ONE}") from None
    if not isinstance(secret, bytes):
        raise SetupError(f"{where} must be a string or bytes, or a list of them, the first of which seals")
    if len(secret) < SHORTEST:
        raise SetupError(f"{where} must be at least {SHORTEST} bytes long (each of them); {_GOOD_ONE}")
    return secret
