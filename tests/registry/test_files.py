"""Files as resources: what is offered, what does not exist for a client, and what comes back."""

import logging
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Annotations, Client, EmbeddedResource, File, ResourceContents, Server
from dovetail.errors import NotFound, ProtocolError, SetupError
from dovetail.registry.files import (
    Directory,
    OpenFile,
    ServedFile,
    guess_mime_type,
    open_and_compare,
    open_by_folder,
)

needs_posix = pytest.mark.skipif(os.name == "nt", reason="needs symlinks and special files")
pytestmark = pytest.mark.timeout(30)  # only to catch what would never end
SECRET = "the secret outside"
BINARY = "application/octet-stream"


def planted(base: Path) -> Path:
    """A root with a bit of everything, next to files that no client may see."""
    root = base / "root"
    for name, text in {
        "notes.md": "# Notes\n", "docs/a.txt": "alpha", "docs/deep/b.py": "print()", "build/out.json": "{}",
        ".env": "KEY=1", ".git/config": "[core]", "../outside/secret.txt": SECRET, "../root-twin/secret.txt": SECRET,
    }.items():  # fmt: skip
        path = Path(os.path.normpath(root / name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return planted(tmp_path)


def names(directory: Directory) -> list[str]:
    return [entry.name for entry in directory.entries()]


def assert_not_there(directory: Directory, relative: str) -> None:
    for ask in (directory.resolve, directory.read):
        with pytest.raises(NotFound) as caught:
            ask(relative)
        assert str(directory.root.parent) not in caught.value.message
        assert len(caught.value.message.encode()) < 1000


def test_entries_are_sorted_and_described(tree: Path) -> None:
    os.utime(tree / "notes.md", (1_785_231_000, 1_785_231_000.9))
    directory = Directory(tree, uri="docs://handbook")
    assert names(directory) == ["build/out.json", "docs/a.txt", "docs/deep/b.py", "notes.md", "picture.png"]
    entry = next(each for each in directory.entries() if each.name == "notes.md")
    assert (entry.uri, entry.mime_type, entry.size) == ("docs://handbook/notes.md", "text/markdown", 8)
    assert entry.last_modified == "2026-07-28T09:30:00Z"
    assert entry.path == tree / "notes.md"


@pytest.mark.parametrize("mtime", [-5_000_000_000, 0, 2_000_000_000_000])
def test_any_modification_time_can_be_shown(tree: Path, mtime: int) -> None:
    try:
        os.utime(tree / "notes.md", (mtime, mtime))
    except (OSError, OverflowError):
        pytest.skip("this file system can't hold it")
    assert re.fullmatch(r"\d{4}-.*Z", Directory(tree).read("notes.md").entry.last_modified)


def test_the_template_ends_in_the_path(tree: Path) -> None:
    for uri, before in (("docs://a", "docs://a/"), ("docs://a/", "docs://a/"), ("docs://", "docs://"), ("d:", "d:/")):
        assert Directory(tree, uri=uri).template == before + "{+path}"


def test_a_root_behind_a_symlink_is_fine(tree: Path) -> None:
    assert Directory(tree).prefix == tree.as_uri() + "/"
    link = tree.parent / "link"
    link.symlink_to(tree, target_is_directory=True)
    assert Directory(link).read("docs/a.txt").data == "alpha"
    assert names(Directory(link)) == names(Directory(tree))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"root": "missing"}, ["'missing'", "create it first"]),
        ({"root": "root/notes.md"}, ["'root/notes.md'"]),
        ({"root": "root", "uri": "no scheme"}, ["'no scheme'", "docs://"]),
        ({"root": "root", "uri": "docs://{x}"}, ["docs://{x}"]),
        ({"root": "root", "include": "*.md"}, ["include=['*.md']"]),
        ({"root": "root", "exclude": ["a", "/"]}, ["exclude", "empty pattern"]),
        ({"root": "root", "max_bytes": 0}, ["max_bytes=0"]),
        ({"root": "root", "max_bytes": -1, "max_files": 0}, ["max_bytes=-1, max_files=0 must be at least 1"]),
    ],
)
def test_a_wrong_setup_names_the_fix(
    tree: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], words: list[str]
) -> None:
    monkeypatch.chdir(tree.parent)
    with pytest.raises(SetupError) as caught:
        Directory(**options)
    assert [word for word in words if word not in str(caught.value)] == []


