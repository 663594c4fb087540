"""Operations of OpenAPI documents as tools: names, arguments, schemas, texts, servers, and what is left out."""

import copy
from functools import reduce
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cli.lint import Catalog, check_catalog
from dovetail.errors import SetupError
from dovetail.openapi.document import Document
from dovetail.openapi.operations import Operation, Report, read_operations
from dovetail.schema.validate import Validator

BASE = "https://api.example.com"


def read(spec: dict[str, Any], **options: Any) -> tuple[dict[str, Operation], Report]:
    document = Document.load({"openapi": "3.0.3", "servers": [{"url": BASE}], **spec})
    operations, report = read_operations(document, **options)
    return {operation.name: operation for operation in operations}, report


def read_one(node: dict[str, Any], *, method: str = "post", path: str = "/pets", **spec: Any) -> Operation:
    found, _ = read({"paths": {path: {method: {"operationId": "it", "responses": {}, **node}}}, **spec})
    return found["it"]


def body(schema: Any, media: str = "application/json", *, required: bool = True) -> dict[str, Any]:
    return {"requestBody": {"required": required, "content": {media: {"schema": schema}}}}


def converted(schema: Any, **components: Any) -> Any:
    """The schema of one property of a body."""
    operation = read_one(body({"type": "object", "properties": {"x": schema}}), components={"schemas": components})
    return operation.definition.input_schema["properties"]["x"]


def output(schema: Any, **components: Any) -> Any:
    responses = {"200": {"description": "", "content": {"application/json": {"schema": schema}}}}
    return read_one({"responses": responses}, components={"schemas": components}).definition.output_schema


