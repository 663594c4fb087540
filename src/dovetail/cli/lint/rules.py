"""Rules of the lint, and the checks of names, hints, texts, resources and prompts.

The table is `rules.json`. A rule is in it because a client documents it, or is known to refuse what breaks it; the
`source` of the rule says where.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.cli.given_arguments import as_object, get_text
from dovetail.errors import SetupError
from dovetail.protocol.types import UNSAFE_KEY
from dovetail.protocol.uri_template import UriTemplate, valid_uri

Definition = Mapping[str, Any]

NOTE, WARNING, ERROR = "note", "warning", "error"
LEVELS = (NOTE, WARNING, ERROR)  # from harmless to harmful


class LintRule(NamedTuple):
    """One entry of `rules.json`."""

    level: str
    why: str
    fix: str
    source: str = ""


class Finding(NamedTuple):
    """A violation of a rule by one definition."""

    rule: str
    place: str  # `tool NAME`, `resource URI` and so on
    detail: str = ""

    @property
    def level(self) -> str:
        return RULES[self.rule].level


RULES: dict[str, LintRule] = {
    name: LintRule(**rule)
    for name, rule in json.loads(Path(__file__).with_name("rules.json").read_text(encoding="utf-8")).items()
}


class RuleChoice(NamedTuple):
    """Rules of --select or --ignore, for one definition or all."""

    rules: Collection[str]
    name: str = ""  # of the tool, resource, template or prompt; empty for all

    @classmethod
    def parse(cls, word: str) -> "RuleChoice":
        """Parse `schema-ref`, `schema` for all of `schema-…`, or `schema-ref:bake` for one tool. Raises KeyError."""
        rule, _, name = word.partition(":")
        named = {rule} if rule in RULES else {each for each in RULES if each.startswith(f"{rule}-")}
        if not named:
            raise KeyError(rule)
        return cls(named, name)


def is_chosen(finding: Finding, choices: Iterable[RuleChoice]) -> bool:
    name = finding.place.partition(" ")[2]
    return any(finding.rule in choice.rules and choice.name in ("", name) for choice in choices)


def at_least(level: str, findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if LEVELS.index(finding.level) >= LEVELS.index(level)]


def check_names(tools: Sequence[Definition], server: str) -> Iterator[Finding]:
    prefix = re.sub(r"[^a-zA-Z0-9_-]", "-", server)
    for tool in tools:
        name = get_text(tool, "name")
        if not name:
            yield Finding("name-missing", "a tool")
            continue
        place = f"tool {name}"
        if not re.fullmatch(r"[a-zA-Z0-9_-]+", name):
            wrong = sorted(set(re.findall(r"[^a-zA-Z0-9_-]", name)))
            yield Finding("name-characters", place, " ".join(map(repr, wrong[:5])))
        if name[0].isdigit() or name[0] == "-":
            yield Finding("name-start", place)
        if len(name) > 64:
            yield Finding("name-length", place, f"{len(name)} characters")
        elif len(name) + len(prefix) >= 60:
            yield Finding("name-prefixed", place, f"{len(name) + len(prefix)} characters with {prefix}")
    yield from _check_similar([text for tool in tools if (text := get_text(tool, "name"))])


def _check_similar(names: Sequence[str]) -> Iterator[Finding]:
    same = _grouped(names, lambda name: re.sub(r"[^a-zA-Z0-9_-]", "_", name))
    for group in same:
        yield Finding("name-duplicate", f"tool {group[0]}", ", ".join(group[1:]))
    unique = list(dict.fromkeys(names))
    for group in _grouped(unique, lambda name: re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("s")):
        if group not in same:
            yield Finding("name-similar", f"tool {group[0]}", ", ".join(group[1:]))


def _grouped(names: Sequence[str], key: Callable[[str], str]) -> list[list[str]]:
    groups = defaultdict(list)
    for name in names:
        groups[key(name)].append(name)
    return [group for group in groups.values() if len(group) > 1]


# Only the place of the verb counts: `get_reset_date` resets nothing. The verb is the first word, after a prefix that
# several tools share (`slack_delete_message`), or the last word (`note_delete`).
CERTAINLY_DESTRUCTIVE = {
    *("delete", "destroy", "erase", "purge", "wipe", "kill", "terminate", "uninstall", "revoke", "unsubscribe"),
}
DESTRUCTIVE = CERTAINLY_DESTRUCTIVE | {"del", "xdel", "remove", "overwrite", "discard", "forget", "prune"}
DESTRUCTIVE_FOR_STORES = {"drop", "clear", "reset", "truncate", "empty", "flush"}
STORES = {
    *("table", "database", "db", "collection", "index", "column", "schema", "data", "storage", "cache", "history"),
    *("memory", "queue", "cookie", "log", "trash", "bucket", "branch", "repository", "workspace", "disk", "all"),
}
READING = {"get", "list", "search", "find", "read", "fetch", "describe", "count", "lookup"}
NOT_ONLY_READING = {"or", "replace", "create", "update", "index", "store", "save"}  # get_or_create, find_and_replace
OTHER_VERBS = {  # if one comes first, the last word is no verb: cancel_delete, set_auto_kill
    *("set", "enable", "disable", "toggle", "allow", "schedule", "plan", "preview", "confirm", "cancel", "undo"),
    *("is", "can", "has", "check", "create", "add", "update"),
}
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def check_hints(tools: Sequence[Definition], server: str) -> Iterator[Finding]:
    names = [_split(get_text(tool, "name")) for tool in tools]
    prefixes = _prefixes(names, _split(server))
    for tool, words in zip(tools, names, strict=True):
        while len(words) > 1 and words[0] in prefixes:
            words = words[1:]
        yield from _check_tool_hints(tool, words)


def _split(name: str) -> list[str]:
    """The words of a name; `noteDelete` and `note_delete` have the same."""
    return [word.lower() for word in _WORDS.findall(name)]


def _prefixes(names: Iterable[Sequence[str]], server: Iterable[str]) -> set[str]:
    """Words of the server's name, and first words that tools share, but no verbs."""
    first = Counter(words[0] for words in names if words)
    shared = {word for word, count in first.items() if count > 1}
    return shared.union(server) - DESTRUCTIVE - DESTRUCTIVE_FOR_STORES - READING - OTHER_VERBS


