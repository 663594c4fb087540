"""The schema of a form comes in; its fields are asked for one by one, and what was filled in goes out.

Each answer is checked against the schema, and asked for again until it fits.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.cli.arguments import Argument, Misread, typed_arguments, typed_value
from dovetail.cli.exits import Ending
from dovetail.cli.keyboard import ask, confirm
from dovetail.cli.questions import Dismissed
from dovetail.cli.schemas import ANYTHING, Schema, described, items, mapping, properties, required, types
from dovetail.cli.terminal import in_line, plain, tell
from dovetail.errors import SetupError
from dovetail.registry.validate import SchemaLimits, Validator

MAX_FIELDS = 100
MAX_OPTIONS = 200
LONGEST_NOTE = 1_000
SWITCH_WORDS = {"y": "yes", "n": "no"}


class FormQuestion:
    """One form."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._fields = {name: FieldQuestion(name, part, schema) for name, part in properties(schema).items()}

    def answered(self, arguments: Sequence[Argument], whole: Mapping[str, Any]) -> dict[str, Any]:
        """What was said beforehand, as far as this form asks for it. Raises Ending if it does not fit."""
        mine = [argument for argument in arguments if argument.key in self._fields]
        content = {name: value for name, value in whole.items() if name in self._fields}
        content |= typed_arguments(mine, self._schema, "the form")
        problems = [problem for name, value in content.items() for problem in self._fields[name].problems(value)]
        if problems:
            raise Ending("\n".join(problems))
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
            tell(f"  {plain(note[:LONGEST_NOTE])}", dim=True)
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
            words = SWITCH_WORDS if types(self._schema, self._root) == ["boolean"] else {}
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
