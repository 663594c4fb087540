"""One property's JSON Schema goes in; what a form may say of it comes out, and a reader of what is filled in there.

Forms know a few keywords only. Choices are strings on the way, whatever they stand for, and null is leaving it empty.
"""

import functools
import math
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from dovetail.errors import QuestionFailed, SetupError
from dovetail.registry.explain import described, excerpt, listed
from dovetail.registry.form_origins import NO_ORIGIN, FieldOrigin
from dovetail.registry.jsonable import encode_json
from dovetail.registry.schemas import JsonSchema
from dovetail.registry.validate import Validator

_LONGEST = 64 * 1024  # bytes of a string in an answer
_NUMBERS = (int, float)
_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "string": ("a string", (str,)),
    "integer": ("an integer", _NUMBERS),  # 3.0 is one
    "number": ("a number", _NUMBERS),
    "boolean": ("true or false", (bool,)),
    "array": ("a list of choices", (list,)),
}
_NOTES = ("title", "description")
_SENT = {
    "string": (*_NOTES, "minLength", "maxLength"),
    "integer": (*_NOTES, "minimum", "maximum"),
    "number": (*_NOTES, "minimum", "maximum"),
    "boolean": _NOTES,
}
_FORMATS = ("email", "uri", "date", "date-time")
_SECRETS = frozenset({
    "password", "passwd", "pwd", "passphrase", "passcode", "secret", "clientsecret", "secretkey", "privatekey",
    "apikey", "apisecret", "apitoken", "token", "accesskey", "accesstoken", "refreshtoken", "authtoken", "bearertoken",
    "creditcard", "creditcardnumber", "cardnumber", "cvv", "cvc",
})  # fmt: skip
_NULLS = {"anyOf": {"type": "null"}, "type": "null", "enum": None}  # how each keyword says null


class Option(NamedTuple):
    """One of the values that may be chosen."""

    value: Any
    title: str | None = None


class FormField(msgspec.Struct, frozen=True, eq=False):
    """One property of a form."""

    name: str
    schema: JsonSchema  # as it is sent
    options: Mapping[str, Any] | None = None  # of a choice: what is sent -> what it stands for
    nullable: bool = False  # may be left empty, and is null then

    def read(self, given: Any) -> Any:
        """The JSON value that was meant; raises QuestionFailed."""
        if isinstance(given, _NUMBERS) and not abs(given) <= sys.float_info.max:
            raise self._unfit("is not a number of sensible size")
        words, types = _KINDS[self.schema["type"]]
        if type(given) not in types:
            raise self._unfit(f"expected {words}, got {described(given)}")
        if type(given) is list:
            return [self._chosen(choice) for choice in dict.fromkeys(map(self._text, given))]
        if self.options is not None:
            return self._chosen(given)
        return self._text(given) if type(given) is str else given

    def misformed(self, text: str) -> list[str]:
        """What is wrong with a string by the format that the form demands."""
        return _format(self.schema["format"]).problems(text, root=self.name) if "format" in self.schema else []

    def _text(self, given: Any) -> str:
        if type(given) is not str:
            raise self._unfit("each choice must be a string")
        try:
            size = len(given.encode())
        except UnicodeEncodeError:
            raise self._unfit("holds half a surrogate pair, which is not a character") from None
        if size > _LONGEST:
            raise self._unfit(f"is longer than {_LONGEST // 1024} KiB")
        return given

    def _chosen(self, choice: str) -> Any:
        options = self.options or {}
        if choice not in options:
            raise self._unfit(f"must be one of {listed(map(excerpt, options))}, got {excerpt(choice)}")
        return options[choice]

    def _unfit(self, words: str) -> QuestionFailed:
        return unfit([f"{self.name}: {words}"])


def unfit(lines: list[str]) -> QuestionFailed:
    return QuestionFailed("The answer does not fit the form: " + "; ".join(lines))


def form_field(
    name: str, schema: JsonSchema, where: str, *, origin: FieldOrigin = NO_ORIGIN, strict: bool = False
) -> FormField:
    """The property as a form has it; with `strict`, it is its author's own schema: a format or default
    that can't be sent is refused.
    """
    body, nullable = _without_null(schema)
    several = body.get("type") == "array"
    options = _options(body.get("items") if several else body, where)
    if options is not None:
        if several and "default" not in body:  # of other types a factory makes what changes, so it can't be shown
            body = body | origin.default()
        options = _titled(options, origin.titles(where))
        sent, known = _choice(body, options, where, several=several, as_written=strict)
    else:
        sent, known = _plain(name, body, where), None
        if strict and "format" in body and "format" not in sent:
            raise SetupError(f"{where}: format may be {', '.join(_FORMATS)}, not {excerpt(body['format'])}")
    if strict and body.get("default") is not None and "default" not in sent:
        raise SetupError(f"{where}: the default {excerpt(body['default'])} does not fit; change or remove it")
    return FormField(name, sent, known, nullable)


def choice_field(name: str, options: list[Option], where: str, *, several: bool) -> FormField:
    """A property that is nothing but a choice."""
    return FormField(name, *_choice({}, options, where, several=several))


def _without_null(schema: JsonSchema) -> tuple[JsonSchema, bool]:
    """The schema of all but null, and whether null was welcome."""
    for keyword, null in _NULLS.items():
        members = schema.get(keyword)
        if not isinstance(members, list):
            continue
        solid = [member for member in members if member != null]
        others = {name: part for name, part in schema.items() if name != keyword}
        if len(solid) != 1 or keyword == "enum":
            return others | {keyword: solid}, len(solid) < len(members)
        only = solid[0] if isinstance(solid[0], dict) else {keyword: solid[0]}
        return only | others, len(solid) < len(members)
    return schema, False