def test_arguments_of_all_places_are_merged_and_clashes_renamed() -> None:
    parameters = [
        {"name": "id", "in": "header", "schema": {"type": "string"}},
        {"name": "id", "in": "query", "schema": {"type": "array", "items": {"type": "string"}}, "explode": False},
        {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}},
        {"name": "filter[name]", "in": "query", "style": "deepObject", "schema": {"type": "object"}},
        {"name": "where", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}},
    ]
    node = {
        "parameters": parameters,
        **body({"type": "object", "properties": {"id": {"type": "boolean"}}, "required": ["id"]}),
    }
    operation = read_one(node, path="/pets/{id}")
    places = {
        each.argument: (each.place, each.name, each.style, each.explode, each.is_json) for each in operation.parameters
    }
    assert places == {
        "id": ("path", "id", "simple", False, False),
        "id_query": ("query", "id", "form", False, False),
        "filter_name": ("query", "filter[name]", "deepObject", False, False),
        "where": ("query", "where", "form", True, True),
        "id_header": ("header", "id", "simple", False, False),
    }
    assert operation.body is not None
    assert operation.body.properties == {"id_body": "id"}
    schema = operation.definition.input_schema
    assert schema["required"] == ["id", "id_body"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["id"] == {"type": "integer"}


def test_parameters_of_the_path_are_overridden_and_missing_variables_added() -> None:
    item = {
        "parameters": [{"name": "q", "in": "query", "schema": {"type": "string"}}],
        "get": {"parameters": [{"name": "q", "in": "query", "required": True, "schema": {"type": "integer"}}]},
    }
    found, _ = read({"paths": {"/a/{b}": item}})
    schema = found["get_a_b"].definition.input_schema
    assert schema["properties"] == {"b": {"type": "string"}, "q": {"type": "integer"}}
    assert schema["required"] == ["b", "q"]


@pytest.mark.parametrize(
    "name", ["Authorization", "host", "COOKIE", "X-Forwarded-For", "Proxy-Connection", "Content-Length"]
)
def test_headers_of_the_client_are_never_arguments(name: str) -> None:
    parameters = [{"name": name, "in": "header", "required": True}, {"name": "s", "in": "cookie", "required": True}]
    found, report = read({"paths": {"/a": {"get": {"parameters": parameters}}}})
    assert found["get_a"].definition.input_schema["properties"] == {}
    assert len(report.notes) == 2
    assert all(note.startswith("GET /a: it requires the") for note in report.notes)


def test_keys_of_security_schemes_are_no_arguments() -> None:
    spec = {
        "components": {"securitySchemes": {"key": {"type": "apiKey", "in": "query", "name": "api_key"}}},
        "security": [{"key": []}],
        "paths": {"/a": {"get": {"parameters": [{"name": "api_key", "in": "query", "required": True}]}}},
    }
    found, report = read(spec)
    assert found["get_a"].parameters == ()
    assert found["get_a"].security == ({"key": []},)
    assert report.notes == []


def test_keywords_of_openapi_3_0_become_json_schema() -> None:
    assert converted({"type": "string", "nullable": True, "enum": ["a"]}) == {
        "type": ["string", "null"],
        "enum": ["a", None],
    }
    assert converted({"type": ["string", "null"], "enum": ["a"]})["enum"] == ["a"]  # as JSON Schema has it
    assert converted({"type": "integer", "minimum": 1, "exclusiveMinimum": True}) == {
        "type": "integer",
        "exclusiveMinimum": 1,
    }
    assert converted({"type": "array"}) == {"type": "array", "items": {}}
    assert converted({"type": "string", "example": "x", "xml": {}}) == {"type": "string"}
    assert converted({"type": "string", "pattern": "(?<=a)b(?!c)", "format": "time"}) == {"type": "string"}
    assert converted({"type": "string", "pattern": "^a+$", "format": "date"}) == {
        "type": "string",
        "pattern": "^a+$",
        "format": "date",
    }
    assert converted({"type": "string", "enum": [1, True]})["enum"] == ["1", "true"]
    assert converted({"type": "array", "const": reduce(lambda value, _: [value], range(200), [])}).keys() == {
        "type",
        "items",
    }
    assert converted(
        {"$ref": "#/components/schemas/A", "description": "mine"}, A={"type": "string", "description": "its"}
    ) == {
        "type": "string",
        "description": "mine",
    }


def test_all_of_is_flattened_where_it_can_be() -> None:
    base = {
        "type": "object",
        "properties": {"id": {"type": "integer", "readOnly": True}, "n": {"type": "string"}},
        "required": ["id", "n"],
    }
    own = {
        "type": "object",
        "properties": {"n": {"maxLength": 3, "type": "string"}, "m": {"type": "string"}},
        "required": ["m"],
    }
    flat = converted({"allOf": [{"$ref": "#/components/schemas/Base"}, own]}, Base=base)
    assert flat["properties"] == {"n": {"type": "string", "maxLength": 3}, "m": {"type": "string"}}
    assert flat["required"] == ["n", "m"]
    assert converted({"allOf": [{"required": ["a", "a"]}, {"required": ["a"]}]}) == {"required": ["a"]}
    kept = converted({"allOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "z$"}]})
    assert kept == {"type": "string", "pattern": "^a", "allOf": [{"pattern": "z$"}]}


def test_alternatives_of_required_properties_are_kept() -> None:
    either = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    assert converted(either)["anyOf"] == [{"required": ["a"]}, {"required": ["b"]}]


def test_recursion_is_one_reference() -> None:
    node = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#/components/schemas/Node"}},
        },
    }
    schema = read_one(
        body({"$ref": "#/components/schemas/Node"}), components={"schemas": {"Node": node}}
    ).definition.input_schema
    assert schema["properties"]["children"] == {"type": "array", "items": {"$ref": "#/$defs/Node"}}
    assert set(schema["$defs"]) == {"Node"}
    validator = Validator(schema, where="it")
    assert validator.is_valid({"children": [{"children": [{"name": "a"}]}]})
    assert not validator.is_valid({"children": [{"children": [{"name": 1}]}]})


def test_recursive_schemas_have_names_of_their_own() -> None:
    def named(*keys: str) -> dict[str, Any]:
        references = {key: {"$ref": f"#/components/schemas/{key.replace('/', '~1')}"} for key in keys}
        return {"type": "object", "properties": references}

    schemas = {"A_2": named("A_2"), "A/": named("A/"), "A?": named("A?"), "All": named("A_2", "A/", "A?")}
    schema = read_one(body(named("All")), components={"schemas": schemas}).definition.input_schema
    assert len(schema["$defs"]) == 3
    assert Validator(schema, where="it").is_valid({"All": {"A_2": {"A_2": {}}, "A": {}}})


def test_a_discriminator_names_the_members_of_its_union() -> None:
    reference = "#/components/schemas/"
    kinds = {"propertyName": "kind", "mapping": {"cat": f"{reference}Cat", "dog": "Dog"}}
    union = {"oneOf": [{"$ref": f"{reference}Cat"}, {"$ref": f"{reference}Dog"}], "discriminator": kinds}
    named = {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}
    members = converted(union, Cat=named, Dog=named)["anyOf"]
    assert [each["properties"]["kind"] for each in members] == [
        {"type": "string", "const": "cat"},
        {"type": "string", "const": "dog"},
    ]


def test_a_union_that_its_members_inherit_leads_in_no_circle() -> None:
    reference = "#/components/schemas/"
    pet = {"type": "object", "oneOf": [{"$ref": f"{reference}Cat"}, {"$ref": f"{reference}Dog"}]}
    cat = {"allOf": [{"$ref": f"{reference}Pet"}], "properties": {"friend": {"$ref": f"{reference}Pet"}}}
    operation = read_one(
        body({"type": "array", "items": {"$ref": f"{reference}Cat"}}),
        components={"schemas": {"Pet": pet, "Cat": cat, "Dog": {"allOf": [{"$ref": f"{reference}Pet"}]}}},
    )
    validator = Validator(operation.definition.input_schema, where="it")
    assert validator.is_valid({"body": [{"friend": {"friend": {}}}]})
    assert not validator.is_valid({"body": [{"friend": 1}]})


def test_a_property_called_ref_is_a_property() -> None:
    schema = {"type": "object", "properties": {"$ref": {"type": "string"}, "a": {"type": "string"}}}
    assert read_one(body(schema)).definition.input_schema["properties"] == {
        "ref": {"type": "string"},
        "a": {"type": "string"},
    }
    assert converted(schema)["properties"] == schema["properties"]


@pytest.mark.parametrize(
    ("schema", "required"),
    [
        ({"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"b": {}}}]}, True),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "string"}},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            True,
        ),
        ({"type": "array", "items": {"type": "string"}}, True),
        ({"type": "object", "additionalProperties": {"type": "string"}}, True),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
            False,
        ),  # all of it, or nothing
    ],
)
def test_other_bodies_are_one_argument(schema: Any, required: bool) -> None:
    operation = read_one(body(schema, required=required))
    assert operation.body is not None
    assert operation.body.properties is None
    assert list(operation.definition.input_schema["properties"]) == ["body"]
    assert operation.definition.input_schema.get("required", []) == ["body"] * required


def test_media_types_are_chosen_in_order() -> None:
    def kind(*media: str) -> tuple[str, str]:
        content = {
            each: {"schema": {"type": "object", "properties": {"f": {"type": "string", "format": "binary"}}}}
            for each in media
        }
        found = read_one({"requestBody": {"content": content}}).body
        assert found is not None
        return found.kind, found.content_type

    assert kind("multipart/form-data", "application/vnd.api+json") == ("json", "application/vnd.api+json")
    assert kind("multipart/form-data", "application/x-www-form-urlencoded") == (
        "form",
        "application/x-www-form-urlencoded",
    )
    assert kind("application/octet-stream", "text/plain") == ("text", "text/plain")
    assert kind("image/*") == ("binary", "application/octet-stream")
    assert kind("*/*") == ("json", "application/json")
    with pytest.raises(SetupError, match="POST /pets: its body can't be made: application/xml"):
        kind("application/xml")


def test_files_of_a_multipart_body_are_base64() -> None:
    properties = {
        "file": {"type": "string", "format": "binary"},
        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
        "meta": {"type": "object"},
    }
    content = {
        "schema": {"type": "object", "properties": properties},
        "encoding": {"meta": {"contentType": "application/json"}},
    }
    operation = read_one({"requestBody": {"content": {"multipart/form-data": content}}})
    assert operation.body is not None
    assert operation.body.parts["file"].is_binary
    assert operation.body.parts["files"].is_binary
    assert operation.body.parts["meta"].content_type == "application/json"
    assert operation.definition.input_schema["properties"]["file"]["contentEncoding"] == "base64"


def test_output_schemas_are_loose() -> None:
    schema = {
        "type": "object",
        "required": ["id"],
        "additionalProperties": False,
        "properties": {
            "id": {"type": "string", "format": "uuid", "minLength": 36},
            "secret": {"type": "string", "writeOnly": True},
            "kind": {"oneOf": [{"type": "string", "enum": ["a"]}, {"type": "integer"}]},
        },
    }
    assert output(schema) == {
        "type": "object",
        "properties": {
            "id": {"type": ["string", "null"]},
            "kind": {"anyOf": [{"type": ["string", "null"]}, {"type": ["integer", "null"]}]},
        },
    }
    assert output({"type": "array", "items": schema}) is None
    large = {"type": "object", "properties": {f"property{n}": {"type": "string"} for n in range(1_000)}}
    assert output(large) is None


def test_two_kinds_of_success_have_no_output_schema() -> None:
    content = {"application/json": {"schema": {"type": "object", "properties": {"a": {"type": "string"}}}}}
    some, none = {"description": "", "content": content}, {"description": ""}
    assert read_one({"responses": {"200": some, "201": some, "404": none}}).definition.output_schema is not None
    assert read_one({"responses": {"200": some, "204": none}}).definition.output_schema is None


def test_deep_schemas_are_cut_at_the_bottom() -> None:
    schemas: dict[str, Any] = {
        "L0": {"type": "object", "properties": {"leaf": {"type": "string", "description": "d" * 200}}}
    }
    for n in range(1, 12):
        links = {f"p{i}": {"$ref": f"#/components/schemas/L{n - 1}"} for i in range(4)}
        schemas[f"L{n}"] = {"type": "object", "properties": links}
    spec = {"paths": {"/a": {"post": body({"$ref": "#/components/schemas/L11"})}}, "components": {"schemas": schemas}}
    found, report = read(spec)
    schema = found["post_a"].definition.input_schema
    assert len(msgspec.json.encode(schema)) <= 32 * 1024
    assert schema["properties"]["p0"]["properties"]["p1"]["type"] == "object"
    assert [entry.partition(":")[0] for entry in report.cut] == ["POST /a"]


def test_names_are_legal_and_unique() -> None:
    paths = {
        f"/{n}": {"get": {"operationId": name}}
        for n, name in enumerate(["repos/list", "repos_list", "2fa", "ö" * 9, "a" * 80, "a" * 81])
    }
    found, report = read({"paths": {**paths, "/pets/{id}": {"delete": {}}}})
    assert list(found) == [
        "repos_list",
        "repos_list_2",
        "get_2fa",
        "get_3",
        "a" * 64,
        "a" * 62 + "_2",
        "delete_pets_id",
    ]
    assert [note.partition(": its tool is called ")[0] for note in report.notes] == ["GET /1", "GET /5", "GET /0"]
    assert report.notes[2].endswith('repos_list, because "repos/list" is no name of a tool; 3 others are changed alike')


def test_names_of_the_author() -> None:
    paths = {"/a": {"get": {"operationId": "a"}}, "/b": {"get": {"operationId": "b"}}}
    assert list(read({"paths": paths}, names={"a": "b"})[0]) == ["b", "b_2"]
    assert list(read({"paths": paths}, names=lambda id, method, path: f"{method}{path[1:]}")[0]) == ["GETa", "GETb"]
    for names in ({"c": "d"}, {"a": "not legal"}, {"a": "x", "b": "x"}):
        with pytest.raises(SetupError, match="names="):
            read({"paths": paths}, names=names)


def test_only_chooses() -> None:
    paths = {
        "/pets": {"get": {"operationId": "listPets", "tags": ["pets"]}, "post": {"operationId": "addPet"}},
        "/orders/{id}": {"get": {"operationId": "order", "tags": ["orders"]}},
    }
    for only, names in {
        "GET *": ["listPets", "order"],
        "tag:orders": ["order"],
        "/pets*": ["listPets", "addPet"],
        "add*": ["addPet"],
    }.items():
        assert list(read({"paths": paths}, only=[only])[0]) == names
    with pytest.raises(SetupError, match=r"only='listPet' fits no operation \(did you mean listPets\?\)"):
        read({"paths": paths}, only=["listPet"])


def test_texts_tags_and_hints() -> None:
    node = {
        "operationId": "it",
        "tags": ["a"],
        "summary": "List **pets**",
        "description": "See [docs](https://x). " + "Word word. " * 500,
    }
    found, report = read(
        {"paths": {"/a": {"get": node, "delete": {}, "put": {}, "post": {}}}}, max_description_tokens=50
    )
    definition = found["it"].definition
    assert definition.title == "List pets"
    assert definition.description is not None
    assert definition.description.startswith("List pets\nSee docs. Word")
    assert definition.description.endswith("word. …")
    assert len(definition.description) <= 200
    assert definition.meta == {"dovetail/tags": ["a"]}
    assert len(report.cut) == 1
    hints = {operation.method: operation.definition.hints for operation in found.values()}
    assert hints["GET"].read_only
    assert hints["DELETE"].destructive
    assert hints["PUT"].idempotent
    assert not hints["POST"].idempotent
    assert "4 tools" in str(report)
    assert "GET /a" in str(report)


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        ("Cancel Order", "It is gone."),
        ("cancel order.", "It is gone."),
        ("Cancel an order", "Cancel an order\nIt is gone."),
    ],
)
def test_a_summary_that_only_repeats_the_name_is_not_said_again(summary: str, said: str) -> None:
    node = {"operationId": "cancel_order", "summary": summary, "description": "It is gone."}
    found, _ = read({"paths": {"/a": {"get": node, "put": {"operationId": "cancel", "summary": "Cancel"}}}})
    assert (found["cancel_order"].definition.description, found["cancel"].definition.description) == (said, "Cancel")


