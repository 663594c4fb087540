"""Programs written for FastMCP or the official SDK, on Dovetail: the peers' module paths and names, as adapters.

`dovetail.compat.fastmcp` and `dovetail.compat.mcp` have all names of a peer. Each of the peer's module paths below one of
them is a view of it, so `from dovetail.compat.fastmcp.server.auth import JWTVerifier` works as it did there.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PEERS = ("dovetail.compat.fastmcp", "dovetail.compat.mcp")


class PeerModules(MetaPathFinder, Loader):
    """Makes a module of each path below a peer's; its names are those of the peer's package."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        is_below = fullname.startswith(tuple(f"{peer}." for peer in PEERS))
        return ModuleSpec(fullname, self, is_package=True) if is_below else None

    def exec_module(self, module: ModuleType) -> None:
        peer = importlib.import_module(".".join(module.__name__.split(".")[:3]))

        def find(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(peer, name)

        module.__getattr__ = find  # type: ignore[method-assign]


def no_equal(name: str, page: str, reason: str = "") -> ImportError:
    """The error for a name of a peer that Dovetail has not."""
    return ImportError(f'{name} has no equal in Dovetail{reason and f": {reason}"}; see the page "{page}" of its docs')


sys.meta_path.append(PeerModules())
