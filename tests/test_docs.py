"""The documentation as tests: every snippet is a program that runs, and every result that a page shows is a real one.

A page marks a shown result with the request it answers, in a comment above the block:

    <!-- tools.py 2025-11-25 tools/call {"name": "add", "arguments": {"a": 1, "b": 2}} | structuredContent -->

What follows the bar is the part that is shown. A `json` block shows a result or an error, a `text` block its text.
With `notified` before the program's name, the block shows the notifications that came before the answer. With `http`
the block shows the body of an answer over HTTP:

    <!-- http deploy.py GET /mcp {"Host": "api.example.com"} -->
"""

import ast
import asyncio
import functools
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest

import dovetail
from documented import PAGES, PROGRAMS, REVISIONS, ROOT, load, served
from dovetail import Client, ElicitRequest, Field, Server, ServerError, ToolAnnotations, ToolError, ToolRegistry
from dovetail.auth.principal import Principal
from dovetail.client.config import ClientOptions
from dovetail.engine.options import ServerOptions
from dovetail.registry.prompts import PromptOptions
from dovetail.registry.resources import ResourceOptions
from dovetail.registry.tools import ToolOptions
from dovetail.schema.validate import DIALECTS
from dovetail.transports.http.options import KINDS, HttpOptions
from http_serving import hosted
from official import Witness
from stable_ids import stable

LANGUAGES = {"python", "console", "json", "text", "nginx", "yaml", "html"}

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates:DeprecationWarning")


# ── pages ──


class Block(NamedTuple):
    page: Path
    mark: str
    language: str
    body: str


_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"\]\((?!https?://)(?P<path>[^)#]+)")
_HTTP_RESULT = re.compile(r"http (?P<program>\w+)\.py (?P<verb>[A-Z]+) (?P<path>\S+) (?P<headers>\{.*\})")
_RESULT = re.compile(
    r"(?P<notified>notified )?(?P<program>\w+)\.py (?P<revision>[\d-]+) (?P<method>\S+) (?P<params>\{.*?\})"
    r"( \| (?P<part>\S+))?"
)


def blocks(language: str = "") -> list[Block]:
    found = [
        Block(page, match["mark"] or "", match["language"], match["body"])
        for page in PAGES
        for match in _BLOCK.finditer(page.read_text())
    ]
    return [block for block in found if language in ("", block.language)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_in_order(page: Path) -> None:
    text = page.read_text()
    assert text.startswith("# ")
    assert text.endswith("\n")
    for link in _LINK.finditer(text):
        assert (page.parent / link["path"]).exists(), f"{page.name} links to {link['path']}, which is not there"
    assert text.count("```") == 2 * sum(block.page == page for block in blocks())
    assert {block.language for block in blocks() if block.page == page} <= LANGUAGES


@pytest.mark.seed("S2-01", "S4-40")
def test_every_page_is_in_the_index_and_every_disagreement_of_descriptions_is_resolved() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    for page in PAGES[1:]:
        assert page.stem == "index" or f"]({page.name})" in index, page.name
    rows = re.findall(r"^\| C-(\d\d) \|", (ROOT / "docs" / "profiles.md").read_text(), re.MULTILINE)
    assert rows == [f"{number:02}" for number in range(1, 36)]


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: f"{block.page.stem}: {block.body[:40]!r}")
def test_a_python_block_is_a_program(block: Block) -> None:
    assert block.body in {path.read_text() for path in PROGRAMS.values()}


@pytest.mark.parametrize("block", blocks("html"), ids=lambda block: block.page.stem)
def test_an_html_block_is_a_file(block: Block) -> None:
    assert block.body in {path.read_text() for path in (ROOT / "docs" / "programs").glob("*.html")}


@pytest.mark.rule("JS-3")
def test_the_supported_dialects_are_named() -> None:
    text = (ROOT / "docs" / "schemas.md").read_text()
    for dialect in DIALECTS:
        assert re.search(r"draft-\d\d|\d{4}-\d\d", dialect)[0] in text, dialect


@pytest.mark.seed("S4-40")
@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("*", ServerOptions.__annotations__),
        ("tools", ToolOptions.__annotations__),
        ("resources", ResourceOptions.__annotations__),
        ("prompts", PromptOptions.__annotations__),
        ("schemas", inspect.signature(Field).parameters.keys() - {"default"}),
        ("client", ClientOptions.__optional_keys__),
        ("registry", [name for name in vars(ToolRegistry) if name.endswith(("tool", "tools", "clear", "changed"))]),
        ("annotations", [field.encode_name for field in msgspec.structs.fields(ToolAnnotations)]),
        ("*", dovetail.__all__),
    ],
    ids=["server", "tools", "resources", "prompts", "schemas", "client", "registry", "annotations", "all"],
)
def test_everything_public_is_documented(page: str, names: Collection[str]) -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "docs").glob(f"{page}.md"))
    quoted = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", text))))
    assert set(names) <= quoted, f"undocumented: {sorted(set(names) - quoted)}"


