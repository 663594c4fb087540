"""The documentation as tests: every snippet is a program that runs, and every result that a page shows is a real one.

A page marks a shown result with the request it answers, in a comment above the block:

    <!-- tools.py 2025-11-25 tools/call {"name": "add", "arguments": {"a": 1, "b": 2}} | structuredContent -->

What follows the bar is the part that is shown. A `json` block shows a result or an error, a `text` block its text.
With `heard` before the program's name, the block shows the notifications that came before the answer. With `http` the
block shows the body of an answer over HTTP:

    <!-- http deploy.py GET /mcp {"Host": "api.example.com"} -->
"""

import ast
import asyncio
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest

import dovetail
from documented import PAGES, PROGRAMS, REVISIONS, ROOT, load, served
from dovetail import Client, ElicitQuestion, Field, Server, ServerError, ToolAnnotations, ToolError, ToolRegistry
from dovetail.client.options import ClientOptions
from dovetail.engine.options import ServerOptions
from dovetail.registry.prompts import PromptOptions
from dovetail.registry.resources import ResourceOptions
from dovetail.registry.tools import ToolOptions
from dovetail.registry.validate import DIALECTS
from dovetail.transports.options import KINDS, HttpOptions
from official import Witness
from stable_ids import stable

LANGUAGES = {"python", "console", "json", "text", "nginx", "yaml"}

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates:DeprecationWarning")


# ── pages ──


class Block(NamedTuple):
    page: Path
    mark: str
    language: str
    body: str

    def __str__(self) -> str:
        return f"{self.page.stem}: {self.mark}"


_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"\]\((?!https?://)(?P<path>[^)#]+)")
_HTTP_RESULT = re.compile(r"http (?P<program>\w+)\.py (?P<verb>[A-Z]+) (?P<path>\S+) (?P<headers>\{.*\})")
_RESULT = re.compile(
    r"(?P<heard>heard )?(?P<program>\w+)\.py (?P<revision>[\d-]+) (?P<method>\S+) (?P<params>\{.*?\})"
    r"( \| (?P<part>\S+))?"
)


def blocks(language: str = "") -> list[Block]:
    found = [
        Block(page, match["mark"] or "", match["language"], match["body"])
        for page in PAGES
        for match in _BLOCK.finditer(page.read_text())
    ]
    return [block for block in found if language in ("", block.language)]


def results() -> list[Block]:
    return [block for block in blocks() if block.language == "json" or (block.language == "text" and block.mark)]


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
def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    for page in PAGES[1:]:
        assert page.stem == "index" or f"]({page.name})" in index, page.name


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: f"{block.page.stem}: {block.body[:40]!r}")
def test_a_python_block_is_a_program(block: Block) -> None:
    assert block.body in {path.read_text() for path in PROGRAMS.values()}


def test_every_disagreement_of_descriptions_is_resolved() -> None:
    rows = re.findall(r"^\| C-(\d\d) \|", (ROOT / "docs" / "profiles.md").read_text(), re.MULTILINE)
    assert rows == [f"{number:02}" for number in range(1, 36)]


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


def test_the_options_of_http_are_told_with_their_defaults_and_variables() -> None:
    text = (ROOT / "docs" / "http.md").read_text()
    told = re.findall(r"^\| `(\w+)` \| `(.*?)` \| (?:`(\w+)`)? *\|", text, re.MULTILINE)
    real = [
        (name, default, f"DOVETAIL_{name.upper()}" if name in KINDS else "")
        for name, default in msgspec.structs.asdict(HttpOptions()).items()
    ]
    assert [(name, ast.literal_eval(default), variable) for name, default, variable in told] == real


# ── programs ──

CLIENTS = ("client", "client_listen", "client_several", "client_sign_in")  # programs that are no servers


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


def fail(tool: str, *, says: str, **arguments: Any) -> Step:
    async def step(client: Client) -> None:
        with pytest.raises(ToolError, match=re.escape(says)):
            await client.call_tool(tool, arguments)

    return step


def refuse(method: str, *, says: str, **params: Any) -> Step:
    async def step(client: Client) -> None:
        with pytest.raises(ServerError, match=re.escape(says)):
            await client.request(method, params)

    return step


