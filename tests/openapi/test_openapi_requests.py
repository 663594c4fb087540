"""Requests of operations: what is written in a style of OpenAPI is read back as the same values."""

import base64
import json
import re
from email import message_from_bytes
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import ArgumentError, ToolDefinition
from dovetail.auth.fetch import FetchRequest
from dovetail.openapi.document import Document
from dovetail.openapi.operations import Body, Operation, Parameter, Part, read_operations
from dovetail.openapi.requests import build_request

BASE = "https://api.example.com/v1"
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1)
SAFE_TEXTS = TEXTS.filter(lambda text: not re.search(r"[\x00-\x1f\x7f]|(^|[/\\;])\s*\.\.?\s*($|[/\\;])|%", text))


def operation(*parameters: Parameter, body: Body | None = None, path: str = "/pets", method: str = "GET") -> Operation:
    definition = ToolDefinition(name="pets", input_schema={"type": "object"})
    return Operation(
        name="pets", method=method, path=path, base_url=BASE, definition=definition, parameters=parameters, body=body
    )


def query(value: Any, **options: Any) -> str:
    parameter = Parameter(argument="q", name="q", place="query", **options)
    return urlsplit(build_request(operation(parameter), {"q": value}).url).query


def path(value: Any, **options: Any) -> str:
    parameter = Parameter(argument="id", name="id", place="path", **{"style": "simple", "explode": False, **options})
    url = build_request(operation(parameter, path="/pets/{id}"), {"id": value}).url
    return url.removeprefix(f"{BASE}/pets/")


def sent(body: Body, /, **arguments: Any) -> FetchRequest:
    return build_request(operation(body=body, method="POST"), arguments)


COLOURS, POINT = ["blue", "black"], {"R": 100, "G": 200}


@pytest.mark.parametrize(
    ("value", "style", "explode", "written"),
    [
        ("blue", "simple", False, "blue"),
        (COLOURS, "simple", False, "blue,black"),
        (POINT, "simple", False, "R,100,G,200"),
        (POINT, "simple", True, "R=100,G=200"),
        ("blue", "label", False, ".blue"),
        (COLOURS, "label", False, ".blue,black"),
        (COLOURS, "label", True, ".blue.black"),
        (POINT, "label", True, ".R=100.G=200"),
        ("blue", "matrix", False, ";id=blue"),
        (COLOURS, "matrix", False, ";id=blue,black"),
        (COLOURS, "matrix", True, ";id=blue;id=black"),
        (POINT, "matrix", True, ";R=100;G=200"),
    ],
)
def test_a_path_has_the_styles_of_rfc_6570(value: Any, style: str, explode: bool, written: str) -> None:
    assert path(value, style=style, explode=explode) == written


@pytest.mark.parametrize(
    ("value", "style", "explode", "written"),
    [
        (COLOURS, "form", True, "q=blue&q=black"),
        (COLOURS, "form", False, "q=blue,black"),
        (POINT, "form", True, "R=100&G=200"),
        (POINT, "form", False, "q=R,100,G,200"),
        (COLOURS, "spaceDelimited", False, "q=blue%20black"),
        (COLOURS, "pipeDelimited", False, "q=blue%7Cblack"),
        (COLOURS, "pipeDelimited", True, "q=blue&q=black"),
        ([], "form", True, ""),
        ({}, "form", False, ""),
        ("", "form", True, "q="),
        (True, "form", True, "q=true"),
        (1.5, "form", True, "q=1.5"),
        (None, "form", True, ""),
        ([1, None, 2], "form", False, "q=1,2"),
        ([{"a": 1}], "form", True, "q=%7B%22a%22%3A1%7D"),
    ],
)
def test_a_query_has_its_styles(value: Any, style: str, explode: bool, written: str) -> None:
    assert query(value, style=style, explode=explode) == written


def test_deep_objects_are_nested_by_brackets() -> None:
    value = {"a": 1, "b": {"c": "x", "d": None}, "e": ["f", "g"], "h": [{"i": 1}, {"i": 2}]}
    written = parse_qsl(query(value, style="deepObject"))
    assert written == [
        ("q[a]", "1"), ("q[b][c]", "x"), ("q[e][]", "f"), ("q[e][]", "g"), ("q[h][0][i]", "1"), ("q[h][1][i]", "2"),
    ]  # fmt: skip


def test_reserved_characters_are_encoded() -> None:
    assert query("a/b&c#d+e") == "q=a%2Fb%26c%23d%2Be"


