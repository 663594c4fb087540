"""`max_result_bytes=`: text is cut at a character and says so, anything else that is too long is a tool error."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Audio, Client, Image, Server, SetupError, Text, ToolError, ToolResult
from dovetail.protocol import revisions
from dovetail.protocol.jsonrpc import encode

LIMIT = 200
PICTURE = Image(b"png", "image/png")


def serving(value: Any, **options: Any) -> Server:
    server = Server("long")

    def read() -> Any:
        return value

    server.add_tool(read, **{"max_result_bytes": LIMIT, **options})
    return server


async def read(value: Any, **options: Any) -> Any:
    async with Client(serving(value, **options)) as client:
        return await client.call_tool("read")


@pytest.mark.parametrize("revision", revisions.BY_NAME)
@pytest.mark.parametrize("letter", ["x", "ä", "€", "😀"])
async def test_text_is_cut_at_a_character(revision: str, letter: str) -> None:
    async with Client(serving(letter * LIMIT), protocol_version=revision) as client:
        text = (await client.call_tool("read")).text
    kept, _, notice = text.partition("\n")
    assert set(kept) == {letter} or not kept or letter == "x"
    assert len(text.encode()) <= LIMIT
    total = LIMIT * len(letter.encode())
    if total > LIMIT:
        assert notice == f"[Cut: this text has {total} bytes, and {LIMIT} are allowed.]"
        assert len(text.encode()) > LIMIT - 4
    else:
        assert text == letter * LIMIT  # exactly as long as allowed


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=120), max_size=5))
async def test_the_texts_of_a_result_have_one_budget(texts: list[str]) -> None:
    result = await read([Text(text) for text in texts] + [PICTURE])
    given, got = "".join(texts).encode(), [block.text for block in result.content if isinstance(block, Text)]
    assert any(isinstance(block, Image) for block in result.content)
    assert len("".join(got).encode()) + len(encode(PICTURE)) <= LIMIT
    if len(given) <= LIMIT - len(encode(PICTURE)):
        assert got == texts or not texts
    else:
        kept = "".join(got).rpartition("\n[Cut: ")[0]
        assert "".join(texts).startswith(kept)
        assert f"has {len(given)} bytes" in got[-1]


@pytest.mark.parametrize(
    "value",
    [
        list(range(100)),
        ToolResult(content="x", structured={"x": "y" * LIMIT}),
        Image(b"x" * (LIMIT * 3 // 4), "image/png"),  # in base64
        [Text("a"), Audio(b"x" * LIMIT, "audio/wav"), Image(b"x", "image/png")],
        [Text("a" * LIMIT), Image(b"x" * 99, "image/png")],  # no room for the notice that the text was cut
    ],
    ids=["structured", "both", "image", "several", "notice"],
)
async def test_anything_else_is_a_tool_error(value: Any) -> None:
    options = {"output_schema": {}} if isinstance(value, list) and isinstance(value[0], int) else {}
    with pytest.raises(ToolError, match=r"The result of read is too long: it has \d+ bytes, and 200 are allowed"):
        await read(value, **options)


@pytest.mark.parametrize("limit", [0, 199, -5, 200.5, "200", True])
def test_the_limit_is_a_number_that_the_notice_fits_in(limit: Any) -> None:
    with pytest.raises(SetupError, match=r"max_result_bytes=.* must be a whole number, 200 or more"):
        serving("", max_result_bytes=limit)
