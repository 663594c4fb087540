"""OpenAPI documents: what is loaded, which references are followed, and what is refused."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dovetail.errors import SetupError
from dovetail.openapi.document import MAX_BYTES, BadReference, Document
from dovetail.openapi.operations import read_operations

YAML = """\
openapi: 3.0.3
info: {title: Pets, version: 1.0}
x-base: &base {a: 1, b: yes}
x-merged: {<<: *base, b: 2020-01-31}
paths:
  /pets:
    get:
      responses:
        200: {description: 12:30}
"""


def test_yaml_is_read_as_json_would_be(tmp_path: Path) -> None:
    file = tmp_path / "openapi.yaml"
    file.write_text(YAML)
    spec = Document.load(file).spec
    assert spec["x-merged"] == {"a": 1, "b": "2020-01-31"}
    assert spec["x-base"]["b"] == "yes"
    assert spec["paths"]["/pets"]["get"]["responses"] == {"200": {"description": "12:30"}}


def test_words_of_yaml_may_be_capitals(tmp_path: Path) -> None:
    file = tmp_path / "openapi.yaml"
    file.write_text("openapi: 3.1.0\nx: [True, FALSE, Null, 'True', truE, yes]")
    assert Document.load(file).spec["x"] == [True, False, None, "True", "truE", "yes"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("swagger: '2.0'", "convert it"),
        ("openapi: 4.0.0", "OpenAPI 3.0 and 3.1"),
        ("{}", '"openapi" is null'),
        ("[1]", "is an object"),
        ("{", "as YAML"),
        ("openapi: 3.1.0\npaths: []", '"paths"'),
        ("a: *nowhere", "line 1: there is no anchor"),
        ("? [a]\n: b", "a key is a text"),
        ("[" * 50_000, "nested deeper than 100"),
        ("openapi: 3.0.0\nx: &x [*x]", "line 2: there is no anchor"),
    ],
)
def test_a_broken_document_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "openapi.yaml"
    file.write_text(text)
    with pytest.raises(SetupError, match="openapi") as raised:
        Document.load(file)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    "level", ["[{0},{0},{0},{0},{0},{0},{0},{0},{0}]", "{{<<: [{0},{0},{0},{0},{0},{0},{0},{0},{0}]}}"]
)
def test_billion_laughs_are_refused_or_harmless(tmp_path: Path, level: str) -> None:
    first = "x0: &x0 [a]\n" if level.startswith("[") else "x0: &x0 {a: b}\n"
    rest = "".join(f"x{n + 1}: &x{n + 1} {level.format(f'*x{n}')}\n" for n in range(12))
    file = tmp_path / "laughs.yaml"
    file.write_text(f"openapi: 3.0.0\n{first}{rest}")
    if level.startswith("["):
        with pytest.raises(SetupError, match="too large"):
            Document.load(file)
    else:
        assert Document.load(file).spec["x12"] == {"a": "b"}


def test_too_many_bytes_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "openapi.json"
    file.write_text('{"openapi": "3.0.0"}' + " " * MAX_BYTES)
    with pytest.raises(SetupError, match="too large"):
        Document.load(file)


def test_references_stay_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "api"
    (folder / "parts").mkdir(parents=True)
    (tmp_path / "secret.json").write_text('{"a": 1}')
    (folder / "link.json").symlink_to(tmp_path / "secret.json")
    (folder / "parts" / "pet.yaml").write_text("Pet: {a/b: [x, {q: 1}]}\nback: {$ref: '../openapi.json#/openapi'}")
    (folder / "openapi.json").write_text('{"openapi": "3.1.0"}')
    document = Document.load(folder / "openapi.json")
    found = document.resolve("parts/pet.yaml#/Pet/a~1b/1/q", document.base)
    assert found[0] == 1
    assert document.resolve("../openapi.json#/openapi", found[1])[0] == "3.1.0"
    for reference in (
        "../secret.json",
        "link.json",
        "/etc/passwd",
        "file:///etc/passwd",
        "http://127.0.0.1:1/x",
        "no.json",
        "long" * 100,
    ):
        with pytest.raises(BadReference):
            document.resolve(reference, document.base)
    for reference in ("#/nowhere", "#anchor", "parts/pet.yaml#/Pet/a~1b/7"):
        with pytest.raises(BadReference, match=r"leads nowhere|anchor"):
            document.resolve(reference, document.base)


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:port/openapi.json", "https:///openapi.json"])
def test_what_is_no_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(SetupError, match="it can't be fetched: "):
        Document.load(url)


def test_a_dict_has_no_other_files() -> None:
    document = Document.load({"openapi": "3.0.0", "a b": {"$ref": "#/c"}, "c": {"$ref": "#/a%20b"}, 200: "ok"})
    assert document.resolve("#/200", document.base)[0] == "ok"
    with pytest.raises(BadReference, match="on and on"):
        document.follow({"$ref": "#/c"}, document.base)
    with pytest.raises(BadReference, match="never opened"):
        document.resolve("other.json", document.base)


class Api(http.server.BaseHTTPRequestHandler):
    pages: ClassVar[dict[str, tuple[int, str]]] = {}
    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.path)
        status, text = self.pages.get(self.path, (404, ""))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", text)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def origin() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    Api.seen.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_document_is_fetched_with_files_of_its_own_origin(origin: str) -> None:
    Api.pages = {
        "/openapi": (302, "/v1/openapi.json"),
        "/v1/openapi.json": (200, '{"openapi": "3.0.0"}'),
        "/v1/pet.yaml": (200, "a: 1"),
        "/away": (302, "http://localhost:1/"),
    }
    document = Document.load(f"{origin}/openapi")
    assert document.origin == f"{origin}/v1/openapi.json"
    assert document.resolve("pet.yaml#/a", document.base)[0] == 1
    for _ in range(2):
        with pytest.raises(BadReference, match="404"):
            document.resolve("lost.yaml", document.base)
    with pytest.raises(BadReference, match="another origin"):
        document.resolve("http://localhost:1/x.json", document.base)
    assert Api.seen == ["/openapi", "/v1/openapi.json", "/v1/pet.yaml", "/v1/lost.yaml"]
    with pytest.raises(SetupError, match="redirected to another origin"):
        Document.load(f"{origin}/away")
    with pytest.raises(SetupError, match="has a user or password") as raised:
        Document.load("http://me:hidden@localhost/none?key=secret")
    assert "secret" not in str(raised.value)
    assert "hidden" not in str(raised.value)


def test_servers_of_a_fetched_document_count_at_its_own_origin(origin: str) -> None:
    def fetch(servers: str, operation: str = "{}") -> dict[str, str]:
        text = f'{{"openapi": "3.0.0", "servers": {servers}, "paths": {{"/a": {{"get": {{}}, "put": {operation}}}}}}}'
        Api.pages = {"/docs/openapi.json": (200, text)}
        operations, report = read_operations(Document.load(f"{origin}/docs/openapi.json"))
        return {each.method: each.base_url for each in operations} | {"left out": " ".join(report.left_out)}

    assert fetch('[{"url": "v1/"}]')["GET"] == f"{origin}/docs/v1"
    assert fetch("[]")["GET"] == origin
    foreign = '[{"url": "https://other.example.com"}]'
    with pytest.raises(SetupError, match=r"another origin .* base_url="):
        fetch(foreign)
    found = fetch("[]", f'{{"servers": {foreign}}}')
    assert "PUT" not in found
    assert found["left out"].startswith("PUT /a: its server https://other.example.com")