def test_the_options_of_http_are_documented_with_their_defaults_and_variables() -> None:
    text = (ROOT / "docs" / "http.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \| `(.*?)` \| (?:`(\w+)`)? *\|", text, re.MULTILINE)
    real = [
        (name, default, f"DOVETAIL_{name.upper()}" if name in KINDS else "")
        for name, default in msgspec.structs.asdict(HttpOptions()).items()
    ]
    assert [(name, ast.literal_eval(default), variable) for name, default, variable in documented] == real


# ── programs ──

# Programs that are no servers:
CLIENTS = ("client", "client_listen", "client_several", "client_sign_in", "client_skills", "extensions_client")
ELSEWHERE = ("tasks_durable",)  # programs that have tests of their own


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_shown_and_can_be_imported(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert name not in sys.stdlib_module_names, "started from its folder it would hide a module of Python"
    text = PROGRAMS[name].read_text()
    guard = ast.parse(text).body[-1]
    assert ast.unparse(guard).startswith("if __name__ == '__main__':\n")
    assert any(block.body == text for block in blocks("python")), "no page shows it"
    program = load(name)
    assert callable(program.main) if name in CLIENTS else isinstance(program.server, Server)
    assert capfd.readouterr() == ("", "")


Step = Callable[[Client], Awaitable[None]]


def call(tool: str, *, gives: Any = None, matches: str = "", **arguments: Any) -> Step:
    async def step(client: Client) -> None:
        found = (await client.call_tool(tool, arguments)).data
        assert re.fullmatch(matches, found) if matches else found == gives

    return step


def refuse(method: str, *, says: str, error: type[Exception] = ServerError, **params: Any) -> Step:
    async def step(client: Client) -> None:
        with pytest.raises(error, match=re.escape(says)):
            await (client.request(method, params) if error is ServerError else client.call_tool(method, params))

    return step


fail = functools.partial(refuse, error=ToolError)


def read(uri: str, *, gives: str) -> Step:
    async def step(client: Client) -> None:
        (contents,) = await client.read_resource(uri)
        assert contents.text == gives

    return step


def prompt(name: str, *, gives: list[tuple[str, str]], **arguments: str) -> Step:
    async def step(client: Client) -> None:
        messages = (await client.get_prompt(name, arguments)).messages
        assert [(message.role, getattr(message.content, "text", "")) for message in messages] == gives

    return step


def complete(kind: str, name: str, argument: str, value: str, *, gives: list[str], **context: str) -> Step:
    async def step(client: Client) -> None:
        found = await client.complete(**{kind: name}, argument=argument, value=value, context=context)
        assert found.values == gives

    return step


async def listen_for_tools(client: Client) -> None:
    async with client.listen(tools=True) as changes:
        await client.call_tool("unpack")
        assert (await anext(changes)).kind == "tools"
    assert (await client.call_tool("polish", {"thing": "cup"})).data == "The cup shines."
    assert (await client.call_tool("tidy_up")).data == "It is gone."


async def search_for_an_invoice(client: Client) -> None:
    assert [tool.name for tool in await client.list_tools()] == ["whoami", "search_tools", "call_tool"]
    found = (await client.call_tool("search_tools", {"query": "who is the customer"})).data
    assert found["tools"][0]["name"] == "find_customer"
    call = {"name": "create_invoice", "arguments": {"customer": 17, "amount": 9.5}}
    assert (await client.call_tool("call_tool", call)).data == "Invoice for customer 17: 9.50"


async def unlock_the_bank(client: Client) -> None:
    async def tools() -> list[str]:
        return [tool.name for tool in await client.list_tools(fresh=True)]

    assert await tools() == ["unlock", "holiday"]
    await refuse("tools/call", name="balance", says="Unknown tool: balance")(client)
    assert (await client.call_tool("holiday", {"begins": False})).data == "Welcome back."
    assert await tools() == ["balance", "close_account", "unlock", "holiday"]
    assert (await client.call_tool("holiday", {"begins": True})).data == "Enjoy it."
    if client.protocol_version == REVISIONS[-1]:
        await fail("unlock", pin="0000", says="authorize=")(client)
    else:
        assert (await client.call_tool("unlock", {"pin": "0000"})).data == "Unlocked."
        assert await tools() == ["balance", "unlock", "holiday"]
        assert (await client.call_tool("balance")).data == 1200


async def listen_for_updates(client: Client) -> None:
    async with client.listen(uris=["counter://value"]) as changes:
        assert (await client.call_tool("count")).data == 1
        assert (await anext(changes)).uri == "counter://value"


async def add_an_appointment(client: Client) -> None:
    (link,) = (await client.call_tool("office_add", {"day": "monday", "what": "tea"})).content
    assert link.uri == "calendar://office/days/monday"
    await prompt(
        "office_plan", day="monday", gives=[("user", "Read the appointments of monday and plan the rest of it.")]
    )(client)


async def tell_the_problems(client: Client) -> None:
    assert (await client.call_tool("problems")).data.keys() == {"archive"}


async def repeat_a_transfer(client: Client) -> None:
    order = {"to": "ada", "amount": 5}
    both = [await client.call_tool("transfer", order, idempotency_key="order-17") for _ in range(2)]
    assert [result.text for result in both] == ["Transfer 1: 5 to ada"] * 2
    notice = "[Cut: this text has 390 bytes, and 200 are allowed.]"
    assert (await client.call_tool("statement")).text.endswith(f"\n{notice}")
    assert notice in (ROOT / "docs" / "repeats.md").read_text()


async def use_the_context(client: Client) -> None:
    received: list[tuple[float, float | None, str | None]] = []
    result = await client.call_tool("bake", {"minutes": 2}, progress_handler=lambda *report: received.append(report))
    assert result.data == "A cake."
    assert received == [(0, 2, "baking"), (1, 2, "baking"), (2, 2, "done")]
    assert (await client.call_tool("who")).data == {"client": "dovetail", "revision": client.protocol_version}


async def read_the_journal(client: Client) -> None:
    module = sys.modules["docs_program_audit"]
    paid = {"amount": 30, "iban": "DE02", "password": "hunter2"}
    assert (await client.call_tool("transfer", paid)).data == "30 sent."
    async with asyncio.timeout(5):
        while not module.journal:  # noqa: ASYNC110
            await asyncio.sleep(0)
    (event,) = module.journal
    assert (event.method, event.name, event.outcome) == ("tools/call", "transfer", "ok")
    assert event.arguments == {"amount": 30, "iban": "[redacted]", "password": "[redacted]"}
    assert event.revision == client.protocol_version


async def look_over_the_fence(client: Client) -> None:
    assert [tool.annotations.open_world_hint for tool in await client.list_tools()] == [True, True]
    fenced = await client.call_tool("fenced_page", {"name": "guest-book"})
    assert fenced.meta["dovetail/untrusted"] is True
    first = fenced.data.splitlines()[1]
    page = (ROOT / "docs" / "audit.md").read_text()
    assert fenced.data.replace(first, "untrusted-9f86d081884c7d659a2feaa0c55ad015") in page


async def fill_a_basket(client: Client) -> None:
    basket = (await client.call_tool("new_basket")).data
    for item, items in {"tea": ["tea"], "milk": ["tea", "milk"]}.items():
        assert (await client.call_tool("put", {"basket": basket, "item": item})).data == items
    assert (await client.call_tool("buy", {"basket": basket})).data == "You bought tea, milk."
    await fail("buy", basket=basket, says="There is no Basket with this id")(client)


STYLE = "skills/release-notes/references/STYLE.md"
REVIEW = "Please review this python code:\nx = 1"
LETTER = [("user", ""), ("user", "Continue this letter."), ("assistant", "Dear")]
BOOKED = "Ada and 0 more, 2 nights from 2026-05-01, board: none"
BOOKING = {"guests": [{"name": "Ada"}], "arrival": "2026-05-01", "nights": 2}
ADA = {"name": "Ada", "email": "ada@example.org"}

ANONYMOUS_THERE = ("keys", "introspection", "several", "dpop", "dpop_nonces", "server")
TRIP = {"city": "Rome", "start": "2026-05-01"}
# What the users of these programs answer, by how the question begins.
ANSWERS: dict[str, Any] = {
    "Delete note 1": True,
    "Delete note 2": False,
    "Where do you": TRIP,
    "Which meals": ["lunch", "dinner"],
    "How fast": "slow",
    "A new name": "todo",
    "Sign in": True,
    "How many": 3,
    "What is your name": {"name": "Ada"},
}


def fill_in(question: ElicitRequest) -> Any:
    message = re.sub(r"^\[\w+\] ", "", question.message)  # the name of the server that asks, behind a gateway
    return next(answer for beginning, answer in ANSWERS.items() if message.startswith(beginning))


def take_the_first(question: ElicitRequest) -> Any:
    (field,) = question.fields.values()
    return field.get("enum", [True])[0]


async def show_a_book(client: Client) -> None:
    assert (await client.request("com.example/books/find", {"words": "Crime"}))["isbns"] == ["978-0140449136"]
    with pytest.raises((ToolError, ServerError), match=r"com\.example/books"):
        await client.call_tool("show", {"isbn": "978-0140449136"})


async def render_a_scene(client: Client) -> None:
    """As a task, by the messages of the era; the question is answered in the task."""
    core, accepted = client.protocol_version == "2025-11-25", {"action": "accept", "content": {"value": True}}
    params = {"name": "render", "arguments": {"scene": "dawn", "frames": 2}}
    made = await client.request("tools/call", {**params, "task": {}} if core else params)
    id = made["task"]["taskId"] if core else made["taskId"]
    if core:  # the client's handler answers
        result = await client.request("tasks/result", {"taskId": id})
    else:
        while "inputRequests" not in (task := await client.request("tasks/get", {"taskId": id})):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert task["statusMessage"] == "Drawing (2/2)"
        answers = dict.fromkeys(task["inputRequests"], accepted)
        await client.request("tasks/update", {"taskId": id, "inputResponses": answers})
        while "result" not in (task := await client.request("tasks/get", {"taskId": id})):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        result = task["result"]
    assert result["content"][0]["text"] == "dawn: kept"


async def agree(request: ElicitRequest) -> dict[str, Any]:
    return {"value": True}


ASKED: dict[str, dict[str, Any]] = {
    "tasks": {"elicitation_handler": agree, "extensions": {"io.modelcontextprotocol/tasks": {}}},
    **{
        name: {"elicitation_handler": fill_in}
        for name in ("asking", "asking_forms", "asking_url", "asking_by_hand", "observability_traces")
    },
    "gateway": {"sampling_handler": lambda _: "Short.", "roots": ["file:///a"]},
    "gateway_eras": {"elicitation_handler": fill_in},
    "gateway_callers": {"principal": Principal(subject="alice")},
    "asking_models": {"elicitation_handler": fill_in, "sampling_handler": lambda _: "Short.", "roots": ["file:///a"]},
    **{name: {"elicitation_handler": take_the_first} for name in ("replay", "dependencies_asking")},
}
SCENARIOS: dict[str, list[Step]] = {
    "compose": [add_an_appointment, read("calendar://office/days/monday", gives="tea")],
    "compose_live": [
        call("search_books", text="sand", gives="No book about sand."),
        refuse("tools/call", name="rebuild_index", says="Unknown tool: rebuild_index"),
        call("learn_to_double", gives="There is a new tool."),
        call("sums_double", number=4, gives="8"),
        call("close_the_library", gives=True),
        refuse("tools/call", name="search_books", says="Unknown tool: search_books"),
    ],
    "gateway": [
        call("hotel_nights", arrival="2026-01-01", departure="2026-03-01", gives=59),
        call("reader_summarise", text="A long text.", gives="Short."),
        fail("reader_folders", says="The server 'reader' needs what this gateway does not pass on: roots"),
        fail("archive_find", says="The server 'archive' can't be reached: "),
        tell_the_problems,
    ],
    "gateway_eras": [
        read("books://library/all", gives='["dune","emma"]'),
        call("notes_delete_note", note_id="1", gives="Deleted."),
        call("travel_book", gives="7 nights in Rome, lunch, dinner, slow"),
    ],
    "openapi": [fail("shop_orders", customer=7, says="GET /orders: 127.0.0.1 gave no response")],
    "openapi_app": [
        call("year_of", title="dune", gives="1965"),
        fail("year_of", title="x", says="404: There is no book x"),
    ],
    "gateway_callers": [call("calendar_whoami", gives="alice-at-work")],
    "client_answers": [],  # it has a test of its own
    "client_tasks": [],  # and so has this
    "asking": [call("delete_note", note_id="1", gives="Deleted."), call("delete_note", note_id="2", gives="Kept.")],
    "asking_forms": [call("book", gives="7 nights in Rome, lunch, dinner, slow")],
    "asking_models": [
        call("summarise", text="A long text.", gives="Short."),
        call("folders", gives=["file:///a"]),
        call("rename", old="list", gives="list is now todo"),
    ],
    "asking_url": [call("connect", gives="Come back when you are done.")],
    "asking_by_hand": [call("greet", gives="Hello, Ada! I asked 1 times.")],
    "observability_traces": [
        call("find_article", words="red", gives=["red hat"]),
        call("order", article="hat", gives="3 times hat ordered."),
    ],
    "replay": [call("order", matches=r"Ordered \d{4}\.")],
    "server_options": [call("search", title="temp", gives=["The Tempest"])],
    "readme": [call("days_between", start="2026-01-01", end="2026-03-01", gives=59)],
    "tools": [
        call("place_order", article="hat", pieces=2, gives={"article": "hat", "size": "M", "total": 19.0}),
        fail("place_order", article="hat", pieces=0, says="pieces"),
    ],
    "tools_content": [call("search", text="x", gives={"hits": ["X"]})],
    "tools_dynamic": [refuse("tools/call", name="polish", says="Unknown tool: polish"), listen_for_tools],
    "apps": [
        call("forecast", city="Oslo", days=3, gives={"city": "Oslo", "degrees": [5, 6, 9]}),
        call("extend", city="Oslo", days=1, gives={"city": "Oslo", "degrees": [5]}),
        call("advise", city="Oslo", gives="Take a hat."),
        read("ui://weather/chart", gives=(ROOT / "docs" / "programs" / "apps_chart.html").read_text()),
    ],
    "annotations": [call("find", text="sand", gives=["dune"]), call("discard", name="emma", gives="Gone.")],
    "transforms": [
        call("find_books", title="e", gives=["Dune (books-2026)", "Emma (books-2026)"]),
        fail("find_books", title="e", index="mine", says="index: unknown argument (known: title, limit)"),
    ],
    "registry": [
        call("learn", word="shout", gives="I learned shout."),
        call("shout", text="hi", gives="hi!"),
        call("pages", size=5, gives=[["learn", "forget", "describe", "pages", "changes"], ["shout"]]),
        call("forget", word="shout", gives="I forgot shout."),
        call("changes", matches="learn, forget, .*, shout; learn, .*"),
    ],
    "tools_registry": [call("shout", text="hi", gives="HI!"), call("shout", text="hi", marks=2, gives="HI!!")],
    "resources": [
        read("books://all", gives='["dune","emma"]'),
        read("books://dune/summary?language=de", gives="[de] A desert planet."),
        refuse("resources/read", uri="books://ulysses/summary", says="There is no book ulysses"),
    ],
    "resources_files": [
        read("docs://programs/readme.py", gives=PROGRAMS["readme"].read_text()),
        refuse("resources/read", uri="docs://programs/%2e%2e/index.md", says="There is no file"),
    ],
    "skills_files": [
        read("skill://release-notes/references/STYLE.md", gives=(ROOT / "docs/programs" / STYLE).read_text()),
        refuse("skills/get", uri="skill://notes/SKILL.md", says="Unknown skill: skill://notes/SKILL.md"),
    ],
    "resources_updates": [listen_for_updates, read("counter://value", gives="1")],
    "prompts": [
        prompt("code_review", code="x = 1", strict="true", gives=[("user", "Be strict. " + REVIEW)]),
        prompt("continue_letter", begin="Dear", gives=LETTER),
        refuse("prompts/get", name="code_review", arguments={"language": "cobol"}, says="code"),
    ],
    "completions": [
        complete("prompt", "trip", "city", "l", country="Peru", gives=["Lima"]),
        complete("prompt", "trip", "season", "S", gives=["spring", "summer"]),
        prompt("trip", country="Peru", city="Lima", gives=[("user", "Plan a summer trip to Lima, Peru.")]),
    ],
    "log_messages": [call("connect", host="db", gives="connected"), call("migrate", gives="done")],
    "errors": [
        call("withdraw", account="alice", amount=30, gives=70),
        fail("withdraw", account="carol", amount=30, says="There is no account carol"),
        fail("audit", says="The tool audit failed: KeyError: 'mallory' (errors.py, line 20)"),
        refuse("prompts/get", name="statement", arguments={"account": "carol"}, says="no account carol (-32602)"),
    ],
    "console": [call("forecast", city="Rome", gives="Sun in Rome.")],
    "context": [use_the_context],
    "context_threads": [call("search", text="an", gives=["banana"]), call("nap", seconds=0.001, gives="rested")],
    "context_lifespan": [call("add_note", text="one", gives=1), call("add_note", text="two", gives=2)],
    "revisions": [call("nearest", count=1, gives=["Sun"])],
    "profiles": [call("greet", name="Ada", gives={}), fail("greet", says="name")],
    "profiles_reference": [call("add", a=1, b=2, gives='{"result":3.0}')],
    "dependencies": [call("add_note", text="Buy milk", gives=1)],
    "dependencies_asking": [call("pay", amount=5, gives="5 paid for dovetail.")],
    "testing_dependencies": [fail("send", text="Hello", says="ConnectionError: a test must not send mail")],
    "testing": [call("divide", a=6, b=3, gives=2.0)],
    "testing_auth": [refuse("tools/call", name="write", says="This needs the scopes: notes:write; no caller")],
    "middleware_classes": [call("buy", article="hat", gives="One hat.")],
    "middleware": [call("look", matches=".+"), refuse("tools/call", name="admin_open", says="Unknown tool")],
    "schemas": [
        call("book", **BOOKING, gives=BOOKED),
        call("book", **BOOKING | {"guests": '[{"name": "Ada"}]', "nights": "2"}, gives=BOOKED),
        fail("book", **BOOKING, code="abc", says="code"),
    ],
    "schemas_raw": [
        call("area", shape="square", a=2, gives={"area": 4, "unit": "cm"}),
        call("outline", shape="rectangle", a=2, b=3, gives="10 cm"),
    ],
    "schemas_pydantic": [
        call("register", person=ADA, gives=ADA),
        fail("register", person=ADA | {"email": "ada"}, says="an e-mail address has an @"),
    ],
    "schemas_portable": [
        call("book", arrival="2026-05-01", nights=2, prices={"key": 1.5}, gives="2 nights from 2026-05-01"),
        fail("book", arrival="2026-05-01", nights=31, says="nights: must be at most 30, got 31"),
    ],
    # Here no caller has a token; tests/test_docs_auth.py has them.
    **{f"auth_{name}": [call("whoami", gives="anonymous")] for name in ANONYMOUS_THERE},
    "auth_jwt": [call("whoami", gives={})],
    **{f"auth_{name}": [refuse("tools/call", name="count", says="notes:read")] for name in ("function", "mounted")},
    **{
        name: [refuse("tools/call", name=tool, says=scope)]
        for name, tool, scope in [
            ("sign_in", "whoami", "notes:read"),
            ("sign_in_github", "list_repositories", "repos:read"),
            ("sign_in_groups", "write", "notes:write"),
        ]
    },
    "sign_in_own_row": [call("whoami", gives="anonymous")],
    "sign_in_tests": [fail("count_calendars", says="is for users who have signed in by AuthServer")],
    "auth_scopes": [call("wait", gives="Not yet."), refuse("tools/call", name="plan", says="Unknown tool: plan")],
    "audit": [read_the_journal],
    "untrusted": [look_over_the_fence],
    "state": [
        call("where", gives="Nowhere."),
        call("turn_to", book="Emma", page=12, gives=""),
        call("where", gives="Emma, page 12"),
        *(call("read_on", pages=3, gives=read) for read in (3, 6)),
    ],
    "state_handles": [fill_a_basket],
    "limits": [
        fail("assemble", says="did not finish within 0.05 s"),
    ],
    "limits_rates": [
        *(call("order", title=title, gives=f"{title} is ordered.") for title in ("Emma", "Ulysses")),
        fail("order", title="Middlemarch", says="The tool order takes 2 calls per day from each caller; try again in "),
    ],
    "repeats": [repeat_a_transfer, call("rate", currency="USD", gives=1.08)],
    # These are in processes or over HTTP, below.
    **{name: [] for name in PROGRAMS if name.startswith(("http_", "mounting_", "deploy", "stdio"))},
    "visibility": [unlock_the_bank],
    "search": [search_for_an_invoice],
    "extensions": [show_a_book],
    "observability": [call("order", article="hat", gives="1 hat ordered.")],
    "tasks": [render_a_scene, call("search", title="Dune", gives=["Dune, part 1", "Dune, part 2"])],
    "deploy_refresh": [call("hello", gives="Hello!"), call("reload", gives="reloaded")],
    "http_routes": [call("count_books", gives=2)],
}


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {*CLIENTS, *ELSEWHERE}))
async def test_a_program_does_what_its_page_says(name: str, revision: str) -> None:
    steps = SCENARIOS[name]
    async with Client(load(name).server, protocol_version=revision, **ASKED.get(name, {})) as client:
        for step in steps:
            await step(client)


