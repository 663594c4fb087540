"""Requests for the client's input: what is asked, what the client must be able to do, and forms in each revision.

Where a revision's forms are plain, titled choices are spelled `enumNames`, only booleans have defaults, and there is no
choice of several: each of its choices becomes a switch, and the switches become one list again in the answer.
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
MAX_KEY = 256
_sorted_json = msgspec.json.Encoder(order="sorted").encode

JsonObject = dict[str, Any]
Switches = dict[str, str]  # the name of a switch -> the choice it stands for


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One question, as it is known whatever the client's revision."""

    method: str
    params: dict[str, Any]  # spelled as the newest revision does
    requires: tuple[str, ...]  # client capabilities; `sampling.tools` names a part of one

    @property
    def digest(self) -> str:
        """Two questions are the same if this is: any change of wording or schema makes another one."""
        import hashlib  # late: most servers never ask, and it brings OpenSSL

        whole = hashlib.sha256(_sorted_json([self.method, self.params])).digest()
        return urlsafe_b64encode(whole[:16]).decode().rstrip("=")


class InputRequest(Protocol[T_co]):
    """A question together with how it is put, and how its answer is read."""

    @property
    def client_request(self) -> ClientRequest: ...

    def params(self, revision: Revision) -> dict[str, Any]:
        """As the client's revision spells it."""

    def read(self, result: bytes | msgspec.Raw, revision: Revision) -> T_co:
        """The client's result, checked. Raises QuestionFailed if it does not fit the question."""


class InputRequired(msgspec.Struct, frozen=True):
    """What a function returns to ask by itself: its own keys, and a state that only the server can read.

    It is called again with `ctx.input_responses`, which holds whatever the client sent, and `ctx.request_state`.
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
    key, inquiry = item
    return (
        isinstance(key, str)
        and 0 < len(key) <= MAX_KEY
        and isinstance(getattr(inquiry, "client_request", None), ClientRequest)
    )


# ── forms ──


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
    required = [line for name in schema.get("required", ()) for line in switches.get(name, (name,))]
    return {"type": "object", "properties": rendered} | ({"required": required} if required else {})


def restore_content(schema: JsonObject, content: JsonObject, revision: Revision) -> JsonObject:
    """The content of an answer as if the client had known the newest spelling. Raises QuestionFailed."""
    if revision.rich_forms:
        return content
    switches = _all_switches(schema["properties"])
    made_up = {switch for group in switches.values() for switch in group}
    restored = {name: value for name, value in content.items() if name not in made_up}
    for name, group in switches.items():
        if any(content.get(switch) is not None for switch in group):  # else it is empty, or a list in spite of all
            restored[name] = _switched_on(group, schema["properties"][name].get("default", ()), content)
    return restored


def _plain(part: JsonObject) -> JsonObject:
    dropped = {"oneOf"} if part["type"] == "boolean" else {"oneOf", "default"}
    plain = {keyword: value for keyword, value in part.items() if keyword not in dropped}
    if "oneOf" in part:
        plain["enum"] = [option["const"] for option in part["oneOf"]]
        plain["enumNames"] = [option["title"] for option in part["oneOf"]]
    return plain


# ── several choices ──


def _all_switches(properties: Mapping[str, JsonObject]) -> dict[str, Switches]:
    """The switches of each property that has several choices, under names that nothing else has."""
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
    description = " ".join(filter(None, (part.get("description"), _counted(part))))
    for switch, choice in switches.items():
        rendered = {"type": "boolean", "title": titles[choice] if heading is None else f"{heading}: {titles[choice]}"}
        if description:
            rendered["description"] = description
        yield switch, rendered | ({"default": choice in part["default"]} if "default" in part else {})


def _counted(part: JsonObject) -> str:
    """How many may be chosen, in words, because switches can't say it otherwise."""
    limits = [f"{words} {part[keyword]}" for keyword, words in _LIMITS if keyword in part]
    return f"(choose {', '.join(limits)})" if limits else ""


_LIMITS = (("minItems", "at least"), ("maxItems", "at most"))


def _switched_on(switches: Switches, default: list[str] | tuple[()], content: JsonObject) -> list[str]:
    chosen = []
    for switch, choice in switches.items():
        given = content.get(switch)
        state = choice in default if given is None else given  # forms have no null: it is left as it was
        if not isinstance(state, bool):
            raise QuestionFailed(f"The answer does not fit the form: {switch}: expected true or false")
        if state:
            chosen.append(choice)
    return chosen
