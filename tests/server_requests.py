"""Server requests in tests: a server that sends them over the bare channel, calls of several rounds, and a program."""

import asyncio
import itertools
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from server_process import serving

from dovetail import Client, Context, Server
from dovetail.errors import QuestionFailed
from http_serving import Stage

FORM = {"message": "How many?", "requestedSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
QUESTIONS = {"elicitation/create": FORM, "roots/list": {}, "ping": {}}


class AskingStage(Stage):
    """`tools/call ask`: the answers as JSON, or the words of the failure."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.contexts: list[Any] = []  # of every call
        self.failures: list[BaseException] = []
        self.server.add_tool(self.ask)
        self.server.add_tool(self.defy)

    async def ask(self, ctx: Context, method: str = "roots/list", times: int = 1, timeout: float = 10.0) -> str:
        self.contexts.append(ctx._context)
        self.entered.set()
        params = json.dumps(QUESTIONS[method]).encode()
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self._ask(ctx, method, params, timeout)) for _ in range(times)]
        except BaseExceptionGroup as failures:
            self.failures.append(failures.exceptions[0])
            return str(failures.exceptions[0])
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return json.dumps([json.loads(bytes(task.result())) for task in asked])

    async def _ask(self, ctx: Context, method: str, params: bytes, timeout: float) -> Any:
        channel = ctx._context.channel
        if channel is None:
            raise QuestionFailed(ctx._context.no_channel_reason)
        return await ask_by(channel, method, timeout, params)

    async def defy(self, ctx: Context) -> str:
        """Goes on asking when it was cancelled."""
        self.contexts.append(ctx._context)
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                ctx._context.channel.pending("roots/list", 5)
            except QuestionFailed as failure:
                self.failures.append(failure)
        return "defied"


async def ask_by(channel: Any, method: str, timeout: float, params: bytes = b"{}") -> Any:
    """The client's result, over the bare channel of a call."""
    async with channel.pending(method, timeout) as request:
        return await request.result(method, params, timeout)


def answer_to(question: dict[str, Any], result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": question["id"], "result": result}


def refusal_of(question: dict[str, Any], code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": question["id"], "error": {"code": code, "message": message}}


def progress_on(question: dict[str, Any], progress: float = 1) -> dict[str, Any]:
    token = question["params"]["_meta"]["progressToken"]
    return {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": token, "progress": progress},
    }


# ── calls of several rounds by hand, as a client of 2026-07-28 plays them: answer, and make the request again ──

MODERN = "2026-07-28"
CAPABILITIES = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {}}
Answers = Mapping[str, Any] | Callable[[str], Any]


def asking_client(server: Server | str, capabilities: Mapping[str, Any] = CAPABILITIES) -> Client:
    """A client that is open to any question, and leaves the answers to the test."""
    return Client(server, protocol_version=MODERN, capabilities=capabilities)


def accept(value: Any) -> dict[str, Any]:
    return accepted({"value": value})


def is_input_required(result: Mapping[str, Any]) -> bool:
    return result["resultType"] == "input_required"


def messages(result: Mapping[str, Any]) -> list[str]:
    """What an `input_required` result asks."""
    return sorted(request["params"]["message"] for request in result.get("inputRequests", {}).values())


def input_responses(result: Mapping[str, Any], answers: Answers) -> dict[str, Any]:
    """The `inputResponses` to such a result; questions that have no answer are left out."""
    answer_to = answers if callable(answers) else answers.get
    found = {key: answer_to(request["params"]["message"]) for key, request in result.get("inputRequests", {}).items()}
    return {key: accept(value) for key, value in found.items() if value is not None}


@dataclass
class Played:
    """How a call went."""

    result: dict[str, Any] = field(default_factory=dict)
    rounds: list[list[str]] = field(default_factory=list)  # what was asked in each
    states: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(block["text"] for block in self.result["content"])

    @property
    def failed(self) -> bool:
        return bool(self.result.get("isError"))


async def play(
    client: Client,
    name: str,
    answers: Answers,
    arguments: Mapping[str, Any] | None = None,
    *,
    method: str = "tools/call",
    limit: int = 40,
) -> Played:
    """Make a request and answer until it is complete."""
    params: dict[str, Any] = {"uri": name} if method == "resources/read" else {"name": name}
    if arguments is not None:
        params["arguments"] = arguments
    played = Played(await client.request(method, params))
    while is_input_required(played.result):
        assert len(played.rounds) < limit, played.rounds
        played.rounds.append(messages(played.result))
        played.states.append(played.result["requestState"])
        played.result = await client.request(method, {**params, **retry(played.result, answers)})
    return played


def retry(result: Mapping[str, Any], answers: Answers) -> dict[str, Any]:
    """What a request gets in addition when it is made again."""
    return {"inputResponses": input_responses(result, answers), "requestState": result["requestState"]}


# ── programs_sdk/asking.py: what its clients answer, what they should read, and which steps should have run ──

PROGRAM = Path(__file__).parent / "programs_sdk" / "asking.py"
CITY, STAY, NEW_NAME, NAME = "Which city?", "How long in Rome?", "A new name?", "Your name?"
ANSWERS: dict[str, dict[str, Any]] = {
    CITY: {"value": "Rome"},
    STAY: {"nights": 3},
    NEW_NAME: {"value": "Ada"},
    NAME: {"value": "Ada"},
}
MODEL_SAYS = "lovely"
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": MODEL_SAYS}, "model": "m"}
ROOT = {"uri": "file:///work", "name": "work"}
PLANNED = re.compile(r"3 nights in Rome, Ritz: lovely \[(\d+) (\d+) (\d+)\]")


class Expected(NamedTuple):
    text: str  # a pattern
    steps: Sequence[str] = ()
    since: str = "2024-11-05"

    def arguments(self, call: str) -> dict[str, str]:
        return {"call": call} if self.steps else {}


EVERYTHING = {
    "plan": Expected(PLANNED.pattern, ["reserve", "book"], "2025-06-18"),
    "praise": Expected("lovely", ["open", "close"]),
    "folders": Expected("work at file:///work"),
    "rename": Expected("renamed to Ada", ["rename"], "2025-06-18"),
    "sign_in": Expected("accept", (), "2025-11-25"),
    "welcome": Expected("Welcome Ada", ["welcome"], "2025-06-18"),  # a prompt
    "letter": Expected("Dear Ada", ["write"], "2025-06-18"),  # a resource: letters://{call}
}
Ask = Callable[[str, dict[str, str]], Awaitable[str]]  # a name of the above and its arguments; the text that came of it
_numbers = itertools.count(1)


def new_call() -> str:
    return f"call-{os.getpid()}-{next(_numbers)}"


class Notes:
    """What the server has noted down, wherever it ran."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    @property
    def program(self) -> tuple[str, ...]:
        """What Python should run, to serve stdio."""
        return (str(PROGRAM), "--notes", str(self.path))

    def steps(self, call: str) -> list[str]:
        return [step for step, _ in self._of(call)]

    def processes(self, call: str) -> list[int]:
        return [process for _, process in self._of(call)]

    def _of(self, call: str) -> Iterator[tuple[str, int]]:
        for line in self.path.read_text().splitlines():
            of, step, process = line.split()
            if of == call:
                yield step, int(process)


async def check_everything(ask: Ask, notes: Notes, revision: str) -> None:
    """All that the revision has gives the same everywhere, and each of its steps has run once."""
    for name, expected in EVERYTHING.items():
        if revision >= expected.since:
            call = new_call()
            text = await ask(name, expected.arguments(call))
            assert re.fullmatch(expected.text, text), f"{name}: {text}"
            assert notes.steps(call) == [*expected.steps], name


@contextmanager
def asking_server(folder: Path, *options: str) -> Iterator[tuple[str, Notes]]:
    """A process that serves HTTP until the end; it complained of nothing, and neither did the judge."""
    log = folder / "server.log"
    notes = Notes(folder / "notes")
    with serving([*notes.program, *options], log) as process:
        yield process.origin, notes
    assert not process.complaints, log.read_text()


def accepted(content: Mapping[str, Any]) -> dict[str, Any]:
    return {"action": "accept", "content": content}
