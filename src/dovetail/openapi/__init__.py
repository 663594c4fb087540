"""OpenAPI: the operations of an HTTP API as the tools of a server. `OpenApi` is loaded at its first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.openapi.openapi import OpenApi as OpenApi

__all__ = ["OpenApi"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("dovetail.openapi.openapi"), name)
