"""Skills of a server: their entries, and files that are compared with what the server has listed."""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, overload
from urllib.parse import quote

import msgspec

from dovetail import extensions
from dovetail.client.session import Timeout
from dovetail.errors import BadResponse
from dovetail.protocol.types import ResourceContents
from dovetail.protocol.uri_template import normalize_uri

SKILL_FILE = "SKILL.md"


class SkillFile(msgspec.Struct, frozen=True):
    """A file of a skill, as the server lists it."""

    uri: str
    digest: Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]
    size: Annotated[int, msgspec.Meta(ge=0)]


class WireSkill(msgspec.Struct, frozen=True):
    """An entry of `skills/list`."""

    uri: str
    frontmatter: dict[str, Any]
    resources: list[SkillFile] | Literal["dynamic"]


class WireSkillResult(msgspec.Struct, frozen=True):
    skill: WireSkill


SKILLS = ("skills/list", "skills", WireSkill)


class Skill:
    """A skill of a server. Nothing of it is read before `read` is called.

    `resources` are its files, or "dynamic" if the server can't say what is in them.
    """

    def __init__(self, entry: WireSkill, read_resource: Callable[..., Awaitable[list[ResourceContents]]]) -> None:
        self.uri = entry.uri  # of its SKILL.md
        self.frontmatter: Mapping[str, Any] = entry.frontmatter
        self.resources: Sequence[SkillFile] | Literal["dynamic"] = entry.resources
        self._files = [] if isinstance(entry.resources, str) else entry.resources
        self._read_resource = read_resource

    @property
    def name(self) -> str:
        return str(self.frontmatter.get("name", ""))

    @property
    def description(self) -> str:
        return str(self.frontmatter.get("description", ""))

    def __repr__(self) -> str:
        return f"Skill({self.uri!r})"

    @overload
    async def read(self, *, timeout: Timeout = "default") -> str: ...
    @overload
    async def read(self, path: str, *, timeout: Timeout = "default") -> str | bytes: ...
    async def read(self, path: str = SKILL_FILE, *, timeout: Timeout = "default") -> str | bytes:
        """Read SKILL.md, or a file by its path beside it: text as text, other bytes as bytes.

        Raises BadResponse for a file that the entry does not list, and for any difference from the entry: size,
        digest, or front matter. A dynamic skill has no list, so only its SKILL.md can be read, and compared.
        """
        uri = normalize_uri(self.uri.removesuffix(SKILL_FILE) + quote(path))
        listed = [file for file in self._files if normalize_uri(file.uri) == uri]
        is_known = listed or (self.resources == "dynamic" and path == SKILL_FILE)
        if not is_known or not self.uri.endswith(f"/{SKILL_FILE}"):
            raise BadResponse(f"{self.uri}: the server lists no file {path!r:.200} of this skill, so it is not read")
        found = await self._read_resource(listed[0].uri if listed else self.uri, fresh=True, timeout=timeout)
        if len(found) != 1 or normalize_uri(found[0].uri) != uri:
            raise BadResponse(f"{uri}: the server answered with the contents of something else")
        text, raw = found[0].text, found[0].blob or b""
        if text is not None:
            raw = text.encode(errors="surrogatepass")
        for file in listed:
            if len(raw) != file.size:
                raise self._differs(uri, f"{file.size:,} bytes are listed, and it has {len(raw):,}")
            if file.digest != f"sha256:{hashlib.sha256(raw).hexdigest()}":
                raise self._differs(uri, "its digest is another one")
        if uri == normalize_uri(self.uri):
            self._compare_front_matter(uri, text)
        return raw if text is None else text

    def _compare_front_matter(self, uri: str, text: str | None) -> None:
        if text is None:
            raise self._differs(uri, "it is no text")
        try:
            fields = extensions.frontmatter.read_front_matter(text).fields
            names = sorted({*fields, *self.frontmatter})
            wrong = [name for name in names if _as_json(fields, name) != _as_json(self.frontmatter, name)]
        except (ValueError, RecursionError) as problem:
            raise self._differs(uri, f"its front matter can't be compared, {problem}") from None
        if wrong:
            raise self._differs(uri, f"its front matter has another {', '.join(wrong)[:200]}")

    def _differs(self, uri: str, problem: str) -> BadResponse:
        return BadResponse(f"{uri} is not what the server has listed: {problem}; list the skills again, and look at it")


def _as_json(fields: Mapping[str, Any], name: str) -> str | None:
    """A field as JSON with one type of numbers: 1 is 1.0, but not true. None if it is missing."""
    return json.dumps(json.loads(json.dumps(fields[name]), parse_int=float), sort_keys=True) if name in fields else None
