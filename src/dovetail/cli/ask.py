"""Questions at the terminal: elicitation and sampling requests, answered by the user or by `--answer`.

The event loop runs while the user types, so a server can send logs, or cancel its request. Without a terminal, a
request that has no answer is cancelled, with a line on stderr.
"""

import asyncio
import io
import sys
import threading
import webbrowser
from collections.abc import Mapping
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from dovetail.cli import given_arguments as arguments
from dovetail.cli.output import CommandExit, ProgressBar, PromptLine, err, is_interactive, one_line, sanitize
from dovetail.client import ElicitRequest, ElicitResult, SamplingRequest
from dovetail.errors import SetupError
from dovetail.schema.validate import SchemaLimits, Validator

MAX_LINE_BYTES = 64 * 1024
MAX_TEXT = 4_000  # characters of a request that are shown
MAX_MESSAGES = 20  # of a sampling request that are shown
MAX_OPTIONS = 200  # of a field that are shown
YES, NO = ("y", "yes"), ("n", "no")


class Dismissed(Exception):
    """The user declined or cancelled."""

    def __init__(self, action: Literal["decline", "cancel"]) -> None:
        super().__init__(action)
        self.action = action


async def ask(question: str) -> str | None:
    """Read one line from the user; None at end of file, which is Ctrl-D."""
    prompt, line = PromptLine(question), b""
    prompt.draw()
    try:
        line = await _read_line()
    finally:
        prompt.close(is_answered=line.endswith(b"\n"))
    return line.decode(errors="replace").strip() if line else None


async def confirm(question: str, *, default: bool = False) -> bool | None:
    """Ask until the answer is yes or no; None for Ctrl-D."""
    while True:
        given = await ask(f"{question} [{'Y/n' if default else 'y/N'}] ")
        if not given:
            return None if given is None else default
        if given.lower() in YES + NO:
            return given.lower() in YES
        err("Please say y or n.")


async def require_yes(question: str) -> None:
    """Raises Dismissed unless the answer is yes."""
    if not (answer := await confirm(question)):
        raise Dismissed("cancel" if answer is None else "decline")


async def _read_line() -> bytes:
    """Read a line from the terminal, which buffers it until Enter."""
    loop = asyncio.get_running_loop()
    received: asyncio.Future[bytes] = loop.create_future()
    keys = cast(io.BufferedReader, sys.stdin.buffer).raw  # without a lock that would delay the end of the process

    def set_line(line: bytes) -> None:
        if not received.done():
            received.set_result(line)

    def read_in_thread() -> None:
        loop.call_soon_threadsafe(set_line, keys.read(MAX_LINE_BYTES) or b"")

    try:
        loop.add_reader(sys.stdin.fileno(), lambda: set_line(keys.read(MAX_LINE_BYTES) or b""))
    except NotImplementedError:  # on Windows
        threading.Thread(target=read_in_thread, daemon=True).start()
        return await received
    try:
        return await received
    finally:
        loop.remove_reader(sys.stdin.fileno())


class TerminalHandlers:
    """Handlers of a `Client` for input that a server requires. Concurrent requests are asked one after the other."""

    def __init__(self, server: str, answers: arguments.GivenArguments | None, progress: ProgressBar) -> None:
        self._server = server
        self._answers = answers or arguments.GivenArguments()
        self._progress = progress
        self._lock = asyncio.Lock()

    async def elicit(self, request: ElicitRequest) -> ElicitResult:
        """Ask the user to fill in a form; the `elicitation_handler`."""
        async with self._lock:
            try:
                with self._progress.paused():
                    return await (self._open_page(request) if request.mode == "url" else self._fill_form(request))
            except Dismissed as dismissed:
                return ElicitResult(dismissed.action)

    def _show_message(self, message: str) -> None:
        err(f"{self._server} asks: {sanitize(message[:MAX_TEXT])}", fg="cyan")

    async def _fill_form(self, request: ElicitRequest) -> ElicitResult:
        self._show_message(request.message)
        form = FormPrompt(request.schema or {})
        try:
            content = form.prefilled(self._answers)
        except CommandExit as wrong:
            err(f"No answer is sent: {wrong.message}")
            raise Dismissed("cancel") from None
        if is_interactive():
            return ElicitResult("accept", await form.fill_in(content))
        if not form.is_complete(content):
            err(f"There is no terminal to ask at, so it is cancelled. {form.advice()}")
            raise Dismissed("cancel")
        return ElicitResult("accept", content)

    async def _open_page(self, request: ElicitRequest) -> ElicitResult:
        url = request.url or ""
        self._show_message(request.message)
        err(f"  {one_line(url, MAX_TEXT)}", underline=True)
        if not is_interactive():
            err("There is no terminal to ask at, so it is cancelled.")
            raise Dismissed("cancel")
        await require_yes(f"Open this page at {one_line(urlsplit(url).netloc, 300)} in the browser?")
        if not await asyncio.to_thread(webbrowser.open, url):
            err("There is no browser here: open the page yourself.")
        return ElicitResult("accept")

    async def sample(self, request: SamplingRequest) -> str | None:
        """Ask the user to answer for the model; the `sampling_handler`."""
        async with self._lock:
            with self._progress.paused():
                if not is_interactive():
                    err(f"{self._server} asks a model, and there is no terminal to ask the user instead: refused")
                    return None
                self._show_request(request)
                line = await ask("  > ")
                return None if line == "!decline" else line

    def _show_request(self, request: SamplingRequest) -> None:
        self._show_message("something of a model")
        if request.system_prompt:
            err(f"  system: {sanitize(request.system_prompt[:MAX_TEXT])}", dim=True)
        for message in request.messages[-MAX_MESSAGES:]:
            for block in message["content"][:MAX_MESSAGES]:
                text = arguments.get_text(block, "text") or f"[{one_line(str(block.get('type')), 40)}]"
                err(f"  {one_line(str(message['role']), 20)}: {sanitize(text[:MAX_TEXT])}")
        err("Answer for the model in a line; !decline refuses.", dim=True)