def read(uri: str, *, gives: str | bytes) -> Step:
    async def step(client: Client) -> None:
        (contents,) = await client.read_resource(uri)
        assert (contents.text if contents.blob is None else contents.blob) == gives

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


async def listen_for_updates(client: Client) -> None:
    async with client.listen(uris=["counter://value"]) as changes:
        assert (await client.call_tool("count")).data == 1
        assert (await anext(changes)).uri == "counter://value"


async def list_the_files(client: Client) -> None:
    uris = [resource.uri for resource in await client.list_resources()]
    assert "files://this" in uris
    assert "docs://programs/readme.py" in uris
    (contents,) = await client.read_resource("docs://programs/readme.py")
    assert contents.text == PROGRAMS["readme"].read_text()


async def use_the_context(client: Client) -> None:
    heard: list[tuple[float, float | None, str | None]] = []
    result = await client.call_tool("bake", {"minutes": 2}, progress_handler=lambda *report: heard.append(report))
    assert result.data == "A cake."
    assert heard == [(0, 2, "baking"), (1, 2, "baking"), (2, 2, "done")]
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
    sentence, first, text, last = fenced.data.splitlines()
    assert first == last
    assert first in sentence
    assert text.startswith("Nice site! ")
    page = (ROOT / "docs" / "audit.md").read_text()
    assert fenced.data.replace(first, "untrusted-9f86d081884c7d659a2feaa0c55ad015") in page


async def look_at_pictures(client: Client) -> None:
    caption, image = (await client.call_tool("picture")).content
    assert caption.text == "One blue pixel:"
    assert image.data.startswith(b"\x89PNG")
    (link,) = (await client.call_tool("manual")).content
    assert link.uri == "docs://manual"


REVIEW = "Please review this python code:\nx = 1"
LETTER = [("user", ""), ("user", "Continue this letter."), ("assistant", "Dear")]
BOOKED = "Ada and 0 more, 2 nights from 2026-05-01, board: none"
BOOKING = {"guests": [{"name": "Ada"}], "arrival": "2026-05-01", "nights": 2}
ADA = {"name": "Ada", "email": "ada@example.org"}

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
    "What is your name": {"name": "Ada"},
}


def fill_in(question: ElicitQuestion) -> Any:
    return next(answer for beginning, answer in ANSWERS.items() if question.message.startswith(beginning))


def take_the_first(question: ElicitQuestion) -> Any:
    (field,) = question.fields.values()
    return field.get("enum", [True])[0]


