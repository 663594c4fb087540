"""The search index: words and their forms, what counts most, languages, catalogs with words that all tools share."""

import tracemalloc
from typing import Any

import pytest

from dovetail import ToolDefinition
from dovetail.registry.search_index import SearchIndex, stem, words


def tool(name: str, description: str = "", *arguments: str, **fields: Any) -> ToolDefinition:
    schema = {"type": "object", "properties": {argument: {"type": "string"} for argument in arguments}}
    return ToolDefinition(name=name, description=description, input_schema=schema, **fields)


def found(tools: list[ToolDefinition], query: str, limit: int = 5) -> list[str]:
    return [tools[number].name for number in SearchIndex(tools).search(query, limit)]


@pytest.mark.parametrize(
    "forms",
    [
        "create creates created creating creation creator",
        "delete deletes deleted deleting deletion",
        "notify notifies notification notifications",
        "subscribe subscribes subscription subscriptions",
        "deploy deploys deployed deploying deployment",
        "translate translation translator",
        "run running runs",
        "branch branches",
        "category categories",
        "address addresses",
        "key keys",
        "merge merged merging merges",
    ],
)
def test_forms_of_a_word_have_one_stem(forms: str) -> None:
    assert len({stem(form) for form in forms.split()}) == 1


@pytest.mark.parametrize("words", ["status state", "user use", "custom customer", "app apply", "issue is", "need nee"])
def test_other_words_keep_their_own(words: str) -> None:
    first, second = words.split()
    assert stem(first) != stem(second)


@pytest.mark.parametrize("query", ["pull request", "PullRequest", "pull-request", "pull_requests", "PULL REQUESTS?"])
@pytest.mark.parametrize("name", ["createPullRequest", "create_pull_request", "create.pull-request"])
def test_names_are_split_in_every_style(name: str, query: str) -> None:
    assert found([tool("unrelated"), tool(name)], query) == [name]


def test_every_part_of_a_tool_is_searched() -> None:
    tools = [
        tool("one", "Weather of a city"),
        tool("two", "", "thermometer"),
        tool("three", title="Barometer"),
        tool("four", meta={"dovetail/tags": ["rainfall"]}),
        tool("hygrometer"),
    ]
    queries = {
        "weather": "one",
        "thermometers": "two",
        "barometer": "three",
        "rainfall": "four",
        "hygrometer": "hygrometer",
    }
    assert {query: found(tools, query) for query in queries} == {query: [name] for query, name in queries.items()}


def test_a_name_counts_more_than_a_description_and_that_more_than_an_argument() -> None:
    tools = [tool("a", "Some paper", "invoice"), tool("b", "Some invoice", "paper"), tool("invoice")]
    assert found(tools, "invoice") == ["invoice", "b", "a"]


def test_words_for_the_same_are_found_behind_the_word_itself() -> None:
    tools = [tool("remove_label"), tool("delete_label"), tool("create_label")]
    assert found(tools, "delete a label")[:2] == ["delete_label", "remove_label"]
    assert found(tools, "erase") == ["remove_label", "delete_label"]


def test_other_languages() -> None:
    tools = [
        tool("menu", "Zeigt das Menü im Café"),
        tool("weather", "查询城市的天气"),
        tool("mail", "Отправить письмо"),
    ]
    assert [found(tools, query) for query in ("cafe menu", "天气", "ПИСЬМО")] == [["menu"], ["weather"], ["mail"]]


def test_words_that_all_tools_share_rank_what_rarer_words_find() -> None:
    verbs = ("get", "delete", "update")
    tools = [tool(f"{verb}_thing{number}", "A thing of this account") for number in range(400) for verb in verbs]
    assert found(tools, "delete thing77 of the account")[0] == "delete_thing77"
    assert found(tools, "get thing77")[0] == "get_thing77"
    assert len(found(tools, "get the things of an account", 20)) == 20


@pytest.mark.parametrize("query", ["", "   ", "the of and", "zzz", "_", "\0", "💥", "x" * 10_000, "\ud800"])
def test_what_fits_nothing_finds_nothing(query: str) -> None:
    assert found([tool("get_invoice", "Get an invoice")], query) == []
    assert found([], query) == []


