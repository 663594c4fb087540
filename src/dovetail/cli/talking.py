"""A server and the options of a command come in; a connected client goes out, whose logs and questions are seen to."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from dovetail.cli.meanwhile import USUAL_LEVEL, Meanwhile
from dovetail.cli.questions import Respondent
from dovetail.cli.reaching import ServerAt
from dovetail.cli.terminal import LEVEL_COLOURS, ProgressLine, as_json, plain, tell
from dovetail.client import Client, LogMessage
from dovetail.protocol.features import passes_level

LONGEST_LOG = 10_000  # characters of a message


class Talk(NamedTuple):
    """One conversation."""

    client: Client
    line: ProgressLine
    respondent: Respondent


@asynccontextmanager
async def talking(server: ServerAt, meanwhile: Meanwhile) -> AsyncIterator[Talk]:
    line = ProgressLine()
    if meanwhile.is_quiet:
        line.hide()
    respondent = Respondent(server.shown, meanwhile, line)
    handlers: dict[str, Any] = {
        "elicitation_handler": respondent.elicit,
        "sampling_handler": respondent.sample,
        "log_handler": None if meanwhile.is_quiet else _Logs(meanwhile, line).show,
        "roots": list(meanwhile.roots) or None,
    }
    try:
        async with server.connect(**handlers) as client:
            if meanwhile.log_level is not None and "logging" in client.capabilities:
                await client.set_log_level(meanwhile.log_level)  # type: ignore[arg-type]  # click has checked it
            yield Talk(client, line, respondent)
    finally:
        line.clear()


class _Logs:
    """What the server logs, as lines between the bar and all else."""

    def __init__(self, meanwhile: Meanwhile, line: ProgressLine) -> None:
        self._least: Any = meanwhile.log_level or USUAL_LEVEL
        self._line = line

    def show(self, message: LogMessage) -> None:
        if not passes_level(message.level, self._least):
            return
        said = message.data if isinstance(message.data, str) else as_json(message.data, indent=False)
        source = f"{message.level} {message.logger}" if message.logger else message.level
        self._line.clear()
        tell(f"{plain(source[:200])}: {plain(said[:LONGEST_LOG])}", fg=LEVEL_COLOURS.get(message.level), dim=True)
        sys.stderr.flush()
