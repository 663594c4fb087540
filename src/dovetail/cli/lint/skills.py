"""Rules of skills: what hosts refuse to load, links that lead nowhere, and secrets in files."""

import posixpath
import re
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING
from urllib.parse import unquote

from dovetail.cli.lint.rules import Finding
from dovetail.engine.redaction import REDACTED, Redactor
from dovetail.errors import BadResponse, ServerError
from dovetail.extensions.frontmatter import read_front_matter
from dovetail.extensions.skills import ID, MAX_BYTES, MAX_FILES, SKILL_FILE, problems_of, warnings_of
from dovetail.protocol.extensions import declared_extensions

if TYPE_CHECKING:
    from dovetail.client import Client, Skill

MAX_LINE = 20_000  # characters that are searched for secrets
_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!<?(?:[A-Za-z][A-Za-z0-9+.-]*:|[/#]))(<[^>#?\n]+|[^)\s>#?]+)")


async def check_skills(client: "Client") -> list[Finding]:
    """The findings in all skills of a server, whose files are read for it; none if it does not declare any."""
    try:
        skills = await client.list_skills() if ID in declared_extensions(client.capabilities) else []
    except (BadResponse, ServerError) as problem:
        return [Finding("list-malformed", "all skills", str(problem))]
    return [finding for skill in skills async for finding in check_skill(skill)]


async def check_skill(skill: "Skill") -> AsyncIterator[Finding]:
    place, folder = f"skill {skill.uri}", skill.uri.removesuffix(SKILL_FILE)
    for problem in problems_of(skill.frontmatter, unquote(folder.rstrip("/").rpartition("/")[2])):
        yield Finding("skill-invalid", place, problem)
    listed = [] if isinstance(skill.resources, str) else skill.resources
    if len(listed) > MAX_FILES or sum(file.size for file in listed) > MAX_BYTES:
        yield Finding("skill-size", place, f"{len(listed)} files, {sum(file.size for file in listed):,} bytes")
    paths = [unquote(file.uri.removeprefix(folder)) for file in listed] or [SKILL_FILE]
    for path in paths[:MAX_FILES]:
        try:
            found = await skill.read(path)
        except (BadResponse, ServerError) as problem:
            yield Finding("skill-unreadable", place, str(problem))
            return
        text = found if isinstance(found, str) else ""
        if (number := _line_with_secret(text)) is not None:
            yield Finding("skill-secret", place, f"{path}, line {number}")
        if path == SKILL_FILE:
            for detail in warnings_of(read_front_matter(text)):
                yield Finding("skill-doubtful", place, detail)
            for link in _broken_links(text, paths) if listed else ():
                yield Finding("skill-link", place, link)


def _broken_links(text: str, paths: Iterable[str]) -> list[str]:
    """Links of a SKILL.md to what is none of its files or folders."""
    links = dict.fromkeys(link.lstrip("<") for link in _LINK.findall(_CODE.sub("", text)))
    known = {*paths, *(path[:at] for path in paths for at in range(len(path)) if path[at] == "/"), "."}
    return [link for link in links if posixpath.normpath(unquote(link)) not in known]


def _line_with_secret(text: str) -> int | None:
    redactor = Redactor()
    lines = enumerate(text.splitlines(), 1)
    return next((n for n, line in lines if redactor.text(line[:MAX_LINE]).count(REDACTED) > line.count(REDACTED)), None)
