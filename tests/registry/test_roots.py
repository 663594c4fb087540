"""Where a client works: the question, its answer, and the paths behind file URIs on both kinds of systems."""

import json
import os
import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import official
from dovetail.errors import MissingCapability, QuestionFailed
from dovetail.protocol import revisions
from dovetail.protocol.capabilities import require_client_support
from dovetail.protocol.elicitation import InputRequest
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.revisions import LATEST, Revision
from dovetail.registry.roots import MAX_ROOTS, Root, Roots, is_on_drive, local_path, uri_contains

REVISIONS = pytest.mark.parametrize("revision", [revisions.ALL[0], LATEST], ids=lambda row: row.name)
POSIX_ONLY = pytest.mark.skipif(os.name == "nt", reason="paths of the other kind of system")


def answer(*roots: Any) -> bytes:
    return json.dumps({"roots": roots}).encode()


@REVISIONS
def test_the_question(revision: Revision) -> None:
    inquiry: InputRequest[list[Root]] = Roots()
    assert (inquiry.server_request.method, inquiry.server_request.requires) == ("roots/list", ("roots",))
    assert inquiry.params(revision) == {}
    require_client_support(inquiry.server_request, revision, {"roots": {}})
    with pytest.raises(MissingCapability):
        require_client_support(inquiry.server_request, revision, {"sampling": {}})
    official.demand()
    request = {"jsonrpc": "2.0", "id": 1, "method": "roots/list", "params": inquiry.params(revision)}
    official.validator_for(revision.name, "ListRootsRequest").validate(request)


@REVISIONS
def test_roots_come_back(revision: Revision) -> None:
    result = answer({"uri": "file:///a", "name": "A", "_meta": {"k": 1}, "more": 1}, {"uri": "file:///b"})
    roots = Roots().read(result, revision)
    assert roots == [Root("file:///a", "A"), Root("file:///b")]
    official.demand()
    sent = {"roots": json.loads(encode(roots))}
    assert sent == {"roots": [{"uri": "file:///a", "name": "A"}, {"uri": "file:///b"}]}
    official.validator_for(revision.name, "ListRootsResult").validate(sent)


@pytest.mark.parametrize("file", ["multiple-root-directories", "single-root-directory"])
def test_official_answers(file: str) -> None:
    official.demand()
    raw = (official.FOLDER / "2026-07-28" / "examples" / "ListRootsResult" / f"{file}.json").read_bytes()
    assert json.loads(encode(Roots().read(raw, LATEST))) == json.loads(raw)["roots"]