def _check_tool_hints(tool: Definition, words: Sequence[str]) -> Iterator[Finding]:
    place, hints = f"tool {get_text(tool, 'name') or '?'}", as_object(tool.get("annotations"))
    is_read_only, is_destructive = hints.get("readOnlyHint"), hints.get("destructiveHint")
    verb = _destructive_verb(words)
    only_reads = words and words[0] in READING and not NOT_ONLY_READING.intersection(words)
    if is_read_only is True and is_destructive is True:
        yield Finding("hint-contradiction", place, "readOnlyHint and destructiveHint")
    elif is_read_only is True and verb in CERTAINLY_DESTRUCTIVE:
        yield Finding("hint-contradiction", place, f"readOnlyHint, and the word {verb}")
    elif verb and is_read_only is not True and is_destructive is None:
        yield Finding("hint-destructive", place, verb)
    elif is_read_only is None and is_destructive is None and only_reads:
        yield Finding("hint-read-only", place)


def _destructive_verb(words: Sequence[str]) -> str:
    """The destructive verb in a name; empty if there is none."""
    if not words:
        return ""
    first, last = words[0], words[-1]
    if _is_destructive(first, words[1:]):
        return first
    has_other_verb = first in READING or first in OTHER_VERBS
    return last if not has_other_verb and _is_destructive(last, words[:-1]) else ""


def _is_destructive(verb: str, objects: Collection[str]) -> bool:
    if verb in DESTRUCTIVE_FOR_STORES:
        has_store = any(word in STORES or word.removesuffix("s") in STORES for word in objects)
        return has_store or (not objects and verb != "drop")  # a browser tool drops what it has dragged
    return verb in DESTRUCTIVE


def check_tool_texts(tool: Definition, place: str) -> Iterator[Finding]:
    description = get_text(tool, "description").strip()
    if not description:
        yield Finding("tool-description", place)
    if len(description) > 1_024:
        yield Finding("description-length", place, f"{len(description)} characters")
    yield from _check_icons(tool, place)


def _check_icons(definition: Definition, place: str) -> Iterator[Finding]:
    icons = definition.get("icons")
    for icon in icons if isinstance(icons, list) else ():
        source = get_text(as_object(icon), "src")
        if not source.lower().startswith(("https:", "data:")):
            yield Finding("icon-source", place, source.partition(":")[0] if ":" in source else "no URI")


def check_resources(resources: Sequence[Definition], templates: Sequence[Definition]) -> Iterator[Finding]:
    seen: set[str] = set()
    for resource in resources:
        uri = get_text(resource, "uri")
        place = f"resource {uri}"
        if not valid_uri(uri):
            yield Finding("uri-invalid", place)
        if uri in seen:
            yield Finding("uri-duplicate", place)
        seen.add(uri)
        yield from _check_mime_type_and_icons(resource, place)
    for template in templates:
        uri = get_text(template, "uriTemplate")
        place = f"template {uri}"
        yield from _check_template(uri, place)
        meta = template.get("_meta")
        if isinstance(meta, dict) and isinstance(names := meta.get(UNSAFE_KEY), list) and names:
            yield Finding("template-unsafe", place, ", ".join(map(str, names))[:100])
        yield from _check_mime_type_and_icons(template, place)


def _check_mime_type_and_icons(definition: Definition, place: str) -> Iterator[Finding]:
    if not get_text(definition, "mimeType"):
        yield Finding("mime-type", place)
    yield from _check_icons(definition, place)


def _check_template(uri: str, place: str) -> Iterator[Finding]:
    rule = "template-malformed"
    try:
        template = UriTemplate(uri)
        rule = "template-unmatchable"
        if "{" not in uri:
            raise SetupError("it has no variables")
        template.check_matchable()
    except SetupError as bad:
        yield Finding(rule, place, str(bad))


def check_prompts(prompts: Sequence[Definition]) -> Iterator[Finding]:
    for prompt in prompts:
        place = f"prompt {get_text(prompt, 'name')}"
        if not get_text(prompt, "name"):
            yield Finding("name-missing", "a prompt")
        if not get_text(prompt, "description").strip():
            yield Finding("prompt-description", place)
        arguments = prompt.get("arguments")
        for argument in arguments if isinstance(arguments, list) else ():
            if isinstance(argument, Mapping) and not get_text(argument, "description").strip():
                yield Finding("argument-description", place, get_text(argument, "name"))
        yield from _check_icons(prompt, place)