# Strings, numbers and booleans


def _plain(name: str, body: JsonSchema, where: str) -> JsonSchema:
    kind = body.get("type")
    if not isinstance(kind, str) or kind not in _SENT or "contentEncoding" in body:
        raise SetupError(f"{where}: {_fix(body)}")
    if kind != "boolean" and _asks_for_secret(name, body):
        raise SetupError(
            f"{where}: a form must not ask for secrets, because clients and models see what is filled in; "
            "send the user to a page of yours with ctx.elicit_url"
        )
    sent = {"type": kind} | {keyword: body[keyword] for keyword in _SENT[kind] if keyword in body}
    if kind == "string" and body.get("format") in _FORMATS:
        sent["format"] = body["format"]
    default = body.get("default")
    if type(default) in _KINDS[kind][1] and ("format" not in sent or _format(sent["format"]).is_valid(default)):
        sent["default"] = default
    return sent


@functools.cache
def _format(name: str) -> Validator:
    """One of the four that forms know."""
    return Validator({"format": name}, where="a form")


def _fix(body: JsonSchema) -> str:
    kind = body.get("type")
    if kind == "array":
        return 'a form has no free lists; use choices such as list[Literal["a", "b"]], or ask several times'
    if kind == "object" or "$ref" in body:
        return "a form is flat and has no objects inside; put their fields beside the others, or ask several times"
    if "anyOf" in body or "oneOf" in body or isinstance(kind, list):
        return "a form has no unions; use one of the types only"
    return "a form has strings, numbers, booleans, dates and choices only; use one of them"


def _asks_for_secret(name: str, body: JsonSchema) -> bool:
    hidden = body.get("format") == "password" or body.get("writeOnly") is True
    return hidden or any(_ends_as_secret(text) for text in (name, body.get("title")) if isinstance(text, str))


def _ends_as_secret(name: str) -> bool:
    """`userPassword` does, `password_hint` does not."""
    words = _BETWEEN_WORDS.sub(" ", name).lower().split()[-3:]  # no secret has more
    return any("".join(words[start:]) in _SECRETS for start in range(len(words)))


_BETWEEN_WORDS = re.compile(r"[\W\d_]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


# Choices


def _options(schema: Any, where: str) -> list[Option] | None:
    """What may be chosen, in any spelling; None if the schema is not a choice."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [Option(schema["const"])]
    values, titles = schema.get("enum"), schema.get("enumNames")
    if isinstance(values, list):
        if titles is None:
            return [Option(value) for value in values]
        if not isinstance(titles, list) or list(map(type, titles)) != [str] * len(values):
            raise SetupError(f"{where}: enumNames must hold one string for each value of enum")
        return list(map(Option, values, titles))
    branches = schema.get("oneOf", schema.get("anyOf"))
    if not isinstance(branches, list):
        return None
    found: list[Option] = []
    for branch in branches:
        inner = _options(branch, where)
        if inner is None:
            return None
        found += [Option(branch["const"], branch.get("title"))] if "const" in branch else inner
    return found


def _titled(options: list[Option], titles: Mapping[Any, str]) -> list[Option]:
    """Titles of the author's own go first."""
    return [Option(value, titles.get(value) if title is None and titles else title) for value, title in options]


def _choice(
    body: JsonSchema, options: list[Option], where: str, *, several: bool, as_written: bool = False
) -> tuple[JsonSchema, dict[str, Any]]:
    known = _spelled(options, where)
    values: JsonSchema = {"type": "string", "enum": list(known)}
    if as_written and "enumNames" in body:  # the older spelling, which every revision still knows
        values["enumNames"] = [option.title for option in options]
    elif any(option.title is not None for option in options):
        titled = [{"const": text, "title": option.title or text} for text, option in zip(known, options, strict=True)]
        values = {"anyOf": titled} if several else {"type": "string", "oneOf": titled}
    keywords = (*_NOTES, "minItems", "maxItems") if several else _NOTES
    sent = {"type": "array", "items": values} if several else values
    sent |= {keyword: body[keyword] for keyword in keywords if keyword in body}
    default = body.get("default")
    chosen = default if several and isinstance(default, list) else [default]
    texts = {_spelling(value) for value in chosen}
    if default is not None and texts <= known.keys():
        in_order = [text for text in known if text in texts]  # that of a set differs from process to process
        if not several:
            sent["default"] = in_order[0]
        elif body.get("minItems", 0) <= len(in_order) <= body.get("maxItems", math.inf):
            sent["default"] = in_order
    return sent, known


def _spelled(options: list[Option], where: str) -> dict[str, Any]:
    """Each choice as it is sent, with its value."""
    known: dict[str, Any] = {}
    for value, _ in options:
        if not isinstance(value, (str, int, float)):
            raise SetupError(f"{where}: {excerpt(value)} can't be a choice; use strings or numbers")
        text = _spelling(value)
        if text in known:
            raise SetupError(f"{where}: two choices are spelled {excerpt(text)}; keep one of them")
        known[text] = value
    if not known:
        raise SetupError(f"{where}: a choice needs something to choose from; add values")
    return known


def _spelling(value: Any) -> str:
    return str.__str__(value) if isinstance(value, str) else encode_json(value).decode()
