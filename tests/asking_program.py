"""What the clients of programs_sdk/asking.py answer, what they should get to read, and which steps should have run."""

import itertools
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from server_process import serving

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