# Paths that are not found, also if the file system has them


TRAVERSAL = [
    "", ".", "..", "/", "//", "../outside/secret.txt", "../root-twin/secret.txt", "../root/notes.md",
    "docs/../../outside/secret.txt", "docs/../notes.md", "./notes.md", "docs/./a.txt", "docs//a.txt", "notes.md/",
    "notes.md/.", "notes.md/..", "/etc/passwd", "//etc/passwd", "\\etc\\passwd", "..\\outside\\secret.txt",
    "docs\\a.txt", "C:notes.md", "C:/Windows/win.ini", "c:\\Windows\\win.ini", "docs/C:/x", "file:///etc/passwd",
    "\\\\server\\share\\x", "%2e%2e/outside/secret.txt", "..%2foutside%2fsecret.txt",
    "%252e%252e/outside/secret.txt", "notes%2emd", "notes.md\0", "notes.md\0.png", "\0", "\ud800", "notes.md\udcff",
    "notes.md\n", "~/notes.md", "$HOME/notes.md", "docs", "docs/deep", "missing.txt", "notes.md/below",
    "．．/outside/secret.txt", "..;/outside/secret.txt", "a" * 300, "a/" * 3000 + "a", "x" * 100_000,
]  # fmt: skip


@pytest.mark.rule("RES-9", "RES-10")
@pytest.mark.parametrize("relative", TRAVERSAL, ids=lambda text: ascii(text)[:40])
def test_traversal_finds_nothing(tree: Path, relative: str) -> None:
    assert_not_there(Directory(tree, hidden=True), relative)


LINKS = {  # what is asked for, and the symlinks from names to targets
    "link.txt": {"link.txt": "../outside/secret.txt"},
    "docs/link.txt": {"docs/link.txt": "../../outside/secret.txt"},
    "folder/secret.txt": {"folder": "../outside"},
    "twin/secret.txt": {"twin": "../root-twin"},
    "docs/chain/secret.txt": {"folder": "../outside", "docs/chain": "../folder"},
    "loop": {"loop": "loop"},
    "dangling": {"dangling": "nothing"},
    "shown.txt": {"shown.txt": ".env"},
    "shown/config": {"shown": ".git"},
    "null.txt": {"null.txt": os.devnull},
    "fifo.txt": {},
    "socket.txt": {},
}


@pytest.mark.rule("RES-10")
@needs_posix
@pytest.mark.parametrize("relative", LINKS)
def test_escapes_and_special_files_are_neither_listed_nor_read(tree: Path, relative: str) -> None:
    before = names(Directory(tree))
    for name, target in LINKS[relative].items():
        (tree / name).symlink_to(target)
    os.mkfifo(tree / "fifo.txt")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tree / "socket.txt"))  # the path may be too long if absolute
    directory = Directory(tree, uri="docs://x")
    assert names(directory) == before
    assert directory.path_of(f"docs://x/{relative}") is None
    assert_not_there(directory, relative)


def test_symlinks_that_stay_inside_are_followed(tree: Path) -> None:
    (tree / "alias.md").symlink_to("docs/a.txt")
    (tree / "also").symlink_to("docs", target_is_directory=True)
    (tree / "docs" / "up").symlink_to("..", target_is_directory=True)
    directory = Directory(tree)
    contents = directory.read("alias.md")
    entry = contents.entry
    assert (contents.data, entry.name, entry.mime_type) == ("alpha", "alias.md", "text/markdown")
    assert directory.resolve("also/deep/b.py") == tree / "docs" / "deep" / "b.py"
    assert directory.read("docs/up/docs/up/notes.md").data == "# Notes\n"
    assert "alias.md" in names(directory)
    assert not any(name.startswith(("also/", "docs/up/")) for name in names(directory))  # listed once is enough