ASKED: dict[str, dict[str, Any]] = {
    **{name: {"elicitation_handler": fill_in} for name in ("asking", "asking_forms", "asking_url", "asking_by_hand")},
    "asking_models": {"elicitation_handler": fill_in, "sampling_handler": lambda _: "Short.", "roots": ["file:///a"]},
    "replay": {"elicitation_handler": take_the_first},
}
SCENARIOS: dict[str, list[Step]] = {
    "client_answers": [],  # it has a test of its own
    "asking": [call("delete_note", note_id="1", gives="Deleted."), call("delete_note", note_id="2", gives="Kept.")],
    "asking_forms": [call("book", gives="7 nights in Rome, lunch, dinner, slow")],
    "asking_models": [
        call("summarise", text="A long text.", gives="Short."),
        call("folders", gives=["file:///a"]),
        call("rename", old="list", gives="list is now todo"),
    ],
    "asking_url": [call("connect", gives="Come back when you are done.")],
    "asking_by_hand": [call("greet", gives="Hello, Ada! I asked 1 times.")],
    "replay": [call("order", matches=r"Ordered \d{4}\.")],
    "readme": [call("days_between", start="2026-01-01", end="2026-03-01", gives=59)],
    "tools": [
        call("place_order", article="hat", pieces=2, gives={"article": "hat", "size": "M", "total": 19.0}),
        fail("place_order", article="hat", pieces=0, says="pieces"),
    ],
    "tools_content": [look_at_pictures, call("search", text="x", gives={"hits": ["X"]})],
    "tools_dynamic": [refuse("tools/call", name="polish", says="Unknown tool: polish"), listen_for_tools],
    "annotations": [call("find", text="sand", gives=["dune"]), call("discard", name="emma", gives="Gone.")],
    "registry": [
        call("learn", word="shout", gives="I learned shout."),
        call("shout", text="hi", gives="hi!"),
        call("describe", word="shout", gives="Shout: Answer in the way of shout"),
        call("pages", size=5, gives=[["learn", "forget", "describe", "pages", "changes"], ["shout"]]),
        call("forget", word="shout", gives="I forgot shout."),
        call("changes", matches="learn, forget, .*, shout; learn, .*"),
        call("forget", gives="I know nothing."),
        refuse("tools/call", name="learn", says="Unknown tool: learn"),
    ],
    "tools_registry": [call("shout", text="hi", gives="HI!"), call("shout", text="hi", marks=2, gives="HI!!")],
    "resources": [
        read("books://all", gives='["dune","emma"]'),
        read("books://cover.png", gives=b"\x89PNG\r\n\x1a\n"),
        read("books://dune/summary?language=de", gives="[de] A desert planet."),
        refuse("resources/read", uri="books://ulysses/summary", says="There is no book ulysses"),
    ],
    "resources_files": [
        list_the_files,
        refuse("resources/read", uri="docs://programs/%2e%2e/index.md", says="There is no file"),
    ],
    "resources_updates": [listen_for_updates, read("counter://value", gives="1")],
    "prompts": [
        prompt("code_review", code="x = 1", gives=[("user", REVIEW)]),
        prompt("code_review", code="x = 1", strict="true", gives=[("user", "Be strict. " + REVIEW)]),
        prompt("continue_letter", begin="Dear", gives=LETTER),
        refuse("prompts/get", name="code_review", arguments={"language": "cobol"}, says="code"),
    ],
    "completions": [
        complete("prompt", "trip", "city", "l", country="Peru", gives=["Lima"]),
        complete("prompt", "trip", "season", "S", gives=["spring", "summer"]),
        complete("resource", "atlas://{country}", "country", "", gives=["France"]),
        complete("tool", "distance", "start", "L", gives=["Lyon", "Lima"]),
        prompt("trip", country="Peru", city="Lima", gives=[("user", "Plan a summer trip to Lima, Peru.")]),
        read("atlas://Peru", gives="Cusco, Lima"),
    ],
    "log_messages": [call("connect", host="db", gives="connected"), call("migrate", gives="done")],
    "errors": [
        call("withdraw", account="alice", amount=30, gives=70),
        fail("withdraw", account="carol", amount=30, says="There is no account carol"),
        fail("audit", says="The tool audit failed: KeyError: 'mallory' (errors.py, line 20)"),
        refuse(
            "prompts/get", name="statement", arguments={"account": "carol"}, says="There is no account carol (-32602)"
        ),
    ],
    "console": [call("forecast", city="Rome", gives="Sun in Rome.")],
    "context": [use_the_context],
    "context_threads": [call("search", text="an", gives=["banana"]), call("nap", seconds=0.001, gives="rested")],
    "context_lifespan": [call("add_note", text="one", gives=1), call("add_note", text="two", gives=2)],
    "revisions": [call("nearest", count=1, gives=["Sun"])],
    "profiles": [call("greet", name="Ada", gives={}), fail("greet", says="name")],
    "profiles_reference": [call("add", a=1, b=2, gives='{"result":3.0}')],
    "testing": [call("divide", a=6, b=3, gives=2.0)],
    "testing_auth": [refuse("tools/call", name="write", says="This needs the scopes: notes:write; nobody")],
    "middleware": [
        call("look", matches=".+"),
        refuse("tools/call", name="admin_open", says="Unknown tool: admin_open"),
    ],
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
    # Here nobody has a token; tests/test_docs_auth.py has them.
    **{
        f"auth_{name}": [call("whoami", gives="nobody")]
        for name in ("keys", "introspection", "several", "dpop", "dpop_nonces", "server")
    },
    "auth_jwt": [call("whoami", gives={})],
    "auth_function": [refuse("tools/call", name="count", says="This needs the scopes: notes:read")],
    "auth_mounted": [refuse("tools/call", name="count", says="This needs the scopes: notes:read")],
    "auth_scopes": [
        call("wait", gives="Not yet."),
        refuse("tools/call", name="plan", says="Unknown tool: plan"),
    ],
    "audit": [read_the_journal],
    "untrusted": [look_over_the_fence],
    "limits": [
        fail("assemble", says="did not finish within 0.05 s"),
        call("press", part="lid", gives="pressed lid"),
        call("weigh", grams=1500, gives=1.5),
    ],
    "limits_rates": [
        call("find", title="Emma", gives="Emma is on the second floor."),
        *(call("order", title=title, gives=f"{title} is ordered.") for title in ("Emma", "Ulysses")),
        fail("order", title="Middlemarch", says="The tool order takes 2 calls per day from each caller; try again in "),
    ],
    # These are in processes or over HTTP, in tests/test_docs_http.py and below.
    **{name: [] for name in PROGRAMS if name.startswith(("http_", "mounting_", "deploy", "stdio"))},
    "deploy_refresh": [call("hello", gives="Hello!"), call("reload", gives="reloaded")],
    "http_pages": [call("count_books", gives=2)],
}


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - set(CLIENTS)))
async def test_a_program_does_what_its_page_says(name: str, revision: str) -> None:
    steps = SCENARIOS[name]
    async with Client(load(name).server, protocol_version=revision, **ASKED.get(name, {})) as client:
        for step in steps:
            await step(client)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_server_of_the_readme_runs_in_fifteen_lines(revision: str, witness: Witness) -> None:
    assert len(PROGRAMS["readme"].read_text().splitlines()) == 15
    command = [sys.executable, PROGRAMS["readme"]]
    async with Client(command, protocol_version=revision, transcript=witness.see) as client:
        assert (await client.call_tool("days_between", {"start": "2026-01-01", "end": "2026-03-01"})).data == 59


