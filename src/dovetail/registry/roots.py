"""`Roots`, the request for a client's roots, and `Root`, which knows the path of its file URI."""

import os
import re
from pathlib import Path, PurePath
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

import msgspec

from dovetail.errors import QuestionFailed
from dovetail.protocol.elicitation import ServerRequest
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.protocol.revisions import Revision
from dovetail.schema.explain import problems_in

METHOD = "roots/list"
MAX_ROOTS = 1_000
_ON_WINDOWS = os.name == "nt"

# Host and path. A query or fragment would be lost in a path, and a lone % is no valid encoding.
_FILE_URI = re.compile(r"(?i:file)://([A-Za-z0-9][A-Za-z0-9.-]*)?(/(?:[^?#%\0]|%(?!00)[0-9A-Fa-f]{2})*)")
_DRIVE = re.compile(r"/([A-Za-z])[:|](/.*|)", re.DOTALL)


class Root(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder or file that the client lets servers work on."""

    uri: str
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.uri, str):
            raise TypeError(f"Root: uri must be a string, not {type(self.uri).__name__}; Path(…).as_uri() makes one")
        if not _FILE_URI.fullmatch(self.uri):
            raise ValueError(f"uri={self.uri[:80]!r} must be a file:// URI such as file:///home/me/project")
        self.uri.encode()  # raises for lone surrogates

    @property
    def path(self) -> Path:
        """The path on this machine; raises ValueError if the URI names another machine, or no path of this system.

        A share or a device of Windows has none: to open it would contact the host that the client names.
        """
        return Path(local_path(self.uri, windows=_ON_WINDOWS))

    def contains(self, path: str | os.PathLike[str]) -> bool:
        """Whether a path, absolute or relative to the root, leads to the root or below it after all symlinks."""
        return uri_contains(self.uri, path, windows=_ON_WINDOWS)


def uri_contains(uri: str, path: str | os.PathLike[str], *, windows: bool) -> bool:
    try:
        root = Path(local_path(uri, windows=windows)).resolve()
        joined = root / path
        return is_on_drive(joined) and joined.resolve().is_relative_to(root)
    except (OSError, ValueError, RuntimeError):  # no such path, or a loop of symlinks
        return False


def is_on_drive(path: PurePath) -> bool:
    """Whether an unresolved path is no share or device: their drive is longer than `C:`; POSIX paths have none."""
    return len(path.drive) <= len("C:")


def local_path(uri: str, *, windows: bool) -> str:
    """The path of a file URI on Windows or on POSIX; raises ValueError if there is none."""
    found = _FILE_URI.fullmatch(uri)
    if found is None:
        raise ValueError(f"{uri[:80]!r} is no file:// URI")
    host = (found[1] or "").lower()
    if host not in ("", "localhost"):
        raise ValueError(f"{uri[:80]!r} is on another machine, {host!r}")
    path = unquote_to_bytes(found[2])
    if not windows:
        return os.fsdecode(b"/" + path.lstrip(b"/"))
    on_drive = _DRIVE.fullmatch(path.decode())
    if on_drive is None:
        raise ValueError(f"{uri[:80]!r} has no drive, as in file:///C:/work")
    return f"{on_drive[1]}:{on_drive[2] or '/'}"


class _Result(msgspec.Struct, frozen=True):
    roots: Annotated[list[Root], msgspec.Meta(max_length=MAX_ROOTS)]


_decode_result = msgspec.json.Decoder(_Result).decode


class Roots:
    """The request for the client's roots."""

    server_request = ServerRequest(method=METHOD, params={}, requires=("roots",))

    def params(self, revision: Revision) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def read(self, result: bytes | msgspec.Raw, revision: Revision) -> list[Root]:  # noqa: ARG002
        """The client's roots. Raises QuestionFailed unless all of them are file:// URIs."""
        try:
            return _decode_result(result).roots
        except UNREADABLE as failure:
            path, words = problems_in(failure)[0]
            place = path.lstrip(".") or "the result"
            raise QuestionFailed(f"The client's answer to {METHOD} can't be used: {place}: {words}") from None
