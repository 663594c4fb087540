"""Programs written for FastMCP or the official SDK, on Dovetail: the peers' module paths and names, as adapters.

`dovetail.compat.fastmcp` and `dovetail.compat.mcp` have all names of a peer. Each of the peer's module paths below one
of them is a view of it, so `from dovetail.compat.fastmcp.server.auth import JWTVerifier` works as it did there.
`MODULES` of a peer are the last words of paths that name a module where a name of the peer may be meant, too.
"""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dovetail._lazy import lazy_modules

if TYPE_CHECKING:
    from dovetail.compat import fastmcp_auth as fastmcp_auth
    from dovetail.compat import mcp_context as mcp_context

__getattr__ = lazy_modules(__name__, "fastmcp_auth", "mcp_context")
PEERS = ("dovetail.compat.fastmcp.", "dovetail.compat.mcp.")
TYPES = "dovetail.compat.mcp.types"  # the SDK's wire types are a package of their own: mcp_types


class PeerModules(MetaPathFinder, Loader):
    """Makes a module of each path below a peer's; its names are those of the peer's package, or of mcp_types."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        is_path = fullname.startswith(PEERS) and "__" not in fullname
        return ModuleSpec(fullname, self, is_package=True) if is_path else None

    def exec_module(self, module: ModuleType) -> None:
        source = _source(module.__name__)

        def find(name: str) -> Any:
            is_module = name in getattr(source, "MODULES", ()) and name not in vars(source)
            if (name.startswith("__") and name != "__all__") or is_module:
                raise AttributeError(name)  # the import system looks for a module then
            return getattr(source, name)

        module.__getattr__ = find  # type: ignore[method-assign]


def _source(fullname: str) -> ModuleType:
    is_types = fullname.startswith(TYPES)
    name = "mcp_types" + fullname.removeprefix(TYPES) if is_types else ".".join(fullname.split(".")[:3])
    return importlib.import_module(name)


def no_equal(name: str, page: str, reason: str = "") -> ImportError:
    """The error for a name of a peer that has no equal here; `page` of the docs compares the peer with Dovetail."""
    return ImportError(f'{name} has no equal in Dovetail{reason and f": {reason}"}; see the page "{page}" of its docs')


sys.meta_path.append(PeerModules())
