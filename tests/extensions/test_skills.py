"""Skills of a server: what is listed, read and refused, who may read it, and what happens when the files change."""

import base64
import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, Extension, Server, ServerError, SetupError
from dovetail.auth.principal import Principal
from dovetail.errors import INVALID_PARAMS
from http_serving import hosted, until
from sdk import MODERN, REVISIONS
from wire import Wire

EVERYWHERE = pytest.mark.parametrize("revision", REVISIONS)
PDF, FORMS = "skill://pdf/SKILL.md", "skill://pdf/references/FORMS.md"
ID = "io.modelcontextprotocol/skills"
READ_DIRECTORY = "resources/directory/read"


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def skill(name: str, more: str = "") -> str:
    return f"---\nname: {name}\ndescription: What {name} does.\n{more}---\n\n# {name}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(
        tmp_path / "skills",
        {
            "pdf/SKILL.md": skill("pdf", "license: MIT\nmetadata:\n  com.example/level: '3'\nlevel: 3\n"),
            "pdf/references/FORMS.md": "Fill in\r\nthe form: ä.\n",
            "pdf/bom.txt": b"\xef\xbb\xbfwith a mark",
            "pdf/latin.txt": b"caf\xe9",
            "pdf/ü b.png": b"\x89PNG\r\n\x1a\n",
            "pdf/.hidden": "never shown",
            "acme/notes/SKILL.md": skill("notes"),
            "acme/README.md": "no skill",
        },
    )
    (tmp_path / "skills" / "pdf" / "empty").mkdir()
    return tmp_path / "skills"


def serve(folder: Path, **options: Any) -> Server:
    server = Server("skilled", version="1.0.0", cache_scope="public")
    server.engine.resources.watch_options = {"poll_seconds": 0.02, "use_watchfiles": False}
    server.add_skills(folder, **options)
    return server


async def raw_bytes(client: Client, uri: str) -> bytes:
    (contents,) = (await client.request("resources/read", {"uri": uri}))["contents"]
    return base64.b64decode(contents["blob"]) if "blob" in contents else contents["text"].encode()


# ── what clients see ──


@EVERYWHERE
@pytest.mark.rule("SKILL-1", "SKILL-2", "SKILL-6", "SKILL-7", "SKILL-11", "EXT-2")
async def test_skills_are_declared_listed_and_got(revision: str, folder: Path) -> None:
    async with Client(serve(folder), protocol_version=revision) as client:
        assert client.capabilities["extensions"] == {ID: {"directoryRead": True}}
        assert "resources" in client.capabilities
        listed = await client.request("skills/list")
        assert [each["uri"] for each in listed["skills"]] == ["skill://acme/notes/SKILL.md", PDF]
        pdf = listed["skills"][1]
        assert pdf["frontmatter"] == {
            "name": "pdf",
            "description": "What pdf does.",
            "license": "MIT",
            "metadata": {"com.example/level": "3"},
            "level": 3,
        }
        names = ["SKILL.md", "bom.txt", "latin.txt", "references/FORMS.md", "%C3%BC%20b.png"]
        assert [each["uri"] for each in pdf["resources"]] == [f"skill://pdf/{name}" for name in names]
        found = await client.request("skills/get", {"uri": PDF})
        assert found["skill"] == pdf
        for result in (listed, found):
            assert ({"ttlMs", "cacheScope"} <= result.keys()) is (revision == MODERN)
            assert "nextCursor" not in result


@EVERYWHERE
@pytest.mark.rule("SKILL-8", "SKILL-14", "SKILL-15")
async def test_digests_and_sizes_are_those_of_the_bytes_that_are_read(revision: str, folder: Path) -> None:
    async with Client(serve(folder), protocol_version=revision) as client:
        for entry in (await client.request("skills/get", {"uri": PDF}))["skill"]["resources"]:
            raw = await raw_bytes(client, entry["uri"])
            assert (entry["digest"], entry["size"]) == (f"sha256:{hashlib.sha256(raw).hexdigest()}", len(raw))
        resources = {each["uri"]: each for each in (await client.request("resources/list"))["resources"]}
        shown = {"name": "pdf", "description": "What pdf does.", "mimeType": "text/markdown"}
        assert shown.items() <= resources[PDF].items()
        assert resources[FORMS]["name"] == "references/FORMS.md"
        assert not any("_meta" in each for each in resources.values())
        kinds = {}
        for uri in resources:
            (contents,) = (await client.request("resources/read", {"uri": uri}))["contents"]
            kinds[uri.rpartition("/")[2]] = "text" if "text" in contents else "blob"
        blobs = {"bom.txt", "latin.txt", "%C3%BC%20b.png"}  # else a client could lose the mark, or guess an encoding
        assert {name for name, kind in kinds.items() if kind == "blob"} == blobs
        with pytest.raises(ServerError):
            await client.read_resource("skill://pdf/.hidden")