@given(st.lists(TEXTS, min_size=1), st.sampled_from(["form", "spaceDelimited", "pipeDelimited"]), st.booleans())
def test_lists_of_any_text_are_read_back(texts: list[str], style: str, explode: bool) -> None:
    written = query(texts, style=style, explode=explode)
    if explode:
        assert parse_qs(written)["q"] == texts
        return
    joint = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}[style]
    if style == "form":  # a blank or bar inside of an item can't be told from one between items
        assert [unquote(each) for each in written.removeprefix("q=").split(joint)] == texts


@given(st.dictionaries(TEXTS, TEXTS, min_size=1))
def test_objects_of_any_text_are_read_back(value: dict[str, str]) -> None:
    assert dict(parse_qsl(query(value), keep_blank_values=True)) == value
    assert json.loads(parse_qs(query(value, is_json=True))["q"][0]) == value


@given(SAFE_TEXTS)
def test_a_path_value_is_one_segment(text: str) -> None:
    written = path(text)
    assert "/" not in written and "?" not in written and "#" not in written  # noqa: PT018
    assert unquote(written) == text


@pytest.mark.parametrize(
    "value",
    [
        ".",
        "..",
        "%2e%2e",
        "%252E.",
        "a/../b",
        r"a\..\b",
        "../x",
        "x/.",
        ".. ",
        "..;",
        "..%3bx",
        "",
        [],
        "a\r\nb",
        "a\0b",
        [""],
        "%00",
        None,
    ],
)
def test_a_path_value_that_leads_elsewhere_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"Invalid arguments for pets:\n- id: must"):
        path(value)


def test_two_values_that_make_dots_together_are_refused() -> None:
    both = [Parameter(argument=name, name=name, place="path", style="simple", explode=False) for name in "ab"]
    with pytest.raises(ArgumentError, match=r"- a, b: must"):
        build_request(operation(*both, path="/x/{a}{b}"), {"a": ".", "b": "."})
    assert build_request(operation(*both, path="/x/{a}.{b}"), {"a": ".x", "b": "y"}).url == f"{BASE}/x/.x.y"


def test_a_value_that_looks_like_a_variable_is_not_filled_in() -> None:
    both = [Parameter(argument=name, name=name, place="path", style="simple", explode=False) for name in "ab"]
    assert build_request(operation(*both, path="/{a}-{b}"), {"a": "{b}", "b": "y"}).url == f"{BASE}/%7Bb%7D-y"


@pytest.mark.parametrize("value", ["a\r\nHost: evil", "a\nb", "a\0", "é", "☃"])
def test_a_header_value_is_one_line_of_ascii(value: str) -> None:
    parameter = Parameter(argument="trace", name="X-Trace", place="header", style="simple", explode=False)
    with pytest.raises(ArgumentError, match="- trace: must be one line"):
        build_request(operation(parameter), {"trace": value})


def test_headers_of_the_connection_and_of_credentials_never_come_from_arguments() -> None:
    names = ["Host", "cookie", "AUTHORIZATION", "Proxy-Authorization", "Content-Length", "Transfer-Encoding", "X-Mine"]
    parameters = [{"name": name, "in": "header", "schema": {"type": "string"}} for name in names]
    document = {"openapi": "3.1.0", "paths": {"/x": {"get": {"parameters": parameters}}}}
    (found,), _ = read_operations(Document.load(document), base_url=BASE)
    assert build_request(found, dict.fromkeys(names, "x")).headers == {"X-Mine": "x"}


@pytest.mark.parametrize("name", ["X\r\nHost", "Host: evil", "X Y", "é"])
def test_a_name_that_no_header_may_have_is_refused(name: str) -> None:
    parameter = Parameter(argument="a", name=name, place="header", style="simple", explode=False)
    with pytest.raises(ArgumentError, match="- a: must"):
        build_request(operation(parameter), {"a": "x"})


def test_headers_are_simple() -> None:
    parameter = Parameter(argument="ids", name="X-Ids", place="header", style="simple", explode=False)
    assert build_request(operation(parameter), {"ids": [1, 2]}).headers == {"X-Ids": "1,2"}


def test_renamed_arguments_get_their_names_back() -> None:
    body = Body(content_type="application/json", kind="json", properties={"id_2": "id", "name": "name"})
    parameter = Parameter(argument="id", name="id", place="path", style="simple", explode=False)
    request = build_request(
        operation(parameter, body=body, path="/pets/{id}", method="PUT"), {"id": 7, "id_2": 8, "name": None}
    )
    assert (request.url, request.body) == (f"{BASE}/pets/7", b'{"id":8,"name":null}')
    assert request.headers == {"Content-Type": "application/json"}


