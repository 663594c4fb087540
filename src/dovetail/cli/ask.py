"""Questions at the terminal: forms, pages and sampling requests of a server, answered by a person or beforehand.

The event loop goes on while a person types, so a server can report, and take its question back. Without a terminal, a
question that has no answer is cancelled, and a line on stderr says so.
"""

import asyncio
import io
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import urlsplit

from dovetail.cli.arguments import (
    ANYTHING,
    Argument,
    GivenArguments,
    Misread,
    Schema,
    described,
    items,
    mapping,
    properties,
    required,
    typed_arguments,
    typed_value,
    types,
)
from dovetail.cli.output import CommandExit, OpenQuestion, ProgressLine, can_ask, in_line, plain, tell
from dovetail.client import ElicitQuestion, ElicitReply, SamplingRequest
from dovetail.client.transports.url import page_url
from dovetail.errors import SetupError
from dovetail.registry.validate import SchemaLimits, Validator

LONGEST_LINE = 64 * 1024
LONGEST_WORDS = 4_000  # characters of a question, or of a message to a model
MAX_MESSAGES = 20
MAX_FIELDS = 100
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
    question, line = OpenQuestion(words), b""
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
        tell("Please say y or n.")


async def _line() -> bytes:
    """The terminal itself keeps the line until it is finished."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[bytes] = loop.create_future()

    def take() -> None:
        if not came.done():
            came.set_result(os.read(sys.stdin.fileno(), LONGEST_LINE))

    try:
        loop.add_reader(sys.stdin.fileno(), take)
    except NotImplementedError:  # on Windows
        return await _line_of_thread(came, loop.call_soon_threadsafe)
    try:
        return await came
    finally:
        loop.remove_reader(sys.stdin.fileno())


async def _line_of_thread(came: "asyncio.Future[bytes]", soon: Callable[..., object]) -> bytes:
    console = cast(io.BufferedReader, sys.stdin.buffer).raw  # UTF-8, and without a lock that the end would wait for

    def take() -> None:
        soon(settle, console.read(LONGEST_LINE) or b"")

    def settle(line: bytes) -> None:
        if not came.done():
            came.set_result(line)

    threading.Thread(target=take, daemon=True).start()
    return await came


# ── what a server asks ──


class Respondent:
    """Answers one question after the other, even if they come at once."""

    def __init__(self, server: str, answers: GivenArguments | None, line: ProgressLine) -> None:
        self._server = server
        self._answers = answers or GivenArguments()
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

    async def visit(self, url: Any, message: str) -> bool:
        """Whether a person has agreed to open this page; no if it is none that can be shown."""
        page = page_url(url) if isinstance(url, str) else None
        if page is None:
            return False
        return (await self.elicit(ElicitQuestion(message=message, mode="url", url=page))).action == "accept"

    def _say(self, words: str) -> None:
        tell(f"{self._server} asks: {plain(words[:LONGEST_WORDS])}", fg="cyan")

    async def _fill_in(self, question: ElicitQuestion) -> ElicitReply:
        self._say(question.message)
        form = FormQuestion(question.schema or {})
        try:
            content = form.answered(self._answers.arguments, self._answers.whole or {})
        except CommandExit as wrong:
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


class FormQuestion:
    """One form."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._fields = {name: FieldQuestion(name, part, schema) for name, part in properties(schema).items()}

    def answered(self, arguments: Sequence[Argument], whole: Mapping[str, Any]) -> dict[str, Any]:
        """What was said beforehand, as far as this form asks for it. Raises CommandExit if it does not fit."""
        mine = [argument for argument in arguments if argument.key in self._fields]
        content = {name: value for name, value in whole.items() if name in self._fields}
        content |= typed_arguments(mine, self._schema, "the form")
        problems = [problem for name, value in content.items() for problem in self._fields[name].problems(value)]
        if problems:
            raise CommandExit("\n".join(problems))
        return content

    def lacks(self, content: Mapping[str, Any]) -> list[str]:
        """Fields that can't be left out, and are."""
        return [name for name in required(self._schema) if name not in content and not self._has_default(name)]

    def _has_default(self, name: str) -> bool:
        return name in self._fields and self._fields[name].has_default

    def advice(self) -> str:
        names = required(self._schema) or list(self._fields)
        return " ".join(f"--answer {in_line(name, 60)}=…" for name in names[:10]) + " answers it." if names else ""

    async def fill_in(self, content: dict[str, Any]) -> dict[str, Any]:
        """What is not answered yet is asked for. Raises Dismissed."""
        if len(self._fields) > MAX_FIELDS:
            tell(f"The form has {len(self._fields)} fields, which is too many; it is cancelled.")
            raise Dismissed("cancel")
        if not self._fields:
            agreed = await confirm("Agree?")
            if not agreed:
                raise Dismissed("cancel" if agreed is None else "decline")
            return content
        if self._fields.keys() - content:
            tell("Enter takes the default or leaves a field empty; !decline and !cancel say no.", dim=True)
        needed = required(self._schema)
        for name, field in self._fields.items():
            if name not in content:
                await field.ask_for(content, is_needed=name in needed)
        return content