@EVERYWHERE
@pytest.mark.rule("SKILL-12", "SKILL-13")
async def test_directories_have_their_direct_children(revision: str, folder: Path) -> None:
    async with Client(serve(folder), protocol_version=revision) as client:

        async def children(uri: str) -> list[tuple[str, str]]:
            found = (await client.request(READ_DIRECTORY, {"uri": uri}))["resources"]
            return [(each["uri"].removeprefix(uri), each["mimeType"]) for each in found]

        assert await children("skill://pdf") == [
            ("/SKILL.md", "text/markdown"),
            ("/bom.txt", "text/plain"),
            ("/empty", "inode/directory"),
            ("/latin.txt", "text/plain"),
            ("/references", "inode/directory"),
            ("/%C3%BC%20b.png", "image/png"),
        ]
        assert await children("skill://pdf/references") == [("/FORMS.md", "text/markdown")]
        assert await children("skill://pdf/empty") == []
        for uri in (PDF, "skill://pdf/nowhere", "skill://acme", "skill://", "x" * 10_000, "file:///etc"):
            with pytest.raises(ServerError, match="no directory") as refused:
                await client.request(READ_DIRECTORY, {"uri": uri})
            assert refused.value.code == INVALID_PARAMS
        for uri in ("skill://nowhere/SKILL.md", FORMS, "skill://pdf", "x" * 10_000):
            with pytest.raises(ServerError, match="Unknown skill") as refused:
                await client.request("skills/get", {"uri": uri})
            assert refused.value.code == INVALID_PARAMS


@EVERYWHERE
@pytest.mark.rule("SKILL-10", "SKILL-13")
async def test_lists_and_directories_have_pages(revision: str, tmp_path: Path) -> None:
    write(tmp_path, {f"s{number}/SKILL.md": skill(f"s{number}") for number in range(5)})
    write(tmp_path, {f"s0/{number}.txt": "x" for number in range(6)})
    server = Server("skilled", page_size=2)
    server.add_skills(tmp_path)
    async with Client(server, protocol_version=revision) as client:
        for method, key, params, count in (
            ("skills/list", "skills", {}, 5),
            (READ_DIRECTORY, "resources", {"uri": "skill://s0"}, 7),
        ):
            uris: list[str] = []
            cursor: dict[str, str] = {}
            while True:
                page = await client.request(method, {**params, **cursor})
                assert len(page[key]) <= 2
                uris += [each["uri"] for each in page[key]]
                if "nextCursor" not in page:
                    break
                cursor = {"cursor": page["nextCursor"]}
            assert len(uris) == len(set(uris)) == count
            with pytest.raises(ServerError, match="cursor"):
                await client.request(method, {**params, "cursor": "made up"})
        with pytest.raises(ServerError, match="cursor"):  # of another directory
            await client.request(READ_DIRECTORY, {"uri": "skill://s1", **cursor})


async def test_over_http_the_methods_need_no_name_in_a_header(folder: Path) -> None:
    async with hosted(serve(folder).asgi()) as url, Client(url) as client:
        assert [each.name for each in await client.list_skills()] == ["notes", "pdf"]
        assert await (await client.get_skill(PDF)).read("references/FORMS.md") == "Fill in\r\nthe form: ä.\n"
        assert (await client.request(READ_DIRECTORY, {"uri": "skill://pdf/empty"}))["resources"] == []


