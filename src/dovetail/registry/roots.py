"""The places that a client works in: `Roots` asks for them, each comes out as a `Root` that knows its path."""

import os
import re
from pathlib import Path, PurePath
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

import msgspec

from dovetail.errors import QuestionFailed
from dovetail.protocol.elicitation import ClientRequest
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.protocol.revisions import Revision
from dovetail.schema.explain import problems_in

METHOD = "roots/list"
MAX_ROOTS = 1_000
WINDOWS = os.name == "nt"

# Host and path. What follows a ? or # would be lost on the way to a path, and a lone % means nobody knows what.
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
        self.uri.encode()  # raises for half characters

    @property
    def path(self) -> Path:
        """Where it is on this machine; raises ValueError if it names another one, or nothing this system can name.

        On Windows that is a path on a drive, as in `file:///C:/work`. A share (`file://host/share`) or a device has
        its `uri`, but no path: to look there would call up whatever host the client names.
        """
        return Path(local_path(self.uri, windows=WINDOWS))

    def contains(self, path: str | os.PathLike[str]) -> bool:
        """Whether a path, from here or from the top, leads to this root or below it, once all links are followed.

        A root without a path contains nothing; and on Windows, nothing that is not on a drive is in any root.
        """
        try:
            root = self.path.resolve()
            asked = root / path
            return is_on_a_drive(asked) and asked.resolve().is_relative_to(root)
        except (OSError, ValueError, RuntimeError):  # it leads nowhere
            return False


def is_on_a_drive(path: PurePath) -> bool:
    """Asked before anybody looks there: a share or a device has a longer name before its path, and POSIX has none."""
    return len(path.drive) <= len("C:")


def local_path(uri: str, *, windows: bool) -> str:
    """The path that a file URI stands for on one of the two kinds of systems; raises ValueError if there is none."""
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


class _Answer(msgspec.Struct, frozen=True):
    roots: Annotated[list[Root], msgspec.Meta(max_length=MAX_ROOTS)]


_read_answer = msgspec.json.Decoder(_Answer).decode


class Roots:
    """The question where a client works."""

    client_request = ClientRequest(method=METHOD, params={}, requires=("roots",))

    def params(self, revision: Revision) -> dict[str, Any]:  # noqa: ARG002
        """The same in every revision."""
        return {}

    def read(self, result: bytes | msgspec.Raw, revision: Revision) -> list[Root]:  # noqa: ARG002
        """The client's roots. Raises QuestionFailed unless all of them are file:// URIs."""
        try:
            return _read_answer(result).roots
        except UNREADABLE as failure:
            path, words = problems_in(failure)[0]
            place = path.lstrip(".") or "the result"
            raise QuestionFailed(f"The client's answer to {METHOD} can't be used: {place}: {words}") from None
