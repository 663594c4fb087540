"""What a server asks the user: params come in, the handler sees an `ElicitQuestion`, and a result goes out."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec import Raw

from dovetail.client.address import page_url
from dovetail.client.calling import outcome_of
from dovetail.client.form_content import misfit
from dovetail.errors import INVALID_PARAMS, ProtocolError, SetupError

Action = Literal["accept", "decline", "cancel"]
Mode = Literal["form", "url"]


class ElicitQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A form to fill in or, in mode "url", a page to visit: ask the user before it is opened.

    `schema` is that of the form, an object whose properties are its fields. `elicitation_id` is what
    `elicitation_complete_handler` hears when the user is done there; only 2025-11-25 has it.
    """

    message: str
    mode: Mode = "form"
    schema: dict[str, Any] | None = None
    url: str | None = None
    elicitation_id: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """The capability without which a server may not ask this."""
        return (f"elicitation.{self.mode}",)

    @property
    def fields(self) -> dict[str, dict[str, Any]]:
        """The properties of the form."""
        return {} if self.schema is None else self.schema["properties"]


class ElicitReply(msgspec.Struct, frozen=True):
    """What a handler returns to say more than the content: `ElicitReply("cancel")`."""

    action: Action
    content: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.action not in get_args(Action):
            raise SetupError(f"ElicitReply({self.action!r}): use one of {', '.join(get_args(Action))}")


Given = ElicitReply | Mapping[str, Any] | str | float | bool | list[str] | None
ElicitationHandler = Callable[[ElicitQuestion], Given | Awaitable[Given]]
ElicitationCompleteHandler = Callable[[str], Awaitable[None] | None]


class _Asked(msgspec.Struct, frozen=True, rename="camel"):
    message: str
    mode: Mode = "form"
    requested_schema: dict[str, Any] | None = None
    url: str | None = None
    elicitation_id: str | None = None


def read_elicitation(params: Raw) -> ElicitQuestion:
    asked = msgspec.json.decode(params, type=_Asked)
    if asked.mode == "url":
        url = None if asked.url is None else page_url(asked.url)
        if url is None:
            raise _malformed("url must be one that begins with https:// or http://, and nothing stands before its host")
        return ElicitQuestion(message=asked.message, mode="url", url=url, elicitation_id=asked.elicitation_id)
    schema = asked.requested_schema or {}
    fields = schema.get("properties")
    if not isinstance(fields, dict) or not all(isinstance(field, dict) for field in fields.values()):
        raise _malformed("requestedSchema.properties must be an object of schemas")
    return ElicitQuestion(message=asked.message, schema=schema)


def _malformed(words: str) -> ProtocolError:
    return ProtocolError(f"Invalid params: {words}", code=INVALID_PARAMS)


async def elicit(handler: ElicitationHandler, question: ElicitQuestion) -> dict[str, Any]:
    reply = _as_reply(question, await outcome_of(handler, question))
    if reply.action != "accept" or question.mode == "url":
        return {"action": reply.action}
    defaults = {name: field["default"] for name, field in question.fields.items() if _has_default(field)}
    given = reply.content or {}
    if (fault := misfit(question.schema or {}, given, defaults)) is not None:
        raise SetupError(f"elicitation_handler: what it returned does not fit: {fault}")
    return {"action": "accept", "content": {**defaults, **given}}


def _as_reply(question: ElicitQuestion, given: Any) -> ElicitReply:
    if isinstance(given, ElicitReply):
        return given
    if given is None:
        return ElicitReply("decline")
    if isinstance(given, Mapping):
        return ElicitReply("accept", given)
    if not question.fields:  # nothing to fill in: a URL, or a form that only wants a yes
        return ElicitReply("accept" if given else "decline")
    if isinstance(given, (str, int, float, list, tuple)) and len(question.fields) == 1:
        return ElicitReply("accept", dict.fromkeys(question.fields, given))
    raise SetupError(
        f"elicitation_handler returned {type(given).__name__} for a form of {len(question.fields)} fields; "
        "return a dict with their values, an ElicitReply, or None to decline"
    )


def _has_default(field: Mapping[str, Any]) -> bool:
    """Whether there is one that a form can hold: a server may write anything there."""
    default = field.get("default")
    if isinstance(default, list):
        return all(isinstance(choice, str) for choice in default)
    return isinstance(default, (str, int, float))
