"""The folders and files that a server may work on: what the user names comes in, roots as the server is told go out."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.client.calling import outcome_of
from dovetail.errors import SetupError

RootLike = str | Path | Mapping[str, Any]  # a path, a file:// URI, or {"uri": …, "name": …}
RootSource = Sequence[RootLike] | Callable[[], Sequence[RootLike] | Awaitable[Sequence[RootLike]]]


class RootList:
    """Named once, or by a function that is called whenever the server asks."""

    def __init__(self, source: RootSource) -> None:
        self._source = source if callable(source) else _read(source)

    async def answer(self) -> dict[str, Any]:
        roots = self._source
        return {"roots": _read(await outcome_of(roots)) if callable(roots) else roots}


def _read(roots: Sequence[RootLike]) -> list[dict[str, Any]]:
    if isinstance(roots, (str, bytes, Path, Mapping)) or not isinstance(roots, Sequence):
        raise SetupError(f"Client: roots= must be a list of paths, not {type(roots).__name__}")
    return [_root(root) for root in roots]


def _root(root: Any) -> dict[str, Any]:
    if isinstance(root, Path):
        return {"uri": root.absolute().as_uri()}
    if isinstance(root, str):
        return {"uri": _checked(root) if "://" in root else Path(root).absolute().as_uri()}
    uri = root.get("uri") if isinstance(root, Mapping) else None
    if isinstance(uri, str):
        return {**root, "uri": _checked(uri)}
    raise SetupError(f'Client: roots=[{root!r}]: use a path, a file:// URI or {{"uri": …, "name": …}}')


def _checked(uri: str) -> str:
    if not uri.lower().startswith("file://"):
        raise SetupError(f"Client: roots=[{uri!r}]: the URI of a root has to begin with file://")
    return uri