def test_a_long_query_is_read_in_part() -> None:
    tools = [tool("get_invoice"), tool("get_order")]
    assert found(tools, "invoice " + "order " * 10_000)[0] in ("get_invoice", "get_order")
    assert found(tools, "x " * 300 + "invoice") == []


def test_tools_of_others_may_be_of_any_shape() -> None:
    odd = [
        ToolDefinition(name="list_props", input_schema={"properties": ["a"]}),
        ToolDefinition(name="x" * 128, input_schema={}, description="word " * 100_000),
    ]
    assert found(odd, "props") == ["list_props"]


def test_the_memory_of_an_index_is_bounded() -> None:
    """The text of a hostile server, in which each two characters are a term, and queries that never come twice."""
    characters = [chr(code) for code in range(0x4E00, 0x9E00)]
    texts = ["".join(characters[start : start + 4_000]) for start in range(0, 20_000, 1_000)]
    assert len(set(words(texts[0]))) > 3_000
    tracemalloc.start()
    try:
        index = SearchIndex([tool(f"t{number}", text) for number, text in enumerate(texts)])
        for start in range(1_000):
            index.search("".join(characters[start : start + 400]), 5)
        assert tracemalloc.get_traced_memory()[0] < 20_000_000
    finally:
        tracemalloc.stop()


OFFICE = [
    tool("room_book", "Reserve a conference room for some hours", "room", "start", "end"),
    tool("room_free", "Which conference rooms are available", "start", "end"),
    tool("leave_request", "Ask for vacation days", "first_day", "last_day"),
    tool("leave_balance", "How many vacation days an employee has left", "employee"),
    tool("expense_submit", "Hand in a receipt for reimbursement", "amount", "receipt"),
    tool("expense_status", "State of a reimbursement", "expense_id"),
    tool("badge_block", "Deactivate the badge of an employee who lost it", "badge_id"),
    tool("lunch_menu", "What the canteen serves on a day", "day"),
    tool("printer_list", "All printers of a floor", "floor"),
    tool("wifi_guest_create", "Make a wireless password for a visitor", "visitor"),
]


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("I need a conference room tomorrow at ten", "room_book"),
        ("are there any rooms available this afternoon?", "room_free"),
        ("take some vacation in July", "leave_request"),
        ("how many days of vacation do I have left", "leave_balance"),
        ("get reimbursed for a taxi receipt", "expense_submit"),
        ("somebody lost their badge, deactivate it", "badge_block"),
        ("what is served for lunch", "lunch_menu"),
        ("printers near me on this floor", "printer_list"),
        ("give visitors a password for the wireless", "wifi_guest_create"),
    ],
)
def test_questions_in_plain_words_find_their_tool(question: str, name: str) -> None:
    assert name in found(OFFICE, question, 2)


def test_every_word_of_a_question_brings_its_tools() -> None:
    """A rare word that means little must not keep out what the other words are about."""
    tools = [tool(f"count_{number}", "One by one") for number in range(20)]
    tools += [tool(f"create_pull_{number}", "Open a pull request for a branch") for number in range(200)]
    tools += [tool(f"note_{number}", "Something else") for number in range(2_000)]
    assert all(name.startswith("create_pull") for name in found(tools, "create a pull request from one branch"))


def test_what_an_argument_may_be_is_searched_too() -> None:
    schema = {"type": "object", "properties": {"mode": {"enum": ["cycling", "sailing"], "description": "How fast"}}}
    index = SearchIndex([tool("go"), ToolDefinition(name="plan", input_schema=schema)])
    assert index.search("sailing", 5) == [1]


def test_a_name_that_is_the_question_is_not_behind_longer_names() -> None:
    """As in the API of Jira: the main operation has the longest description and the most arguments."""
    parts = ("Type", "Link", "Property", "Comment", "TypeScheme", "SecurityScheme", "TypeScreenScheme", "Worklog")
    tools = [tool(f"createIssue{part}", f"Creates an issue {part}.", "name") for part in parts]
    fields = [f"field{number}" for number in range(40)]
    described = "Creates an issue or a subtask. " + "Fields of the issue are set by name. " * 12
    tools.append(tool("createIssue", described, *fields))
    assert "createIssue" in found(tools, "create an issue", 3)
