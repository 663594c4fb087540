"""Authentication: verifiers of tokens, and `Auth`, all loaded at their first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.auth.api_keys import ApiKeys as ApiKeys
    from dovetail.auth.introspection import Introspection as Introspection
    from dovetail.auth.jwt import Jwt as Jwt
    from dovetail.auth.principal import Principal as Principal
    from dovetail.auth.principal import Verifier as Verifier
    from dovetail.auth.principal import VerifierUnavailable as VerifierUnavailable
    from dovetail.auth.settings import Auth as Auth

_MODULES = {
    "ApiKeys": "api_keys",
    "Auth": "settings",
    "Introspection": "introspection",
    "Jwt": "jwt",
    "Principal": "principal",
    "Verifier": "principal",
    "VerifierUnavailable": "principal",
}
__all__ = ["ApiKeys", "Auth", "Introspection", "Jwt", "Principal", "Verifier", "VerifierUnavailable"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