async def test_nothing_but_messages_reaches_a_client_over_stdio(witness: Witness) -> None:
    async with Client([sys.executable, PROGRAMS["stdio"]], transcript=witness.see) as client:
        assert (await client.call_tool("chatter")).data == "stdin holds ''"


@pytest.mark.slow
@pytest.mark.parametrize("program", ["testing", "testing_auth"])
def test_the_page_on_testing_passes_its_own_tests(program: str) -> None:
    command = [sys.executable, "-m", "pytest", str(PROGRAMS[program]), "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


# ── results that pages show ──


async def answer_to(shown: re.Match[str], heard: list[Any]) -> Any:
    def listen(direction: str, message: bytes) -> None:
        decoded = json.loads(message)
        if direction == "received" and "method" in decoded:
            heard.append(decoded)

    server = load(shown["program"]).server
    server.engine.masks_errors = True  # pages show what clients see over stdio and HTTP
    async with Client(server, protocol_version=shown["revision"], transcript=listen) as client:
        heard.clear()
        try:
            answer = await client.request(shown["method"], json.loads(shown["params"]))
        except ServerError as refusal:
            answer = {"code": refusal.code, "message": refusal.message}
            answer |= {} if refusal.data is None else {"data": refusal.data}
    return answer


async def http_answer_to(shown: re.Match[str]) -> Any:
    headers = json.loads(shown["headers"])
    async with served(shown["program"]) as url, aiohttp.ClientSession(url, headers=headers) as session:
        return await (await session.request(shown["verb"], shown["path"])).json()


def text_of(answer: dict[str, Any]) -> str:
    return answer["message"] if "message" in answer else "\n".join(block["text"] for block in answer["content"])


@pytest.mark.parametrize("block", results(), ids=stable)
async def test_a_shown_result_is_real(block: Block) -> None:
    if block.mark == "settings":  # of a host: nothing that a server says
        json.loads(block.body)
        return
    if over_http := _HTTP_RESULT.fullmatch(block.mark):
        assert await http_answer_to(over_http) == json.loads(block.body)
        return
    shown = _RESULT.fullmatch(block.mark)
    assert shown, f"{block.page.name}: this result does not say what it answers:\n{block.body}"
    heard: list[Any] = []
    answer = await answer_to(shown, heard)
    if block.language == "text":
        assert text_of(answer) == block.body.removesuffix("\n")
        return
    actual = heard if shown["heard"] else answer
    for step in (shown["part"] or "").split(".") if shown["part"] else []:
        actual = actual[int(step) if isinstance(actual, list) else step]
    assert actual == json.loads(block.body)
