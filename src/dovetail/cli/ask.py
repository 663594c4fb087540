"""Questions at the terminal: forms, pages and sampling requests of a server, answered by a person or beforehand.

The event loop goes on while a person types, so a server can report, and take its question back. Without a terminal, a
question that has no answer is cancelled, and a line on stderr says so.
"""

import asyncio
import io
import sys
import threading
import webbrowser
from collections.abc import Mapping
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from dovetail.cli import arguments
from dovetail.cli.output import CommandExit, ProgressBar, PromptLine, err, is_interactive, one_line, sanitize
from dovetail.client import ElicitRequest, ElicitResult, SamplingRequest
from dovetail.errors import SetupError
from dovetail.schema.validate import SchemaLimits, Validator

MAX_LINE_BYTES = 64 * 1024
MAX_TEXT = 4_000  # characters of a question, or of a message to a model
MAX_MESSAGES = 20
MAX_OPTIONS = 200
YES, NO = ("y", "yes"), ("n", "no")


class Dismissed(Exception):
    """The person said no."""

    def __init__(self, action: Literal["decline", "cancel"]) -> None:
        super().__init__(action)
        self.action = action


# ── the keyboard ──


async def ask(words: str) -> str | None:
    """One line; None at the end of all input, which is Ctrl-D."""
    question, line = PromptLine(words), b""
    question.draw()
    try:
        line = await _line()
    finally:
        question.close(is_answered=line.endswith(b"\n"))
    return line.decode(errors="replace").strip() if line else None


async def confirm(words: str, *, default: bool = False) -> bool | None:
    """Yes or no, asked until it is one of them; None for Ctrl-D."""
    while True:
        given = await ask(f"{words} [{'Y/n' if default else 'y/N'}] ")
        if given is None:
            return None
        if not given:
            return default
        if given.lower() in YES + NO:
            return given.lower() in YES
        err("Please say y or n.")


async def require_yes(words: str) -> None:
    """Raises Dismissed unless the answer is yes."""
    if not (said := await confirm(words)):
        raise Dismissed("cancel" if said is None else "decline")


async def _line() -> bytes:
    """The terminal itself keeps the line until it is finished."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[bytes] = loop.create_future()
    keys = cast(io.BufferedReader, sys.stdin.buffer).raw  # without a lock that the end of the process would wait for

    def settle(line: bytes) -> None:
        if not came.done():
            came.set_result(line)

    try:
        loop.add_reader(sys.stdin.fileno(), lambda: settle(keys.read(MAX_LINE_BYTES) or b""))
    except NotImplementedError:  # on Windows
        wait = threading.Thread(
            target=lambda: loop.call_soon_threadsafe(settle, keys.read(MAX_LINE_BYTES) or b""), daemon=True
        )
        wait.start()
        return await came
    try:
        return await came
    finally:
        loop.remove_reader(sys.stdin.fileno())


# ── what a server asks ──


class TerminalHandlers:
    """Answers one question after the other, even if they come at once."""

    def __init__(self, server: str, answers: arguments.GivenArguments | None, line: ProgressBar) -> None:
        self._server = server
        self._answers = answers or arguments.GivenArguments()
        self._line = line
        self._turn = asyncio.Lock()

    # ── forms and pages ──

    async def elicit(self, question: ElicitRequest) -> ElicitResult:
        """An `elicitation_handler`."""
        async with self._turn:
            try:
                with self._line.paused():
                    return await (self._visit(question) if question.mode == "url" else self._fill_in(question))
            except Dismissed as dismissed:
                return ElicitResult(dismissed.action)

    def _say(self, words: str) -> None:
        err(f"{self._server} asks: {sanitize(words[:MAX_TEXT])}", fg="cyan")

    async def _fill_in(self, question: ElicitRequest) -> ElicitResult:
        self._say(question.message)
        form = FormPrompt(question.schema or {})
        try:
            content = form.prefilled(self._answers)
        except CommandExit as wrong:
            err(f"No answer is sent: {wrong.message}")
            raise Dismissed("cancel") from None
        if is_interactive():
            return ElicitResult("accept", await form.fill_in(content))
        if not form.is_whole(content):
            err(f"Nobody is here to answer, so it is cancelled. {form.advice()}")
            raise Dismissed("cancel")
        return ElicitResult("accept", content)

    async def _visit(self, question: ElicitRequest) -> ElicitResult:
        url = one_line(question.url or "", MAX_TEXT)
        self._say(question.message)
        err(f"  {url}", underline=True)
        if not is_interactive():
            err("Nobody is here to open it, so it is cancelled.")
            raise Dismissed("cancel")
        await require_yes(f"Open this page at {one_line(urlsplit(question.url or '').netloc, 300)} in the browser?")
        if not await asyncio.to_thread(webbrowser.open, question.url or ""):
            err("There is no browser here: open the page yourself.")
        return ElicitResult("accept")

    # ── a model's work, done by a person ──

    async def sample(self, request: SamplingRequest) -> str | None:
        """A `sampling_handler`."""
        async with self._turn:
            with self._line.paused():
                return await self._answer_for_model(request)

    async def _answer_for_model(self, request: SamplingRequest) -> str | None:
        if not is_interactive():
            err(f"{self._server} asks a model, and nobody is here to answer for it: refused")
            return None
        self._show_request(request)
        line = await ask("  > ")
        return None if line == "!decline" else line

    def _show_request(self, request: SamplingRequest) -> None:
        self._say("something of a model")
        if request.system_prompt:
            err(f"  system: {sanitize(request.system_prompt[:MAX_TEXT])}", dim=True)
        for message in request.messages[-MAX_MESSAGES:]:
            for block in message["content"][:MAX_MESSAGES]:
                told = arguments.get_text(block, "text") or f"[{one_line(str(block.get('type')), 40)}]"
                err(f"  {one_line(str(message['role']), 20)}: {sanitize(told[:MAX_TEXT])}")
        err("Answer for the model in a line; !decline refuses.", dim=True)


class FormPrompt:
    """One form."""

    def __init__(self, schema: arguments.Schema) -> None:
        self._schema = schema
        self._needed = arguments.required(schema)
        self._fields = {name: FieldPrompt(name, part, schema) for name, part in arguments.properties(schema).items()}

    def prefilled(self, given: arguments.GivenArguments) -> dict[str, Any]:
        """What was said beforehand, as far as this form asks for it. Raises CommandExit if it does not fit."""
        mine = [argument for argument in given.arguments if argument.key in self._fields]
        content = {name: value for name, value in (given.whole or {}).items() if name in self._fields}
        content |= arguments.parse_arguments(mine, self._schema, "the form")
        problems = [problem for name, value in content.items() for problem in self._fields[name].problems(value)]
        if problems:
            raise CommandExit("\n".join(problems))
        return content

    def is_whole(self, content: Mapping[str, Any]) -> bool:
        """Whether nothing is left out that can't be."""
        defaults = {name for name, field in self._fields.items() if field.has_default}
        return bool(content) and {*self._needed} <= content.keys() | defaults

    def advice(self) -> str:
        names = self._needed or list(self._fields)
        return " ".join(f"--answer {one_line(name, 60)}=…" for name in names[:10]) + " answers it." if names else ""

    async def fill_in(self, content: dict[str, Any]) -> dict[str, Any]:
        """What is not answered yet is asked for. Raises Dismissed."""
        if not self._fields:
            await require_yes("Agree?")
        elif self._fields.keys() - content:
            err("Enter takes the default or leaves a field empty; !decline and !cancel say no.", dim=True)
        for name, field in self._fields.items():
            if name not in content:
                await field.ask_for(content, is_needed=name in self._needed)
        return content