@pytest.mark.long
async def test_programs_on_stdio(witness: Witness) -> None:
    assert len(PROGRAMS["readme"].read_text().splitlines()) == 15
    async with Client([sys.executable, PROGRAMS["readme"]], transcript=witness.see) as client:
        assert (await client.call_tool("days_between", {"start": "2026-01-01", "end": "2026-03-01"})).data == 59
    async with Client([sys.executable, PROGRAMS["stdio"]], transcript=witness.see) as client:
        assert (await client.call_tool("chatter")).data == "stdin holds ''"  # only messages reach a server and a client


@pytest.mark.slow
@pytest.mark.parametrize("program", ["testing", "testing_auth", "testing_dependencies"])
def test_the_page_on_testing_passes_its_own_tests(program: str) -> None:
    command = [sys.executable, "-m", "pytest", str(PROGRAMS[program]), "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


# ── results that pages show ──


async def answer_to(shown: re.Match[str], received: list[Any]) -> Any:
    def listen(direction: str, message: bytes) -> None:
        decoded = json.loads(message)
        if direction == "received" and "method" in decoded:
            received.append(decoded)

    server = load(shown["program"]).server
    server.engine.masks_errors = True  # pages show what clients see over stdio and HTTP
    async with Client(server, protocol_version=shown["revision"], transcript=listen) as client:
        received.clear()
        try:
            answer = await client.request(shown["method"], json.loads(shown["params"]))
        except ServerError as refusal:
            answer = {"code": refusal.code, "message": refusal.message}
            answer |= {} if refusal.data is None else {"data": refusal.data}
    return answer


def text_of(answer: dict[str, Any]) -> str:
    return answer["message"] if "message" in answer else "\n".join(block["text"] for block in answer["content"])


RESULTS = [block for block in blocks() if block.language == "json" or (block.language == "text" and block.mark)]


@pytest.mark.parametrize("block", RESULTS, ids=lambda block: stable(f"{block.page.stem}: {block.mark}"))
async def test_a_shown_result_is_real(block: Block) -> None:
    if block.mark == "settings":  # of a host: nothing that a server says
        json.loads(block.body)
        return
    if over_http := _HTTP_RESULT.fullmatch(block.mark):
        async with served(over_http["program"]) as url:
            response = await ask(url + over_http["path"], over_http["verb"], headers=json.loads(over_http["headers"]))
        assert await response.json() == json.loads(block.body)
        return
    shown = _RESULT.fullmatch(block.mark)
    assert shown, f"{block.page.name}: this result does not say what it answers:\n{block.body}"
    received: list[Any] = []
    answer = await answer_to(shown, received)
    if block.language == "text":
        assert text_of(answer) == block.body.removesuffix("\n")
        return
    actual = received if shown["notified"] else answer
    for step in (shown["part"] or "").split(".") if shown["part"] else []:
        actual = actual[int(step) if isinstance(actual, list) else step]
    assert actual == json.loads(block.body)


# ── programs over HTTP ──


@pytest.mark.seed("S2-06", "S2-69", "S2-70", "S2-71")
async def test_a_program_is_reached_over_http_in_every_way() -> None:
    async with served("http_server") as url, AsyncExitStack() as stack:
        ways = [*((revision, "/mcp") for revision in REVISIONS), *[("2024-11-05", "/sse")] * 2]
        clients = [Client(url + path, protocol_version=revision) for revision, path in ways]
        for client in clients:
            await stack.enter_async_context(client)
        assert [client.protocol_version for client in clients] == [revision for revision, _ in ways]
        for city in ("Rome", "Oslo"):  # by many clients of one process
            said = await asyncio.gather(*(client.call_tool("forecast", {"city": city}) for client in clients))
            assert {result.data for result in said} == {f"Sun in {city}."}
    async with served("http_long_calls") as url, Client(f"{url}/mcp") as client:
        assert (await client.call_tool("render", {"frames": 1})).data == "1 frames"


async def test_a_client_declares_an_extension(capsys: pytest.CaptureFixture[str]) -> None:
    async with served("extensions") as url:
        await load("extensions_client").main(f"{url}/mcp")
        shown = capsys.readouterr().out
        while "dovetail shows" not in shown:  # its notification has no response
            await asyncio.sleep(0.01)
            shown += capsys.readouterr().out
    assert "{'covers': ['small', 'large']}" in shown
    assert "reader://978-0140449136?cover=large" in shown
    assert "dovetail shows Pride and Prejudice" in shown


async def test_three_eras_are_behind_one_endpoint() -> None:
    async with served("gateway_eras") as url:
        for revision in ("2025-06-18", *REVISIONS):
            async with Client(f"{url}/mcp", protocol_version=revision, elicitation_handler=fill_in) as client:
                await read("books://library/dune/summary", gives="[en] A desert planet.")(client)
                await call("notes_delete_note", note_id="2", gives="Kept.")(client)


async def test_a_caller_without_a_key_for_the_backend_is_not_passed_on() -> None:
    async with Client(load("gateway_callers").server, principal=Principal(subject="bob")) as client:
        await call("calendar_whoami", gives="anonymous")(client)


async def ask(url: str, verb: str = "GET", **options: Any) -> aiohttp.ClientResponse:
    """One request, and its whole answer; redirects are not followed."""
    async with aiohttp.request(verb, url, allow_redirects=False, **options) as answer:
        await answer.read()
        return answer


async def test_pages_are_beside_the_endpoint() -> None:
    async with served("http_routes") as url:
        assert (await ask(url)).content_type == "text/html"
        assert await (await ask(f"{url}/books?start=D")).json() == ["Dune"]
        assert (await ask(f"{url}/books?start=X")).status == 404
        assert (await ask(f"{url}/books", "POST")).status == 405


async def test_a_session_belongs_to_who_opened_it() -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "docs", "version": "1"}}
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    async with served("http_identity") as url:
        opened = await ask(f"{url}/mcp", "POST", json=initialize, headers={"X-User": "ada"})
        same = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
        for who, status in [({}, 404), ({"X-User": "bob"}, 404), ({"X-User": "ada"}, 200)]:
            assert (await ask(f"{url}/mcp", "POST", json=ping, headers=same | who)).status == status
        async with Client(f"{url}/mcp", headers={"X-User": "ada"}) as client:
            assert (await client.call_tool("whoami")).data == "ada"