def test_servers() -> None:
    templated = [{"url": "https://{region}.example.com/v1/", "variables": {"region": {"default": "eu"}}}]
    assert read_one({}, servers=templated).base_url == "https://eu.example.com/v1"
    assert read_one({"servers": [{"url": "https://other.example.com"}]}).base_url == "https://other.example.com"
    found, _ = read({"paths": {"/a": {"get": {"servers": templated}}}}, base_url="http://localhost:1/x/")
    assert found["get_a"].base_url == "http://localhost:1/x"
    for url in ("/v1", "ftp://example.com", "https://user:pw@example.com", "https://{x}.example.com", ""):
        with pytest.raises(SetupError, match="base_url="):
            read_one({}, servers=[{"url": url}])


def test_what_is_broken_is_left_out_with_its_place() -> None:
    spec = {
        "paths": {
            "/fine": {"get": {}},
            "/list": {"get": {"parameters": {}}},
            "/name": {"get": {"parameters": [{"name": "a", "in": "query"}, {"in": "query"}]}},
            "/ref": {"get": {"parameters": [{"$ref": "https://evil.example.com/x.json"}]}},
            "/item": {"$ref": "#/nowhere"},
            "/../up": {"get": {}},
            "/no": {"get": 5},
        }
    }
    found, report = read(spec)
    assert list(found) == ["get_fine"]
    assert [entry.partition(": ")[0] for entry in report.left_out] == [
        *("paths./item", "paths./../up", "paths./no.get", "GET /list", "GET /name", "GET /ref"),
    ]
    assert "paths./name.get.parameters[1]" in report.left_out[4]


