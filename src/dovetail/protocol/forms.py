"""A form in the newest spelling and a revision go in; the form as its clients know it comes out, and the answer back.

Where forms are plain, titled choices are spelled `enumNames`, only booleans have defaults, and there is no choice of
several: each of its choices becomes a switch of its own, and the switches become one list again in the answer.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.errors import QuestionFailed
from dovetail.protocol.revisions import Revision

JsonObject = dict[str, Any]
Switches = dict[str, str]  # the name of a switch -> the choice it stands for


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


# Several choices


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