@pytest.mark.rule("SKILL-5")
async def test_uris_are_those_of_the_folders_above(tmp_path: Path) -> None:
    write(tmp_path, {"Ä b/c~(d)/mail/SKILL.md": skill("mail"), "Ä b/c~(d)/mail/100%.md": "x"})
    async with Client(serve(tmp_path)) as client:
        (mail,) = await client.list_skills()
        assert mail.uri == "skill://%C3%84%20b/c~%28d%29/mail/SKILL.md"
        assert await mail.read("100%.md") == "x"
        directory = await client.request(READ_DIRECTORY, {"uri": "skill://%c3%84%20b/c~%28d%29/mail"})
        assert [each["name"] for each in directory["resources"]] == ["100%.md", "mail"]


@pytest.mark.rule("SKILL-18")
async def test_nested_skills_are_listed_flat_and_are_files_of_the_outer_one(tmp_path: Path) -> None:
    write(tmp_path, {"outer/SKILL.md": skill("outer"), "outer/inner/SKILL.md": skill("inner"), "outer/inner/a.md": "a"})
    async with Client(serve(tmp_path / "outer")) as client:  # a folder that is a skill itself
        outer, inner = await client.list_skills()
        uris = ["skill://outer/SKILL.md", "skill://outer/inner/SKILL.md", "skill://outer/inner/a.md"]
        assert [file.uri for file in outer.resources if not isinstance(file, str)] == uris
        assert [file.uri for file in inner.resources if not isinstance(file, str)] == uris[1:]
        assert (outer.name, inner.name, inner.uri) == ("outer", "inner", uris[1])
        assert (await inner.read()).startswith("---\nname: inner\n")


async def test_a_server_has_the_skills_of_several_folders(folder: Path, tmp_path: Path) -> None:
    server = serve(folder, exclude=("*.txt", "acme"))
    write(tmp_path, {"other/mail/SKILL.md": skill("mail")})
    server.add_skills(tmp_path / "other")
    with pytest.raises(SetupError, match=f"already a resource {PDF}"):
        server.add_skills(folder)
    async with Client(server) as client:
        pdf, mail = await client.list_skills()
        assert (pdf.name, mail.name) == ("pdf", "mail")
        assert [file.uri for file in pdf.resources if "txt" in str(file)] == []


async def test_skills_of_a_mounted_server_stay_there_and_their_files_are_resources(folder: Path) -> None:
    parent = Server("parent")
    parent.mount(serve(folder), "child")
    async with Client(parent) as client:
        assert "extensions" not in client.capabilities
        uris = [resource.uri for resource in await client.list_resources()]
        assert "skill://child/pdf/SKILL.md" in uris
        assert (await raw_bytes(client, "skill://child/pdf/references/FORMS.md")).startswith(b"Fill in")


# ── who may read it ──


@EVERYWHERE
async def test_skills_with_a_rule_are_listed_and_read_by_those_who_may(
    revision: str, folder: Path, tmp_path: Path
) -> None:
    write(tmp_path, {"open/mail/SKILL.md": skill("mail")})
    server = serve(folder, scopes=["pdf"])
    server.add_skills(tmp_path / "open")
    server.add_directory(folder, uri="docs://all")  # which does not offer what is guarded
    requests = [
        ("skills/get", {"uri": PDF}),
        (READ_DIRECTORY, {"uri": "skill://pdf/references"}),
        ("resources/read", {"uri": FORMS}),
    ]
    async with Client(
        server, protocol_version=revision, principal=Principal(subject="ada", scopes=frozenset({"pdf"}))
    ) as client:
        listed = await client.request("skills/list")
        assert [each["frontmatter"]["name"] for each in listed["skills"]] == ["notes", "pdf", "mail"]
        results = [listed, *[await client.request(*each) for each in requests]]
        is_open = await client.request("skills/get", {"uri": "skill://mail/SKILL.md"})
        assert is_open.get("cacheScope", "public") == "public"
        assert {each.get("cacheScope") for each in results} <= {"private", None}
    async with Client(server, protocol_version=revision, principal=Principal(subject="bob")) as client:
        assert [each.name for each in await client.list_skills()] == ["mail"]
        uris = {each.uri for each in await client.list_resources()}
        assert uris == {"skill://mail/SKILL.md", "docs://all/acme/README.md"}
        for method, params in requests:
            with pytest.raises(ServerError, match="needs the scopes: pdf"):
                await client.request(method, params)


