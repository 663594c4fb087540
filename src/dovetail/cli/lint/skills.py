"""Rules of skills: what hosts refuse to load, links that lead nowhere, and secrets in files."""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from dovetail.cli.given_arguments import as_object
from dovetail.cli.lint.rules import Finding
from dovetail.engine.redaction import REDACTED, Redactor
from dovetail.errors import BadResponse, ServerError
from dovetail.extensions.frontmatter import FrontMatterError, read_front_matter
from dovetail.extensions.skills import ID, MAX_BYTES, MAX_FILES, NAME, RESERVED, SKILL_FILE
from dovetail.protocol.extensions import declared_extensions

if TYPE_CHECKING:
    from dovetail.client import Client, Skill

MAX_DESCRIPTION = 1_024  # characters, in the format of Agent Skills
MAX_LINES = 500  # of a SKILL.md, which is read as a whole
MAX_LINE = 20_000  # characters that are searched for secrets
_FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(<?(?![A-Za-z][A-Za-z0-9+.-]*:|[/#])([^)\s>#?]+)")


class ReadSkill(NamedTuple):
    """A skill with its files, by their paths beside SKILL.md; bytes that are no text are None."""

    uri: str
    frontmatter: Mapping[str, Any]
    files: Mapping[str, str | None]
    size: int
    problem: str = ""  # why a file was not read


async def read_skills(client: "Client") -> list[ReadSkill]:
    """All skills of a server, with all of their files; none if it does not declare any."""
    is_declared = ID in declared_extensions(client.capabilities)
    return [await _read(skill) for skill in await client.list_skills()] if is_declared else []


async def _read(skill: "Skill") -> ReadSkill:
    listed = [] if isinstance(skill.resources, str) else skill.resources
    folder = skill.uri.removesuffix(SKILL_FILE)
    paths = [unquote(file.uri.removeprefix(folder)) for file in listed] or [SKILL_FILE]
    files: dict[str, str | None] = dict.fromkeys(paths)
    problem = ""
    for path in paths[:MAX_FILES]:
        try:
            found = await skill.read(path)
            files[path] = found if isinstance(found, str) else None
        except (BadResponse, ServerError) as failure:
            problem = problem or str(failure)
    return ReadSkill(skill.uri, skill.frontmatter, files, sum(file.size for file in listed), problem)


def check_skills(skills: Sequence[ReadSkill]) -> Iterator[Finding]:
    for skill in skills:
        place = f"skill {skill.uri}"
        if skill.problem:
            yield Finding("skill-unreadable", place, skill.problem)
        yield from _check_front_matter(skill, place)
        if len(skill.files) > MAX_FILES or skill.size > MAX_BYTES:
            yield Finding("skill-size", place, f"{len(skill.files)} files, {skill.size:,} bytes")
        text = skill.files.get(SKILL_FILE) or ""
        if (lines := text.count("\n")) > MAX_LINES:
            yield Finding("skill-length", place, f"{lines} lines")
        yield from (Finding("skill-link", place, link) for link in _broken_links(text, skill.files))
        for path, content in skill.files.items():
            if (number := _line_with_secret(content or "")) is not None:
                yield Finding("skill-secret", place, f"{path}, line {number}")


def _check_front_matter(skill: ReadSkill, place: str) -> Iterator[Finding]:
    name, description = skill.frontmatter.get("name"), skill.frontmatter.get("description")
    is_name = isinstance(name, str) and NAME.match(name)
    if not is_name or not skill.uri.endswith(f"/{name}/{SKILL_FILE}"):
        yield Finding("skill-name", place, str(name))
    if not isinstance(description, str) or not description.strip():
        yield Finding("skill-description", place, "there is none")
    elif len(description) > MAX_DESCRIPTION:
        yield Finding("skill-description", place, f"{len(description)} characters")
    for key, value in as_object(skill.frontmatter.get("metadata")).items():
        if key.startswith(RESERVED) or not isinstance(value, str):
            yield Finding("skill-metadata", place, key)
    try:
        ambiguous = read_front_matter(skill.files.get(SKILL_FILE) or "").ambiguous
    except FrontMatterError:  # it was not read, or not compared
        return
    yield from (Finding("skill-yaml", place, each) for each in ambiguous)


def _broken_links(text: str, files: Mapping[str, str | None]) -> list[str]:
    """Links of a SKILL.md to what is none of its files or folders."""
    links = dict.fromkeys(_LINK.findall(_FENCED.sub("", text)))
    known = {*files, *(path[:at] for path in files for at in range(len(path)) if path[at] == "/"), "."}
    return [link for link in links if posixpath.normpath(unquote(link)) not in known]


def _line_with_secret(text: str) -> int | None:
    redactor = Redactor()
    lines = enumerate(text.splitlines(), 1)
    return next((n for n, line in lines if redactor.text(line[:MAX_LINE]).count(REDACTED) > line.count(REDACTED)), None)
