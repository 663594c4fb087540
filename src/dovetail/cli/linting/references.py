"""A schema comes in, as some server wrote it; what its references lead to goes out.

As JSON Schema 2020-12 says: a reference is a URI that counts from the `$id` around it. Its fragment is a JSON pointer
with percent-escapes, or an anchor. Nothing is fetched, so what is not in the document is nowhere.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from dovetail.cli.linting.walk import Schema, parts

KEYWORDS = ("$ref", "$dynamicRef")
ANCHORS = ("$anchor", "$dynamicAnchor")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


class References:
    """The schemas of one document, by the URIs that lead to them."""

    def __init__(self, root: Schema) -> None:
        self._documents: dict[str, Schema] = {"": root}
        self._anchors: dict[tuple[str, str], Schema] = {}
        self._bases: dict[tuple[str, ...], str] = {(): ""}
        for part in parts(root):
            base = self.base_of(part.path)
            named = part.schema.get("$id")
            if isinstance(named, str) and named.startswith("#"):  # an anchor, up to draft 7
                self._anchors[base, named[1:]] = part.schema
            elif isinstance(named, str):
                base = self._bases[part.path] = _joined(base, named)[0]
                self._documents.setdefault(base, part.schema)
            for anchor in ANCHORS:
                if isinstance(part.schema.get(anchor), str):
                    self._anchors[base, part.schema[anchor]] = part.schema

    def base_of(self, path: tuple[str, ...]) -> str:
        """The URI that references in a part count from."""
        if len(self._bases) == 1:  # as almost everywhere
            return self._bases[()]
        return next(self._bases[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self._bases)

    def meant(self, reference: Any, path: tuple[str, ...] = ()) -> Any | None:
        """The schema that a reference in the part at `path` leads to; None if it is not in the document."""
        if not isinstance(reference, str):
            return None
        base, fragment = _joined(self.base_of(path), reference)
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._anchors.get((base, fragment))
        found = _pointed_at(fragment, self._documents.get(base))
        return found if isinstance(found, (Mapping, bool)) else None


def _joined(base: str, reference: str) -> tuple[str, str]:
    """The URI of the document, and the fragment in it."""
    if reference.startswith("#"):
        return base, reference[1:]  # of any scheme; `urljoin` knows those of the web only
    try:
        uri, fragment = urldefrag(urljoin(base, reference))
    except ValueError:
        return reference, ""  # it is no URI, and leads nowhere
    return uri, fragment


def _pointed_at(pointer: str, document: Any) -> Any | None:
    found = document
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and _INDEX.fullmatch(key) and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, Mapping) and key in found:
            found = found[key]
        else:
            return None
    return found
