"""Who is asking: tokens come in, principals go out. What is remote is reached by a `fetch` that is passed in.

The public names. Each is loaded when it is first asked for: a server without `auth=` pays for nothing of this.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.auth.introspection import Introspection as Introspection
    from dovetail.auth.jwt import Jwt as Jwt
    from dovetail.auth.keys import ApiKeys as ApiKeys
    from dovetail.auth.principal import Principal as Principal
    from dovetail.auth.settings import Auth as Auth
    from dovetail.auth.verifier import Verifier as Verifier
    from dovetail.auth.verifier import VerifierTrouble as VerifierTrouble

_HOMES = {
    "ApiKeys": "keys",
    "Auth": "settings",
    "Introspection": "introspection",
    "Jwt": "jwt",
    "Principal": "principal",
    "Verifier": "verifier",
    "VerifierTrouble": "verifier",
}
__all__ = [
    "ApiKeys",
    "Auth",
    "Introspection",
    "Jwt",
    "Principal",
    "Verifier",
    "VerifierTrouble",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