def test_a_broken_reference_in_a_schema_opens_it() -> None:
    spec = {"paths": {"/a": {"post": body({"type": "object", "properties": {"x": {"$ref": "other.json#/X"}}})}}}
    found, report = read(spec)
    assert found["post_a"].definition.input_schema["properties"]["x"] == {}
    assert len(report.notes) == 1
    assert "never opened" in report.notes[0]


def test_references_in_a_circle_are_reported() -> None:
    a, b, any_value = ({"$ref": f"#/components/schemas/{name}"} for name in ("A", "B", "Any"))
    schemas = {"A": b, "B": a, "Any": True}
    used = {"/a": a, "/b": {"type": "array", "items": b}, "/c": any_value}
    paths = {path: {"post": body(schema)} for path, schema in used.items()}
    found, report = read({"paths": paths, "components": {"schemas": schemas}})
    assert found["post_a"].definition.input_schema["properties"]["body"] == {}
    assert report.notes == ["the schema A: its references lead in a circle; values of it are not checked"]


PETS: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Pets", "version": "1"},
    "servers": [{"url": BASE}],
    "security": [{"key": []}],
    "paths": {
        "/pets/{id}": {
            "parameters": [{"$ref": "#/components/parameters/Id"}],
            "get": {
                "operationId": "getPet",
                "tags": ["pets"],
                "responses": {"200": {"$ref": "#/components/responses/Pet"}},
            },
            "put": {
                "operationId": "putPet",
                "summary": "Replace a pet",
                "parameters": [{"name": "q", "in": "query", "style": "deepObject", "schema": {"type": "object"}}],
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}},
                },
                "responses": {"default": {"description": "an error"}},
            },
        }
    },
    "components": {
        "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}},
        "parameters": {
            "Id": {"name": "id", "in": "path", "required": True, "schema": {"type": ["integer", "null"], "minimum": 1}}
        },
        "responses": {
            "Pet": {
                "description": "",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}},
            }
        },
        "schemas": {
            "Pet": {
                "allOf": [{"$ref": "#/components/schemas/Named"}],
                "type": "object",
                "required": ["kind"],
                "properties": {
                    "kind": {"oneOf": [{"const": "cat"}, {"type": "string", "pattern": "^d"}]},
                    "friends": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}, "maxItems": 9},
                    "size": {"type": "array", "prefixItems": [{"type": "number", "multipleOf": 2}]},
                },
            },
            "Named": {
                "type": "object",
                "properties": {"name": {"type": "string", "default": "x"}},
                "additionalProperties": False,
            },
        },
    },
}
KEYS = ["$ref", "type", "properties", "allOf", "anyOf", "items", "in", "name", "required", "enum"]
WORDS = ["", "object", "#/components/schemas/Pet", "#/paths", "../x", "GET", "(", "{id}", "2XX", "path", "ö\x00"]
PIECES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-9, 9) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


@given(st.lists(st.tuples(st.sampled_from(places(PETS)[1:]), PIECES), min_size=1, max_size=4))
def test_mutated_documents_are_refused_or_give_usable_tools(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    spec = copy.deepcopy(PETS)
    for path, value in changes:
        holder: Any = spec
        try:
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = copy.deepcopy(value)
        except (KeyError, TypeError, IndexError):
            continue  # an earlier change took the place away
    try:
        operations, _ = read_operations(Document.load(spec))
    except SetupError:
        return
    tools = [msgspec.to_builtins(operation.definition) for operation in operations]
    assert not [
        finding for finding in check_catalog(Catalog(tools=tools, objects_only=True)) if finding.level == "error"
    ]
    for tool in tools:
        for schema in filter(None, (tool["inputSchema"], tool.get("outputSchema"))):
            jsonschema_rs.meta.validate(schema)
            Validator(schema, where="it").is_valid({})
