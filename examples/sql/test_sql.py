from collections.abc import Iterator

import pytest
from dovetail import Client, ElicitRequest, ToolError

import make_shop
import sql

DEAR = "select name, sum(pieces) from orders join products on products.id = product group by name"


@pytest.fixture(scope="session", autouse=True)
def _a_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    shop = tmp_path_factory.mktemp("shop") / "shop.db"
    make_shop.make(shop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql, "FILE", shop)
        yield


async def test_a_cheap_query_is_answered_at_once() -> None:
    async with Client(sql.server) as client:
        found = (await client.call_tool("query", {"sql": "select id, name from products where id < 3"})).data
        assert found == {"columns": ["id", "name"], "rows": [[1, "hat"], [2, "scarf"]], "complete": True}
        found = (await client.call_tool("query", {"sql": "select id from orders"})).data
        assert (len(found["rows"]), found["complete"]) == (sql.MAX_ROWS, False)


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("answer", [True, False])
async def test_what_reads_much_is_asked_for(revision: str, answer: bool) -> None:
    asked: list[str] = []

    def user(request: ElicitRequest) -> dict[str, bool]:
        asked.append(request.message)
        return {"value": answer}

    async with Client(sql.server, protocol_version=revision, elicitation_handler=user) as client:
        result = await client.call_tool("query", {"sql": DEAR}, raise_on_error=False)
    assert result.is_error is not answer
    assert ("umbrella" in result.text) is answer
    (question,) = asked
    assert DEAR in question


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("delete from orders", "not authorized"),
        ("create table mine (id)", "not authorized"),
        ("attach 'other.db' as other", "not authorized"),
        ("pragma query_only = 0", "not authorized"),
        ("select 1; delete from orders", "one statement"),
        ("select zeroblob(1000000000)", "too big"),
        ("select prize from products", "no such column: prize"),
        ("", "no query"),
    ],
)
async def test_nothing_but_a_query_is_run(statement: str, says: str) -> None:
    async with Client(sql.server) as client:
        with pytest.raises(ToolError, match=says):
            await client.call_tool("query", {"sql": statement})


async def test_the_schema_is_read_in_both_ways() -> None:
    async with Client(sql.server) as client:
        (contents,) = await client.read_resource("sql://schema")
        assert contents.text == (await client.call_tool("schema")).text
        assert "CREATE INDEX orders_by_day" in contents.text
