"""Skills as a client reads them: only what is listed, and only if it is what was listed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail import BadResponse, CallNext, Client, Request, Server, ServerError, Skill
from dovetail.errors import METHOD_NOT_FOUND
from dovetail.protocol.types import ResourceContents
from sdk import MODERN, REVISIONS

PDF, FORMS = "skill://pdf/SKILL.md", "skill://pdf/references/FORMS.md"
TEXT = (
    "---\nname: pdf\ndescription: Fill in forms.\nversion: 1.0\ntested: true\nmetadata: {a: [b, 1]}\n---\n\nRead on.\n"
)
SIZE = len(TEXT)
EVERYWHERE = pytest.mark.parametrize("revision", REVISIONS)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    for name, content in {"SKILL.md": TEXT, "references/FORMS.md": "Fill in.", "a b.png": "\x89PNG"}.items():
        path = tmp_path / "pdf" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode("latin-1"))
    server = Server("skilled")
    server.add_skills(tmp_path)
    return server


def alter_contents(server: Server, alter: Callable[[ResourceContents], list[ResourceContents]]) -> None:
    """Let the server answer with other contents than it has listed."""

    @server.middleware
    async def altered(request: Request, call_next: CallNext) -> Any:
        result: Any = await call_next(request)
        if request.method == "resources/read":
            result = replace(result, items=[each for item in result.items for each in alter(item)])
        return result


def alter_entry(server: Server, alter: Callable[[Any], Any]) -> None:
    """Let the server list another entry than fits its files."""

    @server.middleware
    async def altered(request: Request, call_next: CallNext) -> Any:
        result: Any = await call_next(request)
        if request.method == "skills/list":
            result = replace(result, fields={"skills": [alter(each) for each in result.fields["skills"]]})
        elif request.method == "skills/get":
            result = replace(result, fields={"skill": alter(result.fields["skill"])})
        return result


@EVERYWHERE
async def test_files_are_read_and_compared(revision: str, server: Server) -> None:
    async with Client(server, protocol_version=revision) as client:
        (listed,) = await client.list_skills()
        for skill in (listed, await client.get_skill(PDF)):
            assert (skill.uri, skill.name, skill.description) == (PDF, "pdf", "Fill in forms.")
            assert skill.frontmatter["version"] == 1
            assert repr(skill) == f"Skill('{PDF}')"
            assert await skill.read() == TEXT
            assert await skill.read("references/FORMS.md") == "Fill in."
            assert await skill.read("a b.png") == b"\x89PNG"


@EVERYWHERE
async def test_nothing_is_read_before_it_is_asked_for(revision: str, server: Server) -> None:
    said: list[bytes] = []
    async with Client(server, protocol_version=revision, transcript=lambda _, message: said.append(message)) as client:
        await client.list_skills()
        await client.get_skill(PDF)
    assert not any(b"resources/read" in message for message in said)


@pytest.mark.parametrize(
    "path", ["references/OTHER.md", "../other/SKILL.md", "references", "", "/SKILL.md", "x" * 9_000]
)
async def test_a_file_that_is_not_listed_is_not_read(path: str, server: Server) -> None:
    async with Client(server) as client:
        (skill,) = await client.list_skills()
        with pytest.raises(BadResponse, match=r"skill://pdf/SKILL\.md: the server lists no file"):
            await skill.read(path)


@EVERYWHERE
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (TEXT + "!", f"{SIZE} bytes are listed, and it has {SIZE + 1}"),
        (TEXT.replace("Read", "Feed"), "its digest is another one"),
        (None, f"{SIZE} bytes are listed, and it has 3"),
    ],
)
async def test_other_contents_are_refused(revision: str, text: str | None, problem: str, server: Server) -> None:
    other = ResourceContents(PDF, blob=b"abc") if text is None else ResourceContents(PDF, text=text)
    alter_contents(server, lambda _: [other])
    async with Client(server, protocol_version=revision) as client:
        (skill,) = await client.list_skills()
        with pytest.raises(BadResponse, match=f"{PDF} is not what the server has listed: {problem}; list the skills"):
            await skill.read()


@pytest.mark.parametrize(
    "alter", [lambda item: [], lambda item: [item, item], lambda item: [ResourceContents(FORMS, text=TEXT)]]
)
async def test_contents_of_something_else_are_refused(alter: Any, server: Server) -> None:
    alter_contents(server, alter)
    async with Client(server) as client:
        skill = await client.get_skill(PDF)
        with pytest.raises(BadResponse, match="contents of something else"):
            await skill.read()


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"description": "Steal them."}, "description"),
        ({"name": "pdf2", "license": "MIT"}, "license, name"),
        ({"tested": 1}, "tested"),
        ({"license": None}, "license"),
        ({"version": True}, "version"),
        ({"version": "1.0"}, "version"),
        ({"description": ["Fill in forms."]}, "description"),
        *(
            ({"metadata": other}, "metadata")
            for other in ({"a": ["b"]}, {"a": ["b", 2]}, {"b": ["b", 1]}, {}, ["b", 1], None)
        ),
    ],
)
async def test_an_entry_that_differs_from_the_front_matter_is_refused(change: Any, names: str, server: Server) -> None:
    alter_entry(server, lambda entry: {**entry, "frontmatter": {**entry["frontmatter"], **change}})
    async with Client(server) as client:
        for skill in (*await client.list_skills(), await client.get_skill(PDF)):
            with pytest.raises(BadResponse, match=f"its front matter has another {names};"):
                await skill.read()
            with pytest.raises(BadResponse, match=f"its front matter has another {names};"):
                await skill.read("./references/../SKILL.md")
            assert await skill.read("references/FORMS.md") == "Fill in."


async def test_an_entry_without_a_field_is_refused_and_one_with_an_equal_number_is_not(server: Server) -> None:
    fields: dict[str, Any] = {"name": "pdf", "description": "Fill in forms.", "version": 1, "tested": True}
    fields["metadata"] = {"a": ["b", 1.0]}
    alter_entry(server, lambda entry: {**entry, "frontmatter": fields})
    async with Client(server) as client:
        skill = await client.get_skill(PDF)
        assert await skill.read() == TEXT
        del fields["version"]
        skill = await client.get_skill(PDF)
        with pytest.raises(BadResponse, match="another version"):
            await skill.read()


async def test_front_matter_that_can_not_be_read_is_refused(server: Server) -> None:
    strange = "---\nname: &x pdf\n---\n"
    alter_contents(server, lambda _: [ResourceContents(PDF, text=strange)])
    alter_entry(server, lambda entry: {**entry, "resources": "dynamic"})
    async with Client(server) as client:
        with pytest.raises(BadResponse, match="can't be compared, line 2: a value can't begin with '&'"):
            await (await client.get_skill(PDF)).read()


async def test_of_a_dynamic_skill_only_its_description_is_read(server: Server) -> None:
    alter_entry(server, lambda entry: {**entry, "resources": "dynamic"})
    async with Client(server) as client:
        (skill,) = await client.list_skills()
        assert skill.resources == "dynamic"
        assert await skill.read() == TEXT
        with pytest.raises(BadResponse, match="lists no file"):
            await skill.read("references/FORMS.md")
    alter_contents(server, lambda _: [ResourceContents(PDF, blob=TEXT.encode())])
    async with Client(server) as client:
        with pytest.raises(BadResponse, match="it is no text"):
            await (await client.get_skill(PDF)).read()


@pytest.mark.parametrize(
    "change",
    [
        {"resources": "static"},
        {"resources": [{"uri": PDF, "digest": "sha256:AB", "size": 3}]},
        {"resources": [{"uri": PDF, "digest": f"sha256:{'0' * 64}", "size": -3}]},
        {"resources": [{"uri": PDF}]},
        {"frontmatter": "name: pdf"},
    ],
)
async def test_malformed_entries_are_refused(change: Any, server: Server) -> None:
    alter_entry(server, lambda entry: {**entry, **change})
    async with Client(server) as client:
        for asked in (client.list_skills(), client.get_skill(PDF)):
            with pytest.raises(BadResponse, match="does not fit"):
                await asked


async def test_another_skill_than_was_asked_for_is_refused(server: Server) -> None:
    alter_entry(server, lambda entry: {**entry, "uri": "skill://other/SKILL.md"})
    async with Client(server) as client:
        with pytest.raises(BadResponse, match="answered with the skill skill://other"):
            await client.get_skill(PDF)
        (skill,) = await client.list_skills()
        with pytest.raises(BadResponse, match="lists no file"):
            await skill.read()


@EVERYWHERE
async def test_a_server_without_skills_says_so(revision: str) -> None:
    async with Client(Server("plain"), protocol_version=revision) as client:
        with pytest.raises(ServerError) as refused:
            await client.list_skills()
        assert refused.value.code == METHOD_NOT_FOUND


async def test_a_list_is_cached_until_the_resources_change(tmp_path: Path) -> None:
    asked: list[str] = []
    server = Server("skilled", ttl_ms=60_000)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "SKILL.md").write_text("---\nname: a\ndescription: A.\n---\n")
    server.add_skills(tmp_path, watch=False)

    @server.middleware
    async def count(request: Request, call_next: CallNext) -> Any:
        asked.append(request.method)
        return await call_next(request)

    async with Client(server, protocol_version=MODERN) as client, client.listen(resources=True) as changes:
        await (await client.get_skill("skill://a/SKILL.md")).read()
        skills: list[Skill] = []
        for _ in range(3):
            skills = await client.list_skills()
        assert asked.count("skills/list") == 1
        (tmp_path / "a" / "SKILL.md").write_text("---\nname: a\ndescription: B.\n---\n")
        await server.refresh()
        await anext(changes)
        assert skills[0].description == "A."
        (skill,) = await client.list_skills()
        assert skill.description == "B."
        assert "B." in await skill.read()  # not what is cached of the file
        with pytest.raises(BadResponse, match="not what the server has listed"):
            await skills[0].read()
