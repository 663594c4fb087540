"""The ways to reach a server. Each is loaded when it is first used: a server on stdio never loads HTTP."""

from typing import TYPE_CHECKING

from dovetail._lazy import lazy_modules

if TYPE_CHECKING:
    from dovetail.transports import serve as serve
    from dovetail.transports import stdio as stdio

__getattr__ = lazy_modules(__name__, "serve", "stdio")
