"""Results off the wire, as typed values."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from dovetail.client.results import ListPage, WireCallResult, read, read_page
from dovetail.errors import BadAnswer
from dovetail.protocol.types import Audio, EmbeddedResource, ResourceContents, ResourceLink, Text, ToolDefinition

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["content", "type", "text", "structuredContent", "resultType"]), inner)
    ),
    max_leaves=10,
)


def call(body: str) -> WireCallResult:
    return read("tools/call", Raw(body.encode()), WireCallResult)


def test_every_kind_of_content() -> None:
    answer = call(
        '{"content":[{"type":"text","text":"a"},{"type":"audio","data":"AA==","mimeType":"audio/wav"},'
        '{"type":"resource_link","uri":"x:1","name":"one"},'
        '{"type":"resource","resource":{"uri":"x:2","text":"two"}},{"type":"text","text":"b","future":1}]}'
    )
    assert answer.content == [
        Text("a"),
        Audio(b"\0", "audio/wav"),
        ResourceLink("x:1", "one"),
        EmbeddedResource(ResourceContents("x:2", text="two")),
        Text("b"),
    ]
    result = answer.unfold(wrapped=False)
    assert (result.text, result.data, result.is_error) == ("a\nb", "a\nb", False)


@pytest.mark.parametrize(
    ("body", "wrapped", "structured", "data"),
    [
        ('{"content":[]}', False, None, None),
        ('{"content":[{"type":"text","text":""}]}', False, None, ""),
        ('{"structuredContent":null}', False, None, None),
        ('{"content":[{"type":"text","text":"null"}],"structuredContent":null}', False, None, None),
        ('{"structuredContent":[1]}', False, [1], [1]),
        ('{"structuredContent":{"result":1}}', False, {"result": 1}, {"result": 1}),
        ('{"structuredContent":{"result":1}}', True, {"result": 1}, 1),
    ],
)
def test_data(body: str, wrapped: bool, structured: object, data: object) -> None:
    result = call(body).unfold(wrapped=wrapped)
    assert (result.structured, result.data) == (structured, data)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"content":7}', "content must be an array, not an integer"),
        ('{"content":[{"type":"smell"}]}', "content"),
        ('{"content":[{"type":"text"}]}', "text is missing"),
        ("[]", "it must be an object, not an array"),
        ('{"resultType":"input_required","inputRequests":{}}', "resultType 'input_required', which this client"),
        ('{"resultType":"task"}', "resultType 'task'"),
    ],
)
def test_what_does_not_fit_is_named(body: str, words: str) -> None:
    with pytest.raises(BadAnswer, match=r"^tools/call: ") as caught:
        call(body)
    assert words in str(caught.value)
    assert "msgspec" not in str(caught.value)
    assert "`" not in str(caught.value)


def test_pages() -> None:
    tools = '"tools":[{"name":"a","inputSchema":{"type":"object"},"new":1}]'
    expected = [ToolDefinition(name="a", input_schema={"type": "object"})]
    cursors = {"": None, ',"nextCursor":null': None, ',"nextCursor":""': "", ',"nextCursor":"x"': "x"}
    for cursor, found in cursors.items():
        page = read_page("tools/list", Raw(f"{{{tools}{cursor}}}".encode()), "tools", ToolDefinition)
        assert page == ListPage(expected, found)


@pytest.mark.parametrize("body", ["{}", '{"tools":{}}', '{"tools":[{}]}', '{"tools":[],"nextCursor":7}', "null"])
def test_pages_that_are_none(body: str) -> None:
    with pytest.raises(BadAnswer, match=r"^tools/list: the server's answer does not fit"):
        read_page("tools/list", Raw(body.encode()), "tools", ToolDefinition)


@given(JSON)
def test_whatever_comes_is_read_or_refused(value: object) -> None:
    with contextlib.suppress(BadAnswer):
        read("tools/call", Raw(msgspec.json.encode(value)), WireCallResult).unfold(wrapped=False)