def swap(tree: Path, what: str) -> None:
    outside, file = tree.parent / "outside", tree / "docs" / "a.txt"
    if what == "parent":
        (tree / "docs").rename(tree / "moved")
        (tree / "docs").symlink_to(outside, target_is_directory=True)
        (outside / "a.txt").write_text(SECRET)
    else:
        file.unlink()
        os.mkfifo(file) if what == "fifo" else file.symlink_to(outside / "secret.txt")


@pytest.mark.rule("RES-10")
@needs_posix
@pytest.mark.parametrize("what", ["parent", "file", "fifo"])
@pytest.mark.parametrize("open_file", [open_by_folder, open_and_compare])
def test_a_swap_between_the_check_and_the_opening_finds_nothing(tree: Path, what: str, open_file: OpenFile) -> None:
    assert Directory(tree, open_file=open_file).read("docs/a.txt").data == "alpha"

    def swap_then_open(root: Path, path: Path) -> int:
        swap(tree, what)
        return open_file(root, path)

    directory = Directory(tree, open_file=swap_then_open)
    open_before = len(os.listdir("/dev/fd"))
    with pytest.raises(NotFound):
        directory.read("docs/a.txt")
    assert len(os.listdir("/dev/fd")) == open_before


def test_hidden_files_exist_only_if_asked_for(tree: Path) -> None:
    for relative in (".env", ".git/config"):
        assert_not_there(Directory(tree), relative)
        assert Directory(tree, hidden=True).resolve(relative) == tree / relative
    assert ".git/config" in names(Directory(tree, hidden=True))


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        (["**/*"], [], ["build/out.json", "docs/a.txt", "docs/deep/b.py", "notes.md", "picture.png"]),
        (["*.md", "*.py"], [], ["docs/deep/b.py", "notes.md"]),
        (["docs/*"], [], ["docs/a.txt"]),
        (["docs/**/*.py"], [], ["docs/deep/b.py"]),
        (["**"], ["docs", "build/"], ["notes.md", "picture.png"]),
        (["**"], ["deep"], ["build/out.json", "docs/a.txt", "notes.md", "picture.png"]),
        (["**"], ["/deep", "*.json", "docs/*.txt"], ["docs/deep/b.py", "notes.md", "picture.png"]),
        (["**"], ["DOCS/**", "*.PNG", "BUILD"], ["notes.md"]),
        (["[np]*.??*"], ["*.p?g"], ["notes.md"]),
        ([], [], []),
    ],
)
def test_patterns_hold_for_listing_and_reading(
    tree: Path, include: list[str], exclude: list[str], left: list[str]
) -> None:
    directory = Directory(tree, include=include, exclude=exclude)
    assert names(directory) == left
    for name in left:
        directory.read(name)
    for name in set(names(Directory(tree))) - set(left):
        assert_not_there(directory, name)


def test_a_symlink_does_not_lead_around_the_patterns(tree: Path) -> None:
    (tree / "innocent.txt").symlink_to("build/out.json")
    assert_not_there(Directory(tree, exclude=["build"]), "innocent.txt")
    assert_not_there(Directory(tree, include=["*.txt"]), "innocent.txt")


def test_greedy_patterns_stay_quick(tmp_path: Path) -> None:
    deep = "/".join("ab" * 40)
    (tmp_path / deep).mkdir(parents=True)
    (tmp_path / deep / "file").write_text("x")
    directory = Directory(tmp_path, exclude=["**/a/" * 20 + "nothing", "*a" * 40 + "z"])
    assert directory.read(f"{deep}/file").data == b"x"
    assert_not_there(directory, "a" * 255)


def test_names_that_no_client_could_ask_for_are_not_listed(tmp_path: Path) -> None:
    for odd in (b"back\\slash.txt", b"C:drive.txt", b"half\xff.txt", b"fine \xc3\xa4.txt"):
        try:
            (tmp_path / os.fsdecode(odd)).write_text("x")
        except OSError:
            pytest.skip("this file system refuses such names")
    assert names(Directory(tmp_path)) == ["fine ä.txt"]


# What comes back