async def test_what_authorize_refuses_is_unknown(folder: Path) -> None:
    server = serve(folder, authorize=lambda principal: principal is not None)
    async with Client(server) as client:
        assert await client.list_skills() == []
        with pytest.raises(ServerError, match="Unknown skill"):
            await client.get_skill(PDF)
        with pytest.raises(ServerError, match="no directory"):
            await client.request(READ_DIRECTORY, {"uri": "skill://pdf"})


async def test_disabled_skills_are_not_listed(folder: Path) -> None:
    server = serve(folder)
    server.disable(names="skill://pdf/*")
    async with Client(server) as client:
        assert [each.name for each in await client.list_skills()] == ["notes"]
        with pytest.raises(ServerError, match="Unknown skill"):
            await client.get_skill(PDF)
        for uri in ("skill://pdf", "skill://pdf/references"):
            with pytest.raises(ServerError, match="no directory"):
                await client.request(READ_DIRECTORY, {"uri": uri})
        server.enable(names="skill://pdf/*")
        assert [each.name for each in await client.list_skills(fresh=True)] == ["notes", "pdf"]
        assert (await client.request(READ_DIRECTORY, {"uri": "skill://pdf"}))["resources"]
        server.disable(names="skill://pdf/references/FORMS.md")
        assert not (await client.request(READ_DIRECTORY, {"uri": "skill://pdf/references"}))["resources"]


async def test_skills_that_are_added_after_a_rule_obey_it_too(folder: Path) -> None:
    server = Server("skilled")
    server.add_resource("skill://pdf/other", lambda: "x", name="other")
    server.disable(names="skill://pdf/*")
    server.add_skills(folder)
    async with Client(server) as client:
        assert [each.name for each in await client.list_skills()] == ["notes"]


# ── registration ──


@pytest.mark.rule("SKILL-3", "SKILL-4", "SKILL-9")
@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"README.md": "x"}, "there is no folder with a SKILL.md"),
        ({"a/SKILL.md": "# A"}, "a/SKILL.md: line 1: front matter begins with a line ---"),
        ({"a/SKILL.md": "---\nname: a\nname: b\n---\n"}, "a/SKILL.md: line 3: there is 'name' already"),
        ({"a/SKILL.md": "---\nname: a\n---\n"}, "a/SKILL.md: description: is missing"),
        ({"a/SKILL.md": "---\ndescription: x\n---\n"}, "a/SKILL.md: name: None is not possible; write 1 to 64 of a-z"),
        ({"a/SKILL.md": skill("b")}, "name: b differs from the name of its folder, a; rename one of them"),
        ({"A/SKILL.md": skill("A")}, "name: 'A' is not possible"),
        ({"a--b/SKILL.md": skill("a--b")}, "is not possible"),
        ({"-a/SKILL.md": skill("-a")}, "is not possible"),
        ({f"{'a' * 65}/SKILL.md": skill("a" * 65)}, "is not possible"),
        ({"a/SKILL.md": skill("a").encode("utf-16")}, "must be UTF-8"),
        ({"a/SKILL.md": b"\xef\xbb\xbf" + skill("a").encode()}, "must be UTF-8 without a byte order mark"),
        ({"a/SKILL.md": skill("a"), **{f"a/{n}": "" for n in range(512)}}, "it has 513 files, and"),
        ({"a/SKILL.md": skill("a"), "a/x.bin": b"x" * 2**23, "a/y.bin": b"y" * 2**23}, "more than 16,777,216 bytes"),
        ({"a/SKILL.md": skill("a"), "a/x.bin": b"x" * (2**24 + 1)}, "a/x.bin: The file .* is larger .*exclude="),
        ({"a/SKILL.md": skill("a", f"x: &a [{'*a,' * 20}]\n")}, "a/SKILL.md: line 4: a value can't begin with '&'"),
        ({"a/SKILL.md": skill("a", "x: " + "[" * 60_000 + "\n")}, "line 4: there are more than 100 brackets"),
        ({"a/SKILL.md": skill("a"), "a/back\\slash": ""}, "it is no regular file"),
    ],
)  # fmt: skip
def test_what_can_not_be_served_names_the_file_and_the_fix(tmp_path: Path, files: Any, words: str) -> None:
    write(tmp_path, files)
    server = Server("x")
    with pytest.raises(SetupError, match=words) as refused:
        server.add_skills(tmp_path)
    assert "server.add_skills(" in str(refused.value)
    assert len(server.engine.resources.direct) == 0
    assert "extensions" not in server.engine.capabilities.names