class FormPrompt:
    """The form of an elicitation request."""

    def __init__(self, schema: arguments.Schema) -> None:
        self._schema = schema
        self._needed = arguments.required(schema)
        self._fields = {name: FieldPrompt(name, part, schema) for name, part in arguments.properties(schema).items()}

    def prefilled(self, given: arguments.GivenArguments) -> dict[str, Any]:
        """The answers of the command line for fields of this form. Raises CommandExit if one is invalid."""
        words = [argument for argument in given.words if argument.key in self._fields]
        content = {name: value for name, value in (given.document or {}).items() if name in self._fields}
        content |= arguments.parse_arguments(words, self._schema, "the form")
        problems = [problem for name, value in content.items() for problem in self._fields[name].problems(value)]
        if problems:
            raise CommandExit("\n".join(problems))
        return content

    def is_complete(self, content: Mapping[str, Any]) -> bool:
        defaults = {name for name, field in self._fields.items() if field.has_default}
        return bool(content) and {*self._needed} <= content.keys() | defaults

    def advice(self) -> str:
        names = self._needed or list(self._fields)
        return " ".join(f"--answer {one_line(name, 60)}=…" for name in names[:10]) + " answers it." if names else ""

    async def fill_in(self, content: dict[str, Any]) -> dict[str, Any]:
        """Ask for the fields that have no answer yet. Raises Dismissed."""
        if not self._fields:
            await require_yes("Agree?")
        elif self._fields.keys() - content:
            err(f"{self._help(content)}!decline and !cancel say no.", dim=True)
        for name, field in self._fields.items():
            if name not in content:
                await field.ask(content, is_needed=name in self._needed)
        return content

    def _help(self, content: Mapping[str, Any]) -> str:
        """What Enter does, where it does something."""
        asked = {name: field for name, field in self._fields.items() if name not in content}
        words = ["takes the default"] if any(field.has_default for field in asked.values()) else []
        if any(name not in self._needed and not field.has_default for name, field in asked.items()):
            words.append("leaves a field empty")
        return f"Enter {' or '.join(words)}; " if words else ""


class FieldPrompt:
    """One field of a form."""

    def __init__(self, name: str, schema: arguments.Schema, root: arguments.Schema) -> None:
        self._name = name
        self._schema = schema
        self._root = root
        self._types = arguments.allowed_types(schema, root)
        self._is_list = self._types == ["array"]
        self._options = _options(arguments.item_schema(schema, root) if self._is_list else schema)
        self.has_default = schema.get("default") is not None

    async def ask(self, content: dict[str, Any], *, is_needed: bool) -> None:
        """Put the answer into the content, if there is one."""
        if note := arguments.get_text(self._schema, "description"):
            err(f"  {sanitize(note[:1_000])}", dim=True)
        for number, (_, title) in enumerate(self._options[:MAX_OPTIONS], 1):
            err(f"    {number:2}  {title}")
        while True:
            text = await ask(f"  {self._label()}: ")
            if text is None or text in ("!cancel", "!decline"):
                raise Dismissed("decline" if text == "!decline" else "cancel")
            if not text and (self.has_default or not is_needed):
                return  # the client fills in the default
            try:
                value = self._parse(text)
                problems = self.problems(value)
            except arguments.InvalidValue as invalid:
                problems = [str(invalid)]
            if not problems:
                content[self._name] = value
                return
            err(f"  {sanitize('; '.join(problems))}", fg="yellow")

    def problems(self, value: Any) -> list[str]:
        """Violations of the schema; none if the schema itself is invalid."""
        try:
            validator = Validator({**self._schema}, where=self._name, limits=SchemaLimits(subschemas=MAX_OPTIONS + 100))
            return validator.problems(value, root=one_line(self._name, 60))[:5]
        except SetupError:
            return []

    def _label(self) -> str:
        """The label of a field: `Name (type) [default]`."""
        kind = one_line(str(self._schema.get("format") or arguments.describe_type(self._schema, self._root)), 40)
        kind = "yes or no" if kind == "boolean" else kind
        if self._options:
            kind = "numbers or names, with commas" if self._is_list else "number or name"
        default = self._schema.get("default")
        shown = "yes" if default is True else "no" if default is False else str(default)
        name = one_line(arguments.get_text(self._schema, "title") or self._name, 80)
        return f"{name} ({kind}){f' [{one_line(shown, 60)}]' if self.has_default else ''}"

    def _parse(self, text: str) -> Any:
        if self._options and self._is_list:
            return [self._choose(part.strip()) for part in text.split(",") if part.strip()]
        if self._options:
            return self._choose(text)
        aliases = {"y": "yes", "n": "no"} if self._types == ["boolean"] else {}
        return arguments.parse_value(aliases.get(text.lower(), text), self._schema, self._root)

    def _choose(self, text: str) -> Any:
        for value, title in self._options:
            if text in (str(value), title):
                return value
        if text.isdecimal() and 1 <= int(text) <= len(self._options):
            return self._options[int(text) - 1][0]
        raise arguments.InvalidValue(f"{one_line(text, 60)!r} is none of the choices")


def _options(schema: arguments.Schema) -> list[tuple[Any, str]]:
    """The values of an enum with their titles, in the spellings of all revisions."""
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