@pytest.mark.rule("RES-11")
@pytest.mark.parametrize(
    ("name", "stored", "expected"),
    [
        ("plain.txt", b"line\r\nline\n", "line\r\nline\n"), ("empty.txt", b"", ""),
        ("umlaut.md", "Grüße 🦉".encode(), "Grüße 🦉"), ("latin.txt", b"Gr\xfc\xdfe", b"Gr\xfc\xdfe"),
        ("drawing.svg", b"<svg/>", "<svg/>"), ("data.json", b"{}", "{}"),
        ("data.bin", b"looks like text", b"looks like text"), ("image.png", b"\x89PNG", b"\x89PNG"),
        ("empty.png", b"", b""), ("surrogate.txt", b"\xed\xa0\x80", b"\xed\xa0\x80"),
    ],
)  # fmt: skip
def test_text_or_bytes(tmp_path: Path, name: str, stored: bytes, expected: str | bytes) -> None:
    (tmp_path / name).write_bytes(stored)
    for contents in (Directory(tmp_path).read(name), ServedFile(tmp_path / name).read()):
        assert contents.data == expected
        assert type(contents.data) is type(expected)
        assert contents.entry.size == len(stored)


@pytest.mark.rule("RES-10")  # nothing is decoded twice
@pytest.mark.parametrize(
    "name", ["naïve café.md", "日本語/ファイル.txt", "🦉.txt", "a+b&c=d;e@f!.txt", "per%20cent.txt", "%2e%2e/100%.txt"]
)
def test_unicode_and_odd_names_round_trip(tmp_path: Path, name: str) -> None:
    path = tmp_path / "root" / name
    path.parent.mkdir(parents=True)
    path.write_text("x")
    directory = Directory(tmp_path / "root", uri="docs://x")
    (entry,) = directory.entries()
    assert entry.name == name
    assert entry.uri.isascii()
    assert directory.uri_of(name) == entry.uri == directory.read(name).entry.uri
    assert directory.path_of(entry.uri) == path


@pytest.mark.rule("RES-9")
@pytest.mark.parametrize(
    "uri",
    [
        "docs://x/notes.md?x=1", "docs://x/%2e%2e/outside/secret.txt", "docs://x/%252e%252e/outside/secret.txt",
        "docs://x/..%2Foutside/secret.txt", "docs://x/notes.md%00", "docs://x/%zz", "docs://x/\ud800",
        "docs://X/notes.md", "",
    ],
)  # fmt: skip
def test_path_of(tree: Path, uri: str) -> None:
    directory = Directory(tree, uri="docs://x")
    assert directory.path_of(uri) is None
    assert directory.path_of("docs://x/docs%2Fa.txt") == tree / "docs/a.txt"
    assert directory.path_of("docs://x/") == directory.path_of("docs://x") == tree


def test_uri_of_refuses_what_is_not_a_plain_path(tree: Path) -> None:
    assert Directory(tree, uri="docs://x").uri_of("not there.txt") == "docs://x/not%20there.txt"
    for relative in ("../x", "\ud800", ""):
        with pytest.raises(NotFound):
            Directory(tree).uri_of(relative)


def test_a_huge_file_is_refused_in_plain_words(tree: Path) -> None:
    assert Directory(tree, max_bytes=5).read("docs/a.txt").data == "alpha"
    with pytest.raises(ProtocolError, match="limit of 4 bytes"):
        Directory(tree, max_bytes=4).read("docs/a.txt")
    with (tree / "huge.txt").open("wb") as stream:
        stream.truncate(1 << 40)  # sparse
    for ask in (lambda: Directory(tree).read("huge.txt"), ServedFile(tree / "huge.txt").read):
        with pytest.raises(ProtocolError, match=r"'huge.txt' is larger than the limit of 10,000,000 bytes"):
            ask()


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs a file whose size is not known")
def test_a_file_longer_than_it_says_is_still_bounded() -> None:
    assert os.stat("/proc/self/status").st_size == 0
    with pytest.raises(ProtocolError, match="larger than"):
        ServedFile("/proc/self/status", max_bytes=100).read()