@pytest.mark.parametrize("name", ["fastapi", "starlette", "litestar", "by_path"])
async def test_an_app_is_mounted_at_its_path_and_below(name: str, witness: Witness) -> None:
    program = load(f"mounting_{name}")
    async with hosted(program.app) as url:
        assert (await ask(url)).status == 200
        below = [] if name == "by_path" else [("2024-11-05", "/mcp/sse", 405)]
        for revision, path, status in [("2026-07-28", "/mcp", 400), ("2025-11-25", "/mcp/", 400), *below]:
            assert (await ask(url + path, "POST", json={})).status == status
            async with Client(url + path, protocol_version=revision, transcript=witness.see) as client:
                assert (await client.call_tool("price", {"article": "hat"})).text == "9.5"
        await program.mcp.drain()


async def test_the_client_of_its_page_works(capsys: pytest.CaptureFixture[str]) -> None:
    async with served("http_server") as url:
        await load("client").main(f"{url}/mcp")
    assert capsys.readouterr().out == "2026-07-28\n1.0 2.0 asking the stations\nSun in Rome.\n"


async def test_the_client_that_reads_skills_compares_them(capsys: pytest.CaptureFixture[str]) -> None:
    async with hosted(load("skills_files").server.asgi()) as url:
        await load("client_skills").main(f"{url}/mcp")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("release-notes: Write the notes of a release from its commits.")
    assert lines[1].startswith("3. One sentence for each change")
    assert lines[2] == "# Style"
    assert lines[-1].endswith("the server lists no file 'references/SECRETS.md' of this skill, so it is not read")


