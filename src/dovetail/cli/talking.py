"""A server and the options of a command come in; a connected client goes out, whose logs and questions are seen to."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from dovetail.cli.exits import WRONG_USE, Ending
from dovetail.cli.meanwhile import USUAL_LEVEL, Meanwhile
from dovetail.cli.questions import Respondent
from dovetail.cli.reaching import ServerAt
from dovetail.cli.schemas import mapping
from dovetail.cli.terminal import LEVEL_COLOURS, ProgressLine, as_json, in_line, plain, tell
from dovetail.client import Client, LogMessage
from dovetail.protocol import revisions
from dovetail.protocol.features import passes_level
from dovetail.protocol.types import PromptDefinition, ToolDefinition

LONGEST_LOG = 10_000  # characters of a message
MAX_NAMED = 20  # tools or prompts that an error lists
FEATURES = ("tools", "resources", "prompts", "completions")

N = TypeVar("N", ToolDefinition, PromptDefinition)


def require(client: Client, feature: str, server: str) -> None:
    """Before a request that could only be refused: does the server have such things at all?"""
    if feature in client.capabilities or (feature == "completions" and not _declares_completions(client)):
        return
    others = " and ".join(name for name in FEATURES if name in client.capabilities)
    raise Ending(f"{server} has no {feature} at all; it has {others or 'nothing that could be asked for'}", WRONG_USE)


def _declares_completions(client: Client) -> bool:
    return revisions.BY_NAME[client.protocol_version].completions_capability


def named(name: str, known: Iterable[N], kind: str) -> N:
    """The one of that name. If there is none, it is told what could be meant."""
    by_name = {each.name: each for each in known}
    if name in by_name:
        return by_name[name]
    import difflib  # late: names are mostly right

    near = difflib.get_close_matches(name, by_name, n=1)
    names = ", ".join(in_line(each, 60) for each in list(by_name)[:MAX_NAMED])
    others = f"it has {names}" if names else f"it has no {kind}s at all"
    raise Ending(f"there is no {kind} {name}; {f'did you mean {in_line(near[0], 60)}?' if near else others}", WRONG_USE)


class Talk(NamedTuple):
    """One conversation."""

    client: Client
    line: ProgressLine
    respondent: Respondent


@asynccontextmanager
async def talking(server: ServerAt, meanwhile: Meanwhile, **options: Any) -> AsyncIterator[Talk]:
    """`options` are further ones of the client."""
    line = ProgressLine()
    if meanwhile.is_quiet:
        line.hide()
    respondent = Respondent(server.shown, meanwhile, line)
    handlers: dict[str, Any] = {
        "elicitation_handler": respondent.elicit,
        "sampling_handler": respondent.sample,
        "log_handler": None if meanwhile.is_quiet else _Logs(meanwhile).show,
        "roots": list(meanwhile.roots) or None,
    }
    try:
        async with server.connect(**handlers, **options) as client:
            if meanwhile.log_level is not None and "logging" in client.capabilities:
                await client.set_log_level(meanwhile.log_level)  # type: ignore[arg-type]  # click has checked it
            yield Talk(client, line, respondent)
    finally:
        line.clear()


class LastResult:
    """What the server answered last, as it came; not all of that has a place in the client's own types."""

    def __init__(self) -> None:
        self._result = b"{}"

    def hear(self, direction: str, message: bytes) -> None:
        """A `transcript`."""
        if direction == "received":
            with suppress(msgspec.DecodeError):
                self._result = bytes(msgspec.json.decode(message, type=_Answer).result) or self._result

    @property
    def meta(self) -> dict[str, Any]:
        """For a document: `_meta`, if there is any."""
        found = mapping(msgspec.json.decode(self._result)).get("_meta")
        return {"_meta": found} if found else {}


class _Answer(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw()


class _Logs:
    """What the server logs, as lines."""

    def __init__(self, meanwhile: Meanwhile) -> None:
        self._least: Any = meanwhile.log_level or USUAL_LEVEL

    def show(self, message: LogMessage) -> None:
        if not passes_level(message.level, self._least):
            return
        said = message.data if isinstance(message.data, str) else as_json(message.data, indent=False)
        source = f"{message.level} {message.logger}" if message.logger else message.level
        tell(f"{in_line(source, 200)}: {plain(said[:LONGEST_LOG])}", fg=LEVEL_COLOURS.get(message.level), dim=True)