BAD_ANSWERS: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{", "the result: does not fit"),
    "not UTF-8": (b'{"roots":[{"uri":"file:///\xff"}]}', "does not fit"),
    "no object": (b"[]", "the result: expected an object"),
    "nothing": (b"{}", "the result: roots is required, but missing"),
    "null": (b'{"roots":null}', "roots: expected an array"),
    "no array": (b'{"roots":{}}', "roots: expected an array"),
    "strings": (answer("file:///a"), r"roots\[0\]: expected an object"),
    "no uri": (answer({"name": "a"}), r"roots\[0\]: uri is required"),
    "number": (answer({"uri": 1}), r"roots\[0\].uri: expected a string"),
    "name": (answer({"uri": "file:///a", "name": 1}), r"roots\[0\].name: "),
    "web": (answer({"uri": "file:///a"}, {"uri": "https://a/b"}), r"roots\[1\]: uri='https://a/b' must be a file"),
    "too many": (answer(*[{"uri": "file:///a"}] * (MAX_ROOTS + 1)), "roots: must have a length of at most 1000"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_answers_that_are_not_believed(name: str) -> None:
    result, words = BAD_ANSWERS[name]
    with pytest.raises(QuestionFailed, match=f"^The client's answer to roots/list can't be used: .*{words}"):
        Roots().read(result, LATEST)


# URIs


NO_FILE_URIS = [
    "", "/home/me", "file:/home/me", "file://", "file://localhost", "file:home", "file://~/x", "file://./x",
    "file://C:/x", "file://me@host/x", "file://host:80/x", "file://[::1]/x", "file:///a?b", "file:///a#b",
    "file:///100%", "file:///%zz", "file:///a%00b", "file:///a\0b", " file:///a", "files:///a", "file:///\ud800",
]  # fmt: skip


@pytest.mark.parametrize("uri", NO_FILE_URIS)
def test_what_is_no_file_uri(uri: str) -> None:
    with pytest.raises(ValueError, match=r"file:// URI|surrogates"):
        Root(uri)
    with pytest.raises(TypeError, match=r"uri must be a string, not .*Path; .*as_uri"):
        Root(Path("/a"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uri", "posix", "windows"),
    [
        ("file:///home/me", "/home/me", None),
        ("FILE:///C:/me", "/C:/me", "C:/me"),
        ("file://localhost/C:/me", "/C:/me", "C:/me"),
        ("file:///", "/", None),
        ("file:///C:/a%20b/c%23%3F%25", "/C:/a b/c#?%", "C:/a b/c#?%"),
        ("file:///C:/a b", "/C:/a b", "C:/a b"),
        ("file:///C:/caf%C3%A9", "/C:/café", "C:/café"),
        ("file:///c%3A/Users/me", "/c:/Users/me", "c:/Users/me"),
        ("file:///C|/Users", "/C|/Users", "C:/Users"),
        ("file:///C:", "/C:", "C:/"),
        ("file:///C://evil/share", "/C://evil/share", "C://evil/share"),  # slashes in the middle are one
    ],
)
def test_paths_of_uris(uri: str, posix: str, windows: str | None) -> None:
    assert Root(uri).uri == uri
    assert local_path(uri, windows=False) == posix
    assert path_or_none(uri, windows=True) == windows
    assert windows is None or PureWindowsPath(windows).drive in ("C:", "c:")


@pytest.mark.parametrize(
    ("uri", "posix"),
    [
        ("file://evil/share", None), ("file://evil.example/share/x%20y", None), ("file://127.0.0.1/C:/x", None),
        ("file:////evil/share", "/evil/share"), ("file://localhost//evil/share", "/evil/share"),
        ("file:///%2Fevil/share", "/evil/share"), ("file:////%3F/C:/x", "/?/C:/x"),
        ("file:////./pipe/x", "/./pipe/x"), ("file:///%5C%5Cevil%5Cshare", "/\\\\evil\\share"),
        ("file:///\\\\evil\\share", "/\\\\evil\\share"), ("file:///%5C%3F%5CC:/x", "/\\?\\C:/x"),
        ("file:////C:/x", "/C:/x"), ("file:///C:evil", "/C:evil"), ("file:///C:%5Cx", "/C:\\x"),
        ("file:///\u212a:/x", "/\u212a:/x"),  # looks like a K, and some think that it is one
    ],
)  # fmt: skip
def test_roots_that_are_elsewhere(uri: str, posix: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are listed, but never looked up: on Windows that alone would contact another host."""
    assert Root(uri).uri == uri
    with pytest.raises(ValueError, match="is on another machine, '" if posix is None else "has no drive"):
        local_path(uri, windows=True)
    assert path_or_none(uri, windows=False) == posix

    def looked_up(*_arguments: object, **_options: object) -> Path:
        raise AssertionError("the path is looked up")

    monkeypatch.setattr(Path, "resolve", looked_up)
    assert not uri_contains(uri, "x", windows=True)


@given(st.text("/\\:|?.%5CcFf2evil", max_size=16))
def test_every_path_on_windows_is_on_a_drive(text: str) -> None:
    path = path_or_none(f"file://{text}", windows=True)
    assert path is None or re.fullmatch("[A-Za-z]:", PureWindowsPath(path).drive)


def test_paths_that_lead_to_another_machine_are_not_followed() -> None:
    here = ["x", "C:/x", "D:/x", "/x", ".."]
    there = ["//evil/share/x", "\\\\evil\\share\\x", "/\\evil/share", "//?/C:/x", "//?/UNC/evil/share", "//./pipe/x"]
    for path in (*here, *there):
        assert is_on_drive(PureWindowsPath("C:/root") / path) is (path in here), path
        assert is_on_drive(PurePosixPath("/root") / path)


@POSIX_ONLY
def test_names_that_are_not_unicode() -> None:
    assert os.fsencode(Root("file:///%FF").path) == b"/\xff"
    with pytest.raises(UnicodeDecodeError):
        local_path("file:///C:/%FF", windows=True)


@POSIX_ONLY
@given(st.lists(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_a_path_comes_back_as_it_went(parts: list[str]) -> None:
    path = Path("/", *parts)
    assert Root(path.as_uri()).path == path


# What lies below


def test_what_a_root_contains(tmp_path: Path) -> None:
    inside = tmp_path / "project"
    (inside / "src").mkdir(parents=True)
    (inside / "src" / "main.py").touch()
    (tmp_path / "projects").mkdir()
    root = Root(inside.as_uri())
    assert root.path == inside
    for path in (inside, inside / "src" / "main.py", inside / "new", "src/main.py", "src/../new", "", "."):
        assert root.contains(path), path
    for path in (tmp_path, tmp_path / "projects", "..", "../projects", "src/../../x", "/", inside / ".." / "x", "a\0b"):
        assert root.contains(path) is False, path


@POSIX_ONLY
def test_links_lead_where_they_lead(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "away").symlink_to(outside)
    (outside / "back").symlink_to(inside)
    (tmp_path / "alias").symlink_to(inside)
    (inside / "loop").symlink_to(inside / "loop")
    root = Root(inside.as_uri())
    assert not root.contains("away/x")
    assert root.contains(outside / "back" / "x")
    assert Root((tmp_path / "alias").as_uri()).contains(inside / "x")
    root.contains("loop/x")  # it returns, true or false


def path_or_none(uri: str, windows: bool) -> str | None:
    try:
        return local_path(uri, windows=windows)
    except ValueError:
        return None