async def test_the_client_that_listens_is_notified(capsys: pytest.CaptureFixture[str]) -> None:
    app = load("resources_updates").server.asgi()
    async with hosted(app) as url, Client(f"{url}/mcp") as client:
        listening = asyncio.create_task(load("client_listen").main(f"{url}/mcp"))
        received = ""
        async with asyncio.timeout(10):
            while not received:  # no message says when it has begun to listen
                await client.call_tool("count")
                received = capsys.readouterr().out
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    assert received.startswith("updated counter://value\n")


# ── programs as processes: what they say, and how they end ──


class Running:
    """A program that was started, and the URL that it printed to stderr."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT / "docs" / "programs", env=os.environ | {"DOVETAIL_PORT": "0"},
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        lines = iter(self.process.stderr.readline, "")
        self.said = next((line for line in lines if re.search(r"http://[\w.]+:\d+", line)), "")
        assert self.said, f"{command} did not say where it serves"
        self.port = re.findall(r"http://[\w.]+:(\d+)", self.said)[0]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.errors = self.process.communicate(timeout=10)[1]

    async def exit_code(self) -> int:
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), 10)


async def end_with_open_streams(program: Running) -> int:
    """Two clients listen, one of each era, and one call is in flight when the signal comes; it must be answered."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client(f"{program.url}/mcp", protocol_version=revision))
            for revision in REVISIONS
        ]
        for client in clients:
            await stack.enter_async_context(client.listen(tools=True))
        calls = [asyncio.create_task(client.call_tool("pack", {"seconds": 1.0})) for client in clients]
        for client in clients * 10:  # whose calls, sent before, were taken when these are answered
            await client.list_tools(fresh=True)
        program.process.send_signal(signal.SIGTERM)
        assert [result.data for result in await asyncio.gather(*calls)] == ["packed", "packed"]
        return await program.exit_code()


