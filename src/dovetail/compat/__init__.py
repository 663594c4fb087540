"""Programs written for FastMCP or the official SDK, on Dovetail: the peers' module paths and names, as adapters.

`dovetail.compat.fastmcp` and `dovetail.compat.mcp` have all names of a peer. Each of the peer's module paths below one
of them is a view of it, so `from dovetail.compat.fastmcp.server.auth import JWTVerifier` works as it did there.
`MODULES` of a peer has the words of which its module paths consist.
"""

import importlib
import importlib.util
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
PEERS = ("dovetail.compat.fastmcp", "dovetail.compat.mcp")
TYPES = "dovetail.compat.mcp.types"  # the SDK's wire types are a package of their own: mcp_types


class PeerModules(MetaPathFinder, Loader):
    """Makes a module of each path below a peer's; its names are those of the peer's package."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        if not fullname.startswith(tuple(f"{peer}." for peer in PEERS)):
            return None
        if f"{fullname}.".startswith(f"{TYPES}."):
            is_known = importlib.util.find_spec(_wire_types(fullname)) is not None
        else:
            is_known = _peer(fullname).MODULES.issuperset(fullname.split(".")[3:])
        return ModuleSpec(fullname, self, is_package=True) if is_known else None

    def exec_module(self, module: ModuleType) -> None:
        if f"{module.__name__}.".startswith(f"{TYPES}."):
            source = importlib.import_module(_wire_types(module.__name__))
            module.__dict__.update({name: each for name, each in vars(source).items() if not name.startswith("__")})
            return
        peer = _peer(module.__name__)

        def find(name: str) -> Any:
            if name.startswith("__") or (name in peer.MODULES and name not in vars(peer)):
                raise AttributeError(name)  # the import system looks for a module then
            return getattr(peer, name)

        module.__getattr__ = find  # type: ignore[method-assign]


def _peer(fullname: str) -> ModuleType:
    return importlib.import_module(".".join(fullname.split(".")[:3]))


def _wire_types(fullname: str) -> str:
    return "mcp_types" + fullname.removeprefix(TYPES)


def no_equal(name: str, page: str, reason: str = "") -> ImportError:
    """The error for a name of a peer that has no equal here; `page` of the docs compares the peer with Dovetail."""
    return ImportError(f'{name} has no equal in Dovetail{reason and f": {reason}"}; see the page "{page}" of its docs')


sys.meta_path.append(PeerModules())
