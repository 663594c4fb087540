"""What a server asks comes in; what the person at the terminal says goes out, or what was said beforehand.

Where nobody is there to ask, a question that has no answer is dismissed, and a line on stderr says so.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from dovetail import cli
from dovetail.cli.arguments import GivenArguments
from dovetail.cli.exits import Ending
from dovetail.cli.keyboard import ask, confirm
from dovetail.cli.meanwhile import Meanwhile
from dovetail.cli.terminal import ProgressLine, can_ask, in_line, plain, tell
from dovetail.client import ElicitQuestion, ElicitReply, SamplingRequest

LONGEST_WORDS = 4_000  # characters of a question, or of a message to a model
MAX_MESSAGES = 20


class Dismissed(Exception):
    """The person said no."""

    def __init__(self, action: Literal["decline", "cancel"]) -> None:
        super().__init__(action)
        self.action = action


class Respondent:
    """Answers one question after the other, even if they come at once."""

    def __init__(self, server: str, meanwhile: Meanwhile, line: ProgressLine) -> None:
        self._server = server
        self._answers = meanwhile.answers or GivenArguments()
        self._line = line
        self._turn = asyncio.Lock()

    # ── forms and pages ──

    async def elicit(self, question: ElicitQuestion) -> ElicitReply:
        """An `elicitation_handler`."""
        async with self._turn:
            try:
                with self._line.held():
                    return await (self._visit(question) if question.mode == "url" else self._fill_in(question))
            except Dismissed as dismissed:
                return ElicitReply(dismissed.action)

    def _say(self, words: str) -> None:
        tell(f"{self._server} asks: {plain(words[:LONGEST_WORDS])}", fg="cyan")

    async def _fill_in(self, question: ElicitQuestion) -> ElicitReply:
        self._say(question.message)
        form = cli.form.FormQuestion(question.schema or {})
        try:
            content = form.answered(self._answers.arguments, self._answers.whole or {})
        except Ending as wrong:
            tell(f"No answer is sent: {wrong.message}")
            raise Dismissed("cancel") from None
        if can_ask():
            return ElicitReply("accept", await form.fill_in(content))
        if not content or form.lacks(content):
            tell(f"Nobody is here to answer, so it is cancelled. {form.advice()}")
            raise Dismissed("cancel")
        return ElicitReply("accept", content)

    async def _visit(self, question: ElicitQuestion) -> ElicitReply:
        url = in_line(question.url or "", LONGEST_WORDS)
        self._say(question.message)
        tell(f"  {url}", underline=True)
        if not can_ask():
            tell("Nobody is here to open it, so it is cancelled.")
            raise Dismissed("cancel")
        agreed = await confirm(f"Open this page at {in_line(urlsplit(question.url or '').netloc, 300)} in the browser?")
        if not agreed:
            raise Dismissed("cancel" if agreed is None else "decline")
        if not await asyncio.to_thread(_open, question.url or ""):
            tell("There is no browser here: open the page yourself.")
        return ElicitReply("accept")

    # ── a model's work, done by a person ──

    async def sample(self, request: SamplingRequest) -> str | None:
        """A `sampling_handler`."""
        async with self._turn:
            with self._line.held():
                return await self._answer_for_model(request)

    async def _answer_for_model(self, request: SamplingRequest) -> str | None:
        if not can_ask():
            tell(f"{self._server} asks a model, and nobody is here to answer for it: refused")
            return None
        self._show_request(request)
        lines: list[str] = []
        while (line := await ask("  > ")) or (line == "" and not lines):
            if line == "!decline":
                return None
            lines.append(line)
        return "\n".join(lines).strip() if lines else None

    def _show_request(self, request: SamplingRequest) -> None:
        self._say("something of a model")
        if request.system_prompt:
            tell(f"  system: {plain(request.system_prompt[:LONGEST_WORDS])}", dim=True)
        for message in request.messages[-MAX_MESSAGES:]:
            for block in message["content"][:MAX_MESSAGES]:
                tell(f"  {in_line(str(message['role']), 20)}: {_shown(block)}")
        tell("Answer for the model. An empty line ends it; !decline refuses.", dim=True)


def _open(url: str) -> bool:
    import webbrowser  # late: hardly any call needs it

    return webbrowser.open(url)


def _shown(block: Mapping[str, Any]) -> str:
    if isinstance(text := block.get("text"), str):
        return plain(text[:LONGEST_WORDS])
    return f"[{in_line(str(block.get('type')), 40)}]"