@pytest.mark.long
async def test_a_server_says_where_it_is_and_ends_with_code_0() -> None:
    with Running("http_server.py") as program:
        assert program.said.replace(program.port, "8000") in (ROOT / "docs" / "http.md").read_text()
        async with Client(f"{program.url}/mcp") as client, client.listen(tools=True):
            program.process.terminate()
            assert await program.exit_code() == 0


async def test_ready_says_no_before_the_end_and_a_second_signal_ends_at_once() -> None:
    with Running("deploy.py") as program:
        assert (await ask(f"{program.url}/ready")).status == 200
        program.process.terminate()
        async with asyncio.timeout(10):
            while (await ask(f"{program.url}/ready")).status == 200:
                pass
        async with Client(f"{program.url}/mcp") as client:
            assert (await client.call_tool("greet", {"name": "Ada"})).data == "Hello, Ada!"
        program.process.terminate()
        assert await program.exit_code() == -signal.SIGTERM


DRAINING_SERVER = """
import functools, runpy, uvicorn
uvicorn.Config = functools.partial(uvicorn.Config, port=0)
runpy.run_path("mounting_drain.py", run_name="__main__")
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [("-c", DRAINING_SERVER), ("-m", "uvicorn", "mounting_lifespan:app", "--port", "0")],
    ids=["a server of one's own", "a lifespan"],
)
async def test_uvicorn_ends_in_time_with_a_drain(command: tuple[str, ...]) -> None:
    with Running(*command) as program:
        assert await end_with_open_streams(program) == -signal.SIGTERM
    assert "Traceback" not in program.errors