def test_an_unreadable_file_says_so_without_its_path(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied", str(tree / "notes.md"))

    with pytest.raises(ProtocolError) as caught:
        Directory(tree, open_file=refuse).read("notes.md")
    assert not isinstance(caught.value, NotFound)
    assert caught.value.message == "The file 'notes.md' can't be read"
    assert "Permission denied" in caplog.text


def test_a_long_listing_is_cut_and_said_once(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = Directory(tree, max_files=3)
    with caplog.at_level(logging.WARNING, "dovetail.files"):
        assert len(directory.entries()) == len(directory.entries()) == 3
    assert len(caplog.records) == 1
    assert "max_files" in caplog.text


def test_a_listing_scans_a_limited_number_of_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(30):
        (tmp_path / f"{number}.no").touch()
    assert Directory(tmp_path, include=["*.yes"], max_files=2).entries() == []
    assert "narrow the patterns" in caplog.text


def test_a_vanished_root_is_an_empty_one(tree: Path) -> None:
    directory = Directory(tree)
    tree.rename(tree.parent / "elsewhere")
    assert directory.entries() == []


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    """A tree that the property test shares between its examples."""
    root = planted(Path(os.path.realpath(tmp_path_factory.mktemp("files"))))
    (root / "docs" / "up").symlink_to("..", target_is_directory=True)
    (root / "out").symlink_to("../outside", target_is_directory=True)
    return Directory(root)


PARTS = [
    "docs", "deep", "a.txt", "b.py", "notes.md", ".env", "up", "out", "secret.txt", "outside", "root", ".", "..",
    "..\\", "%2e%2e", "C:", "~", "ä", "", "\0", "\ud800", "\n",
]  # fmt: skip


@pytest.mark.rule("RES-10")
@given(st.text() | st.lists(st.sampled_from(PARTS), max_size=8).map("/".join))
def test_any_string_stays_inside_or_is_not_found(playground: Directory, relative: str) -> None:
    try:
        path = playground.resolve(relative)
    except NotFound as problem:
        problem.message.encode()
        return
    assert path.is_relative_to(playground.root)
    assert path.is_file()
    assert not path.is_symlink()
    assert ".env" not in path.parts
    found = playground.read(relative).data
    assert (found if isinstance(found, bytes) else found.encode()) == path.read_bytes() != SECRET.encode()


def test_a_single_file(tree: Path) -> None:
    file = ServedFile(tree / "notes.md", uri="notes://today", mime_type="text/plain; charset=utf-8")
    assert (file.entry().uri, file.entry().name) == ("notes://today", "notes.md")
    assert file.entry().mime_type == "text/plain; charset=utf-8"
    assert file.read().data == "# Notes\n"
    assert ServedFile(tree / "notes.md").uri == (tree / "notes.md").as_uri()
    assert ServedFile(tree / ".env").read().data == b"KEY=1"


def test_a_single_file_may_be_a_symlink_that_is_moved_on(tree: Path) -> None:
    (tree / "current.txt").symlink_to("docs/a.txt")
    file = ServedFile(tree / "current.txt")
    assert file.read().data == "alpha"
    (tree / "current.txt").unlink()
    (tree / "current.txt").symlink_to(tree.parent / "outside" / "secret.txt")
    assert file.read().data == SECRET


@needs_posix
@pytest.mark.parametrize("swap", [lambda path: None, os.mkfifo, os.mkdir])
def test_a_single_file_that_is_gone(tree: Path, swap: Callable[[Path], None]) -> None:
    file = ServedFile(tree / "notes.md", uri="notes://today")
    (tree / "notes.md").unlink()
    swap(tree / "notes.md")
    for ask in (file.entry, file.read):
        with pytest.raises(NotFound) as caught:
            ask()
        assert str(tree) not in caught.value.message


def test_a_wrong_single_file(tree: Path) -> None:
    for path, options, word in (("missing", {}, "missing"), ("", {}, "root"), ("notes.md", {"uri": "x"}, "'x'")):
        with pytest.raises(SetupError, match=word):
            ServedFile(tree / path, **options)
    with pytest.raises(SetupError, match="max_bytes=0 must be at least 1"):
        ServedFile(tree / "notes.md", max_bytes=0)


def test_limits_may_be_one(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("x")
    directory = Directory(tmp_path, max_bytes=1, max_files=1)
    assert names(directory) == ["a.txt"]
    assert directory.read("b.txt").data == ServedFile(tmp_path / "b.txt", max_bytes=1).read().data == "x"


@pytest.mark.parametrize(
    ("name", "mime_type"),
    [
        ("main.rs", "text/x-rust"), ("README.md", "text/markdown"), ("pyproject.toml", "application/toml"),
        ("ci.YML", "application/yaml"), ("backup.tar.gz", "application/gzip"), ("Makefile", "text/plain"),
        ("unknown.xyz", BINARY), ("folder.md/unknown", BINARY), ("", BINARY),
    ],
)  # fmt: skip
def test_mime_types_are_the_same_everywhere(name: str, mime_type: str) -> None:
    assert guess_mime_type(name) == mime_type


# ── files as content ──


@pytest.mark.parametrize(
    ("options", "uri", "mime_type", "is_text"),
    [
        ({"format": "csv"}, "file:///resource.csv", "text/csv", True),
        ({"format": "PDF", "name": "my report"}, "file:///my%20report.pdf", "application/pdf", False),
        ({"format": "json", "name": "a.txt"}, "file:///a.txt", "application/json", True),
        ({"format": "x-odd"}, "file:///resource.x-odd", "application/x-odd", False),
        ({"name": "notes.md"}, "file:///notes.md", "text/markdown", True),
        ({}, "file:///resource", "application/octet-stream", False),
        ({"mime_type": "text/plain", "uri": "a://b"}, "a://b", "text/plain", True),
    ],
)
def test_a_file_of_data_has_a_type_and_a_uri(options: dict[str, str], uri: str, mime_type: str, is_text: bool) -> None:
    resource = File(b"a,b", **options).resource  # type: ignore[arg-type]
    assert (resource.uri, resource.mime_type) == (uri, mime_type)
    assert (resource.text, resource.blob) == (("a,b", None) if is_text else (None, b"a,b"))


def test_a_file_of_a_path_has_its_name_and_shows_no_folder(tmp_path: Path) -> None:
    (tmp_path / "été.csv").write_bytes("é".encode())
    file = File(path=tmp_path / "été.csv", annotations=Annotations(priority=1), meta={"a/b": 1})
    assert file.resource == ResourceContents("file:///%C3%A9t%C3%A9.csv", "text/csv", text="é")
    assert (file.annotations, file.meta) == (Annotations(priority=1), {"a/b": 1})
    (tmp_path / "été.csv").write_bytes(b"\xff")  # no text after all
    assert File(path=str(tmp_path / "été.csv")).resource.blob == b"\xff"
    for wrong in ({}, {"data": b"", "path": tmp_path / "été.csv"}):
        with pytest.raises(TypeError, match="File needs either data or path="):
            File(**wrong)
    with pytest.raises(TypeError, match="File: data must be bytes, not str; for a file write path="):
        File("été.csv")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="File: format='text/csv' is a whole type"):
        File(b"a,b", format="text/csv")
    assert File(b"a,b", format=".csv").resource == File(b"a,b", format="csv").resource


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25"])
async def test_a_tool_returns_a_file(revision: str) -> None:
    server = Server("files")

    @server.tool(idempotency=True)
    async def export(rows: int) -> File:
        return File(b"a,b\n" * rows, format="csv", meta={"a/b": 1})

    async with Client(server, protocol_version=revision) as client:
        (tool,) = await client.list_tools()
        assert tool.output_schema is None
        (content,) = (await client.call_tool("export", {"rows": 2}, idempotency_key="k")).content
        (again,) = (await client.call_tool("export", {"rows": 2}, idempotency_key="k")).content
    assert (
        again
        == content
        == EmbeddedResource(
            ResourceContents("file:///resource.csv", "text/csv", text="a,b\na,b\n"),
            meta=None if revision == "2024-11-05" else {"a/b": 1},
        )
    )