class Offered(NamedTuple):
    """One of the values that may be chosen."""

    value: Any
    title: str

    def is_named(self, text: str) -> bool:
        return text in (str(self.value), self.title)


class FieldQuestion:
    """One field of it."""

    def __init__(self, name: str, schema: Schema, root: Schema) -> None:
        self._name = name
        self._schema = schema
        self._root = root
        self._is_list = types(schema, root) == ["array"]
        self._options = _options(items(schema, root) if self._is_list else schema)
        self.has_default = schema.get("default") is not None

    async def ask_for(self, content: dict[str, Any], *, is_needed: bool) -> None:
        """Put the answer into the content, or nothing."""
        self._introduce()
        while True:
            text = await ask(f"  {self._label()}: ")
            if text is None or text in ("!cancel", "!decline"):
                raise Dismissed("decline" if text == "!decline" else "cancel")
            if not text and (self.has_default or not is_needed):
                return  # the default is filled in by the client
            try:
                value = self._read(text)
            except Misread as misread:
                problems = [str(misread) or "this does not fit"]
            else:
                problems = self.problems(value)
            if not problems:
                content[self._name] = value
                return
            tell(f"  {plain('; '.join(problems))}", fg="yellow")

    def problems(self, value: Any) -> list[str]:
        """What is wrong with an answer by the schema; a schema that can't be used finds nothing."""
        try:
            validator = Validator({**self._schema}, where=self._name, limits=SchemaLimits(subschemas=MAX_OPTIONS + 100))
            return validator.problems(value, root=in_line(self._name, 60))[:5]
        except SetupError:
            return []

    # ── what is shown ──

    def _introduce(self) -> None:
        note = self._schema.get("description")
        if isinstance(note, str) and note:
            tell(f"  {plain(note[:1_000])}", dim=True)
        for number, option in enumerate(self._options[:MAX_OPTIONS], 1):
            tell(f"    {number:2}  {option.title}")
        if len(self._options) > MAX_OPTIONS:
            tell(f"    … and {len(self._options) - MAX_OPTIONS} more")

    def _label(self) -> str:
        title = self._schema.get("title")
        name = in_line(title if isinstance(title, str) and title else self._name, 80)
        default = f" [{in_line(_in_words(self._schema['default']), 60)}]" if self.has_default else ""
        return f"{name} ({self._kind()}){default}"

    def _kind(self) -> str:
        if self._options:
            return "numbers or names, with commas" if self._is_list else "number or name"
        kind = self._schema.get("format") or described(self._schema, self._root)
        return "yes or no" if kind == "boolean" else in_line(str(kind), 40)

    # ── what is typed ──

    def _read(self, text: str) -> Any:
        if not self._options:
            words = {"y": "yes", "n": "no"} if types(self._schema, self._root) == ["boolean"] else {}
            return typed_value(words.get(text.lower(), text), self._schema, self._root)
        if self._is_list:
            return [self._chosen(part.strip()) for part in text.split(",") if part.strip()]
        return self._chosen(text)

    def _chosen(self, text: str) -> Any:
        for option in self._options:
            if option.is_named(text):
                return option.value
        if text.isdecimal() and 1 <= int(text) <= len(self._options):
            return self._options[int(text) - 1].value
        raise Misread(f"{in_line(text, 60)!r} is none of the choices")


def _in_words(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return ", ".join(map(str, default)) if isinstance(default, list) else str(default)


def _options(schema: Schema) -> list[Offered]:
    """As each revision spells them."""
    listed = schema.get("enum")
    if isinstance(listed, list):
        titles = schema.get("enumNames")
        names = titles if isinstance(titles, list) and len(titles) == len(listed) else listed
        return [Offered(value, in_line(str(name), 100)) for value, name in zip(listed, names, strict=True)]
    titled = schema.get("oneOf", schema.get("anyOf"))
    found = [mapping(option) for option in titled] if isinstance(titled, list) else [ANYTHING]
    if not all("const" in option for option in found):
        return []
    return [Offered(option["const"], in_line(str(option.get("title", option["const"])), 100)) for option in found]
