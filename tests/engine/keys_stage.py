"""Two secrets, and which a server has."""

from typing import Any

from dovetail import Server

ONE, TWO = "the first secret of two", "the second secret of two"


def secrets_of(**options: Any) -> tuple[bytes, ...]:
    return Server("x", **options).engine.secrets
