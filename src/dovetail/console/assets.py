"""What the browser loads: the files of `static/` come in, each with its type and a tag, and go out as answers.

They are read once. A name is looked up and never made into a path, so nothing else can be reached.
"""

import hashlib
from importlib.resources import files
from typing import NamedTuple

from dovetail.transports.routes import PageResponse

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}
PAGE = "index.html"


class Asset(NamedTuple):
    """One file."""

    body: bytes
    type: str
    tag: str  # changes with its content

    def answer(self, known_tags: str, headers: dict[str, str]) -> PageResponse:
        """The file, or nothing if the browser has it; it asks each time, for a newer version may be installed."""
        told = {**headers, "etag": self.tag, "cache-control": "no-cache"}
        if self.tag in known_tags:
            return PageResponse(b"", 304, told, self.type)
        return PageResponse(self.body, 200, told, self.type)


def load_assets() -> dict[str, Asset]:
    """By their names; a file of any other type is not for browsers."""
    folder = files("dovetail.console").joinpath("static")
    kinds = [(each, TYPES.get(each.name.rpartition(".")[2])) for each in folder.iterdir() if each.is_file()]
    return {each.name: _asset(each.read_bytes(), kind) for each, kind in kinds if kind is not None}


def _asset(body: bytes, kind: str) -> Asset:
    return Asset(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
