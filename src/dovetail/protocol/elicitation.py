"""Requests for the client's input, and elicitation forms as each revision spells them.

Without `rich_forms`, titled choices are spelled `enumNames`, only booleans have defaults, and there are no lists: each
choice of a multi-select becomes a switch (a boolean), and the switches become one list again in the response.
"""

from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET

from dovetail.errors import QuestionFailed, SetupError
from dovetail.protocol.revisions import Revision

T_co = TypeVar("T_co", covariant=True)
MAX_INPUT_REQUESTS = 100  # in one round
MAX_KEY = 256  # characters
_sorted_json = msgspec.json.Encoder(order="sorted").encode

JsonObject = dict[str, Any]
Switches = dict[str, str]  # from the name of a switch to its choice


class ServerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request from the server to its client, the same for every revision."""

    method: str
    params: dict[str, Any]  # spelled as the newest revision does
    requires: tuple[str, ...]  # client capabilities; `sampling.tools` names a part of one

    @property
    def digest(self) -> str:
        """Identifies the request: any change of wording or schema changes it."""
        import hashlib  # late: it brings OpenSSL, and most servers send no requests

        whole = hashlib.sha256(_sorted_json([self.method, self.params])).digest()
        return urlsafe_b64encode(whole[:16]).decode().rstrip("=")


class InputRequest(Protocol[T_co]):
    """A server request, its params in each revision, and how its result is read."""

    @property
    def server_request(self) -> ServerRequest: ...

    def params(self, revision: Revision) -> dict[str, Any]:
        """The params as the client's revision spells them."""

    def read(self, result: bytes | msgspec.Raw, revision: Revision) -> T_co:
        """The checked result. Raises QuestionFailed if it does not fit the request."""


class InputRequired(msgspec.Struct, frozen=True):
    """What a function returns to require input itself: requests by its own keys, and a state that is sealed.

    It is called again with the client's responses in `ctx.input_responses`, and with `ctx.request_state`.
    """

    requests: Mapping[str, InputRequest[Any]] = {}
    state: Any = UNSET

    def __post_init__(self) -> None:
        given: Any = self.requests
        if not given and self.state is UNSET:
            raise SetupError("InputRequired needs questions, or state= to be called again with")
        if not isinstance(given, Mapping) or len(given) > MAX_INPUT_REQUESTS or not all(map(_is_named, given.items())):
            raise SetupError(
                f"InputRequired takes up to {MAX_INPUT_REQUESTS} questions (Elicit, ElicitUrl, Sample, Roots) in a "
                f'dict, by keys of your own of up to {MAX_KEY} characters, as in {{"name": Elicit(…)}}'
            )


def _is_named(item: tuple[Any, Any]) -> bool:
    key, request = item
    is_request = isinstance(getattr(request, "server_request", None), ServerRequest)
    return is_request and isinstance(key, str) and 0 < len(key) <= MAX_KEY


def render_form(schema: JsonObject, revision: Revision) -> JsonObject:
    """The `requestedSchema` for a client of a revision."""
    if revision.rich_forms:
        return schema
    properties: Mapping[str, JsonObject] = schema["properties"]
    switches = _all_switches(properties)
    rendered: JsonObject = {}
    for name, part in properties.items():
        if name in switches:
            heading = part.get("title", name) if len(properties) > 1 else None
            rendered.update(_rendered_switches(part, switches[name], heading))
        else:
            rendered[name] = _plain(part)
    required = [switch for name in schema.get("required", ()) for switch in switches.get(name, (name,))]
    return {"type": "object", "properties": rendered} | ({"required": required} if required else {})


def restore_content(schema: JsonObject, content: JsonObject, revision: Revision) -> JsonObject:
    """The content of a response in the newest spelling. Raises QuestionFailed."""
    if revision.rich_forms:
        return content
    switches = _all_switches(schema["properties"])
    generated = {switch for group in switches.values() for switch in group}
    restored = {name: value for name, value in content.items() if name not in generated}
    for name, group in switches.items():
        if any(content.get(switch) is not None for switch in group):  # else it is empty, or the client sent a list
            restored[name] = _switched_on(group, schema["properties"][name].get("default", ()), content)
    return restored


def restore_answer(request: ServerRequest, answer: JsonObject, revision: Revision) -> JsonObject:
    """A client's response, with the content of a form in the newest spelling. Raises QuestionFailed."""
    schema, content = request.params.get("requestedSchema"), answer.get("content")
    if schema is None or not isinstance(content, dict):
        return answer
    return answer | {"content": restore_content(schema, content, revision)}


def _plain(part: JsonObject) -> JsonObject:
    dropped = {"oneOf"} if part["type"] == "boolean" else {"oneOf", "default"}
    plain = {keyword: value for keyword, value in part.items() if keyword not in dropped}
    if "oneOf" in part:
        plain["enum"] = [option["const"] for option in part["oneOf"]]
        plain["enumNames"] = [option["title"] for option in part["oneOf"]]
    return plain


def _all_switches(properties: Mapping[str, JsonObject]) -> dict[str, Switches]:
    """The switches of each multi-select, under names that no other property has."""
    taken = set(properties)
    return {
        name: {_free_name(f"{name}: {choice}", taken): choice for choice, _ in _choices(part)}
        for name, part in properties.items()
        if part["type"] == "array"
    }


def _free_name(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted} ({number})"
    taken.add(name)
    return name


def _choices(part: JsonObject) -> Iterator[tuple[str, str]]:
    """Each choice with its title."""
    items = part["items"]
    if "enum" in items:
        return ((choice, choice) for choice in items["enum"])
    return ((option["const"], option["title"]) for option in items["anyOf"])


def _rendered_switches(part: JsonObject, switches: Switches, heading: str | None) -> Iterator[tuple[str, JsonObject]]:
    titles = dict(_choices(part))
    limits = [f"{words} {part[keyword]}" for keyword, words in _CHOICE_LIMITS if keyword in part]
    counted = f"(choose {', '.join(limits)})" if limits else ""  # in words: switches have no keyword for it
    description = " ".join(filter(None, (part.get("description"), counted)))
    for switch, choice in switches.items():
        rendered = {"type": "boolean", "title": titles[choice] if heading is None else f"{heading}: {titles[choice]}"}
        if description:
            rendered["description"] = description
        yield switch, rendered | ({"default": choice in part["default"]} if "default" in part else {})


_CHOICE_LIMITS = (("minItems", "at least"), ("maxItems", "at most"))


def _switched_on(switches: Switches, default: list[str] | tuple[()], content: JsonObject) -> list[str]:
    chosen = []
    for switch, choice in switches.items():
        given = content.get(switch)
        state = choice in default if given is None else given  # null: the user left it as it was
        if not isinstance(state, bool):
            raise QuestionFailed(f"The answer does not fit the form: {switch}: expected true or false")
        if state:
            chosen.append(choice)
    return chosen
