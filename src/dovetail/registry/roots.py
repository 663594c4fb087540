"""The places that a client works in: `Roots` asks for them, each comes out as a `Root` that knows its path."""

import os
import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

import msgspec

from dovetail.errors import QuestionFailed
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.protocol.questions import Question
from dovetail.protocol.revisions import Revision
from dovetail.registry.misfits import misfits

METHOD = "roots/list"
MAX_ROOTS = 1_000

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
        """Where it is on this machine; raises ValueError if it names another one, or nothing this system can name."""
        return Path(local_path(self.uri, windows=os.name == "nt"))

    def contains(self, path: str | os.PathLike[str]) -> bool:
        """Whether a path, from here or from the top, leads to this root or below it, once all links are followed."""
        try:
            root = self.path.resolve()
            return (root / path).resolve().is_relative_to(root)
        except (OSError, ValueError, RuntimeError):  # it leads nowhere
            return False


def local_path(uri: str, *, windows: bool) -> str:
    """The path that a file URI stands for on one of the two kinds of systems; raises ValueError if there is none."""
    found = _FILE_URI.fullmatch(uri)
    if found is None:
        raise ValueError(f"{uri[:80]!r} is no file:// URI")
    host = (found[1] or "").lower()
    decoded = unquote_to_bytes(found[2])
    if host in ("", "localhost"):
        return _windows_path(decoded.decode()) if windows else os.fsdecode(b"/" + decoded.lstrip(b"/"))
    if not windows:
        raise ValueError(f"{uri[:80]!r} is on another machine, {host!r}")
    return f"//{host}{decoded.decode()}"


def _windows_path(path: str) -> str:
    found = _DRIVE.fullmatch(path)
    return f"{found[1]}:{found[2] or '/'}" if found else path


class _Answer(msgspec.Struct, frozen=True):
    roots: Annotated[list[Root], msgspec.Meta(max_length=MAX_ROOTS)]


_read_answer = msgspec.json.Decoder(_Answer).decode


class Roots:
    """The question where a client works."""

    question = Question(method=METHOD, params={}, requires=("roots",))

    def params(self, revision: Revision) -> dict[str, Any]:  # noqa: ARG002
        """The same in every revision."""
        return {}

    def read(self, result: bytes | msgspec.Raw, revision: Revision) -> list[Root]:  # noqa: ARG002
        """The client's roots. Raises QuestionFailed unless all of them are file:// URIs."""
        try:
            return _read_answer(result).roots
        except UNREADABLE as failure:
            path, words = misfits(failure)[0]
            place = path.lstrip(".") or "the result"
            raise QuestionFailed(f"The client's answer to {METHOD} can't be used: {place}: {words}") from None