def test_a_whole_body_and_none() -> None:
    body = Body(content_type="application/json", kind="json")
    assert sent(body, body=[1, 2]).body == b"[1,2]"
    assert sent(body, body=None).body == b"null"
    assert sent(body).body is None
    optional = Body(content_type="application/json", kind="json", properties={"a": "a"})
    assert sent(optional).body is None
    assert sent(Body(content_type="application/json", kind="json", properties={}, required=True)).body == b"{}"


def test_text_and_binary_bodies() -> None:
    assert sent(Body(content_type="text/plain", kind="text"), body="ünï").body == "ünï".encode()
    binary = Body(content_type="image/png", kind="binary", argument="file")
    assert sent(binary, file=base64.b64encode(b"\x89PNG").decode()).body == b"\x89PNG"
    with pytest.raises(ArgumentError, match="- file: must be base64"):
        sent(binary, file="no base64!")


FORM = "application/x-www-form-urlencoded"


@given(st.dictionaries(TEXTS, st.lists(TEXTS, min_size=1), min_size=1))
def test_forms_are_read_back(value: dict[str, list[str]]) -> None:
    request = sent(Body(content_type=FORM, kind="form"), body=value)
    assert parse_qs((request.body or b"").decode()) == value


def test_a_form_has_the_encodings_of_its_properties() -> None:
    parts = {
        "deep": Part(style="deepObject"),
        "list": Part(style="form", explode=False),
        "json": Part(content_type="application/json"),
    }
    value = {"deep": {"a": {"b": 1}}, "list": [1, 2], "json": [1], "plain": {"c": 2}, "none": None, "on": True}
    request = sent(Body(content_type=FORM, kind="form", parts=parts), body=value)
    written = dict(parse_qsl((request.body or b"").decode()))
    assert written == {"deep[a][b]": "1", "list": "1,2", "json": "[1]", "plain": '{"c":2}', "on": "true"}


def parts_of(request: FetchRequest) -> list[tuple[str, str | None, str | None, bytes]]:
    head = f"Content-Type: {request.headers['Content-Type']}\r\n\r\n".encode()
    message = message_from_bytes(head + (request.body or b""), policy=HTTP)
    return [
        (
            str(part.get_param("name", header="content-disposition")),
            part.get_filename(),
            part.get("content-type"),
            part.get_payload(decode=True),
        )
        for part in message.iter_parts()
    ]


@given(st.dictionaries(st.from_regex(r"[a-z]\w{0,8}", fullmatch=True), st.binary(), min_size=1))
def test_files_of_a_multipart_body_are_read_back(files: dict[str, bytes]) -> None:
    binary = Body(
        content_type="multipart/form-data", kind="multipart", parts=dict.fromkeys(files, Part(is_binary=True))
    )
    request = sent(binary, body={name: base64.b64encode(content).decode() for name, content in files.items()})
    boundary = request.headers["Content-Type"].partition("boundary=")[2].encode()
    pieces = (request.body or b"").split(b"--" + boundary)
    contents = [piece.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n") for piece in pieces[1:-1]]
    assert contents == list(files.values())


def test_a_multipart_body_has_text_json_and_files() -> None:
    parts = {
        "file": Part(is_binary=True, content_type="image/png"),
        "files": Part(is_binary=True),
        "meta": Part(content_type="application/json; charset=utf-8"),
    }
    body = Body(
        content_type="multipart/form-data",
        kind="multipart",
        parts=parts,
        properties={"upload": "file", "files": "files", "meta": "meta", "note": "note", "tags": "tags", "at": "at"},
    )
    arguments = {
        "upload": "AAE=",
        "files": ["Ag==", "Aw=="],
        "meta": [1],
        "note": "hé",
        "tags": ["a", "b"],
        "at": {"x": 1},
    }
    assert parts_of(sent(body, **arguments)) == [
        ("file", "file", "image/png", b"\0\1"),
        ("files", "files", "application/octet-stream", b"\2"),
        ("files", "files", "application/octet-stream", b"\3"),
        ("meta", None, 'application/json; charset="utf-8"', b"[1]"),
        ("note", None, None, "hé".encode()),
        ("tags", None, None, b"a"),
        ("tags", None, None, b"b"),
        ("at", None, "application/json", b'{"x":1}'),
    ]
    with pytest.raises(ArgumentError, match="- file: must be base64"):
        sent(body, upload="?")


def test_a_name_of_a_part_can_not_leave_its_quotes() -> None:
    request = sent(Body(content_type="multipart/form-data", kind="multipart"), body={'a"\r\nX: y': "v"})
    assert b'name="a%22%0D%0AX: y"\r\n' in (request.body or b"")