class FieldPrompt:
    """One field of it."""

    def __init__(self, name: str, schema: arguments.Schema, root: arguments.Schema) -> None:
        self._name = name
        self._schema = schema
        self._root = root
        self._types = arguments.allowed_types(schema, root)
        self._is_list = self._types == ["array"]
        self._options = _options(arguments.item_schema(schema, root) if self._is_list else schema)
        self.has_default = schema.get("default") is not None

    async def ask_for(self, content: dict[str, Any], *, is_needed: bool) -> None:
        """Put the answer into the content, or nothing."""
        if note := arguments.get_text(self._schema, "description"):
            err(f"  {sanitize(note[:1_000])}", dim=True)
        for number, (_, title) in enumerate(self._options[:MAX_OPTIONS], 1):
            err(f"    {number:2}  {title}")
        while True:
            text = await ask(f"  {self._label()}: ")
            if text is None or text in ("!cancel", "!decline"):
                raise Dismissed("decline" if text == "!decline" else "cancel")
            if not text and (self.has_default or not is_needed):
                return  # the default is filled in by the client
            try:
                value = self._read(text)
                problems = self.problems(value)
            except arguments.InvalidValue as misread:
                problems = [str(misread)]
            if not problems:
                content[self._name] = value
                return
            err(f"  {sanitize('; '.join(problems))}", fg="yellow")

    def problems(self, value: Any) -> list[str]:
        """What is wrong with an answer by the schema; a schema that can't be used finds nothing."""
        try:
            validator = Validator({**self._schema}, where=self._name, limits=SchemaLimits(subschemas=MAX_OPTIONS + 100))
            return validator.problems(value, root=one_line(self._name, 60))[:5]
        except SetupError:
            return []

    def _label(self) -> str:
        """Its name, what is wanted, and the default."""
        kind = one_line(str(self._schema.get("format") or arguments.describe_type(self._schema, self._root)), 40)
        kind = "yes or no" if kind == "boolean" else kind
        if self._options:
            kind = "numbers or names, with commas" if self._is_list else "number or name"
        default = self._schema.get("default")
        shown = "yes" if default is True else "no" if default is False else str(default)
        name = one_line(arguments.get_text(self._schema, "title") or self._name, 80)
        return f"{name} ({kind}){f' [{one_line(shown, 60)}]' if self.has_default else ''}"

    def _read(self, text: str) -> Any:
        if self._options and self._is_list:
            return [self._chosen(part.strip()) for part in text.split(",") if part.strip()]
        if self._options:
            return self._chosen(text)
        words = {"y": "yes", "n": "no"} if self._types == ["boolean"] else {}
        return arguments.parse_value(words.get(text.lower(), text), self._schema, self._root)

    def _chosen(self, text: str) -> Any:
        for value, title in self._options:
            if text in (str(value), title):
                return value
        if text.isdecimal() and 1 <= int(text) <= len(self._options):
            return self._options[int(text) - 1][0]
        raise arguments.InvalidValue(f"{one_line(text, 60)!r} is none of the choices")


def _options(schema: arguments.Schema) -> list[tuple[Any, str]]:
    """The values that may be chosen, with their titles, as each revision spells them."""
    listed = schema.get("enum")
    if isinstance(listed, list):
        titles = schema.get("enumNames")
        names = titles if isinstance(titles, list) and len(titles) == len(listed) else listed
        return [(value, one_line(str(name), 100)) for value, name in zip(listed, names, strict=True)]
    titled = schema.get("oneOf", schema.get("anyOf"))
    found = [arguments.as_object(option) for option in titled] if isinstance(titled, list) else [arguments.ANYTHING]
    if not all("const" in option for option in found):
        return []
    return [(option["const"], one_line(str(option.get("title", option["const"])), 100)) for option in found]