def test_a_method_that_another_extension_has_is_refused_before_anything_is_added(folder: Path) -> None:
    server = Server("x")
    server.add_extension(Extension("com.example/skills", methods={"skills/list": lambda: None}))
    with pytest.raises(SetupError, match="has the method skills/list already"):
        server.add_skills(folder)
    assert len(server.engine.resources.direct) == 0


@pytest.mark.parametrize("make", ["link out", "link to a folder", "fifo", "broken link"])
def test_links_out_of_the_folder_and_special_files_are_refused(tmp_path: Path, make: str) -> None:
    write(tmp_path, {"secret/key": "s3cret", "skills/a/SKILL.md": skill("a"), "skills/a/inside.md": "fine"})
    path = tmp_path / "skills" / "a" / "odd"
    if make == "fifo":
        os.mkfifo(path)
    else:
        targets = {"link out": tmp_path / "secret" / "key", "link to a folder": tmp_path / "secret"}
        path.symlink_to(targets.get(make, tmp_path / "nothing"))
    with pytest.raises(SetupError, match=r"a/odd: it is no regular file, or leads out of the folder; .*exclude="):
        Server("x").add_skills(tmp_path / "skills")
    server = Server("x")
    server.add_skills(tmp_path / "skills", exclude=["odd"])
    path.unlink()
    path.symlink_to(tmp_path / "skills" / "a" / "inside.md")
    Server("x").add_skills(tmp_path / "skills")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exclude": "*.pyc"}, "exclude="),
        ({"scopes": "a b"}, "be a scope"),
        ({"authorize": 3}, "authorize=3 is not callable"),
    ],
)
def test_options_are_checked(folder: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        serve(folder, **options)
    with pytest.raises(SetupError, match="no directory"):
        serve(folder / "nowhere")


@pytest.mark.rule("SKILL-16", "SKILL-17")
def test_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    more = "on: yes\nversion: 1.10\ndate: 2026-07-28\nmetadata:\n  io.modelcontextprotocol/x: y\n"
    write(tmp_path, {"a/SKILL.md": skill("a", more), "b/a/SKILL.md": skill("a")})
    with caplog.at_level(logging.WARNING, "dovetail"):
        Server("x").add_skills(tmp_path)
    text = "\n".join(record.message for record in caplog.records)
    for words in (
        "a/SKILL.md: line 4: on: YAML 1.1 reads another value; put it in quotes",
        "line 4: yes",
        "line 6: 2026-07-28",
        "metadata: io.modelcontextprotocol/x is reserved",
        "hosts may mix up the skills of one name: a",
    ):
        assert words in text
    assert "1.10" not in text


# ── changes ──


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_a_change_of_the_files_swaps_the_snapshot_and_is_announced(revision: str, folder: Path) -> None:
    async with Client(serve(folder), protocol_version=revision) as client:
        before = await client.get_skill(PDF)
        async with client.listen(resources=True, uris=[FORMS]) as changes:
            write(folder, {"pdf/references/FORMS.md": "Other.", "mail/SKILL.md": skill("mail")})
            (folder / "acme" / "notes" / "SKILL.md").unlink()
            seen: set[tuple[str, str | None]] = set()
            while seen != {("resources", None), ("updated", FORMS)}:
                change = await anext(changes)
                seen.add((change.kind, change.uri or None))
            while {each.name for each in await client.list_skills(fresh=True)} != {"mail", "pdf"}:
                await anext(changes)
        after = await client.get_skill(PDF)
        assert after.resources != before.resources
        assert await after.read("references/FORMS.md") == "Other."
        assert "skill://acme/notes/SKILL.md" not in {each.uri for each in await client.list_resources(fresh=True)}


async def test_a_directory_that_goes_while_its_reader_is_checked_is_read_as_it_was(folder: Path) -> None:
    async def authorize(principal: Principal | None) -> bool:
        (folder / "pdf" / "references" / "FORMS.md").unlink(missing_ok=True)
        (folder / "pdf" / "references").rmdir()
        await server.refresh()
        return True

    server = serve(folder, watch=False, authorize=authorize)
    async with Client(server) as client:
        assert "resources" in await client.request(READ_DIRECTORY, {"uri": "skill://pdf/references"})


async def test_a_change_between_registration_and_start_is_found(folder: Path) -> None:
    server = serve(folder)  # as where workers are forked, perhaps days later
    write(folder, {"pdf/references/FORMS.md": "Later."})
    async with Client(server) as client, client.listen(resources=True) as changes:
        while await (await client.get_skill(PDF)).read("references/FORMS.md") != "Later.":
            await anext(changes)


async def test_files_are_named_by_the_skill_that_they_belong_to_now(tmp_path: Path) -> None:
    write(tmp_path, {"outer/SKILL.md": skill("outer"), "outer/inner/SKILL.md": skill("inner"), "outer/inner/a.md": "a"})
    server = serve(tmp_path, watch=False)
    async with Client(server) as client:
        assert [each.name for each in await client.list_resources()] == ["outer", "inner", "inner/a.md"]
        (tmp_path / "outer" / "SKILL.md").unlink()
        await server.refresh()
        assert [each.name for each in await client.list_resources(fresh=True)] == ["inner", "a.md"]


async def test_a_change_of_a_description_alone_changes_the_list_of_resources(folder: Path) -> None:
    async with Client(serve(folder)) as client, client.listen(resources=True) as changes:
        write(folder, {"pdf/SKILL.md": skill("pdf")})
        assert (await anext(changes)).kind == "resources"
        assert (await client.get_skill(PDF)).frontmatter.keys() == {"name", "description"}


async def test_broken_files_leave_the_old_snapshot_and_a_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with Client(serve(folder)) as client:
        write(folder, {"pdf/references/FORMS.md": "Never seen.", "acme/notes/SKILL.md": "---\nname: [\n---\n"})
        await until(lambda: "the skills stay as they were" in caplog.text)
        assert "acme/notes/SKILL.md: line 2:" in caplog.text
        pdf = await client.get_skill(PDF)
        assert await pdf.read("references/FORMS.md") == "Fill in\r\nthe form: ä.\n"
        write(folder, {"acme/notes/SKILL.md": skill("notes", "x: y\n")})

        async with client.listen(resources=True) as changes:
            while "x" not in (await client.get_skill("skill://acme/notes/SKILL.md")).frontmatter:
                await anext(changes)
        assert await (await client.get_skill(PDF)).read("references/FORMS.md") == "Never seen."


async def test_a_skill_that_stays_as_it_was_is_not_warned_of_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, {"pdf/SKILL.md": skill("pdf", "a: yes\n")})
    server = serve(folder, watch=False)
    caplog.clear()
    write(folder, {"acme/notes/SKILL.md": skill("notes", "b: no\n")})
    await server.refresh()
    (warning,) = caplog.messages
    assert "line 4: no" in warning


async def test_refresh_reads_the_files_again_where_they_are_not_watched(folder: Path) -> None:
    server = serve(folder, watch=False)
    async with Wire(server, MODERN) as wire:
        write(folder, {"pdf/references/FORMS.md": "New."})
        old = await wire.ask("resources/read", {"uri": FORMS})
        wire.send(
            wire.request("subscriptions/listen", {"notifications": {"resourceSubscriptions": [PDF]}}, id="listen")
        )
        await wire.receive()
        write(folder, {"pdf/SKILL.md": skill("pdf")})
        await server.refresh()
        assert (await wire.receive())["params"]["uri"] == PDF
        new = await wire.ask("resources/read", {"uri": FORMS})
    texts = [each["contents"][0]["text"] for each in (old, new)]
    assert texts == ["Fill in\r\nthe form: ä.\n", "New."]
