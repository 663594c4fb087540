"""Rules of the lint as a table, and the checks of names, hints, texts, resources and prompts.

A rule is here because a client documents it, or because its refusals are on record; the comment above it says where.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.cli.arguments import mapping, text_of
from dovetail.errors import SetupError
from dovetail.protocol.types import UNSAFE_KEY
from dovetail.protocol.uri_template import UriTemplate, valid_uri

Definition = Mapping[str, Any]

NOTE, WARNING, ERROR = "note", "warning", "error"
LEVELS = (NOTE, WARNING, ERROR)  # from harmless to harmful


class LintRule(NamedTuple):
    """One thing to look for."""

    level: str
    why: str
    fix: str


class Finding(NamedTuple):
    """A rule that something breaks."""

    rule: str
    place: str  # the tool, resource, template or prompt
    detail: str = ""  # where in it, or how much

    @property
    def level(self) -> str:
        return RULES[self.rule].level


RULES = {
    # ── the lists themselves ──
    # https://modelcontextprotocol.io/specification/2025-11-25/schema: ListToolsResult and its likes.
    "list-malformed": LintRule(
        ERROR, "clients refuse the whole list, and have nothing of it", "answer with a list of objects"
    ),
    # ── names ──
    # https://github.com/microsoft/wassette/issues/56, https://github.com/packit/ai-workflows/pull/619,
    # https://github.com/microsoft/vscode/issues/243602: models' own interfaces take ^[a-zA-Z0-9_-]{1,64}$, where MCP
    # itself allows dots and 128 characters.
    "name-characters": LintRule(
        ERROR,
        "Claude and OpenAI take letters, digits, _ and - only, and refuse the whole request",
        "rename it; `name=` of the decorator leaves the function as it is",
    ),
    # https://github.com/mixelpixx/KiCAD-MCP-Server/issues/7
    "name-start": LintRule(WARNING, "Gemini takes names that begin with a letter or _ only", "begin it with a letter"),
    "name-length": LintRule(
        ERROR, "OpenAI, VS Code and others refuse names of more than 64 characters", "give it a shorter name"
    ),
    # https://github.com/ComposioHQ/composio/issues/2788: "Combined server and tool name length (60) exceeds 60".
    "name-prefixed": LintRule(
        WARNING,
        "Cursor leaves out tools whose name has 60 characters or more together with the server's",
        "give the tool or the server a shorter name",
    ),
    "name-missing": LintRule(ERROR, "it can't be called without a name", "give it a name"),
    "name-duplicate": LintRule(
        ERROR,
        "a client keeps one of them, or refuses both; many write . and / as _",
        "give each a name of its own",
    ),
    "name-similar": LintRule(WARNING, "models mix them up", "let them differ by a word that says how"),
    # ── schemas of arguments ──
    # https://modelcontextprotocol.io/specification/2025-11-25/server/tools: inputSchema is an object with type object.
    "schema-type": LintRule(
        ERROR, "MCP asks for a schema of type object, and clients drop the tool", 'begin it with "type": "object"'
    ),
    # https://github.com/anthropics/claude-code/issues/5973, https://github.com/mobile-next/mobile-mcp/issues/344
    "schema-union": LintRule(
        ERROR,
        "Claude and OpenAI refuse anyOf, oneOf and allOf at the top, and with it every other tool of the request",
        "list all properties, make them optional, and check in the tool which of them came together",
    ),
    # https://github.com/PrefectHQ/fastmcp/pull/2808, https://github.com/github/copilot-cli/issues/1876
    "schema-ref": LintRule(
        WARNING,
        "VS Code, Copilot and others do not follow $ref, so the model does not see what is meant",
        "write the schema out where it is used; Dovetail does so but for types that contain themselves",
    ),
    # https://github.com/anthropics/claude-code/issues/76040: one such reference, and no tool of the server is there.
    "schema-ref-broken": LintRule(
        ERROR, "Claude Code and others give up on all tools of the server", "let $ref name something in the schema"
    ),
    # https://github.com/microsoft/vscode/issues/246119, https://github.com/kkrishnan90/gemini-desktop/pull/7
    "schema-items": LintRule(
        ERROR, "VS Code, OpenAI and Gemini refuse lists that do not say of what", 'add "items": {"type": …}'
    ),
    # https://github.com/twilio-labs/mcp/issues/58, https://github.com/beautyfree/appstore-connect-mcp/issues/2
    "schema-property-name": LintRule(
        ERROR,
        "Claude takes names of 1 to 64 letters, digits, _ . and - only, and refuses the whole request",
        "rename the parameter",
    ),
    # https://ai.google.dev/api/caching#Schema: required names properties; Gemini: "property is not defined".
    "schema-required": LintRule(
        ERROR, "Gemini refuses a required property that is not there", "describe it, or do not require it"
    ),
    # https://github.com/langchain-ai/langchain-mcp-adapters/issues/137: "object schema missing properties";
    # https://github.com/CherryHQ/cherry-studio/issues/3270: "should be non-empty for OBJECT type".
    "schema-properties": LintRule(
        WARNING, "OpenAI refuses an object without properties, Gemini an empty one inside", 'add "properties": {…}'
    ),
    # https://github.com/modelcontextprotocol/go-sdk/issues/894: `true` as the schema of a property.
    "schema-boolean": LintRule(
        ERROR,
        "Claude Code and others refuse true and false in the place of a schema, and all tools with it",
        "say its type",
    ),
    # https://github.com/webstudio-is/webstudio/issues/6009, https://github.com/zereight/gitlab-mcp/issues/166
    "schema-untyped": LintRule(
        WARNING, "Gemini refuses a value without a type, and others send a text", 'add "type": …'
    ),
    "schema-pattern": LintRule(
        WARNING,
        "it is no pattern of ECMAScript, and clients that check arguments fail",
        "correct it; Python's (?P<name>…) is (?<name>…), and (?i) is not there",
    ),
    # https://github.com/google-gemini/gemini-cli/issues/3178
    "schema-format": LintRule(
        NOTE,
        "Gemini's API knows the formats enum and date-time of texts only; older clients of it refuse others",
        "say it in the description as well",
    ),
    # https://github.com/hideya/langchain-mcp-tools-ts/issues/36, https://github.com/thClaws/thClaws/issues/172
    "schema-keyword": LintRule(
        NOTE,
        "Gemini's API knows a part of JSON Schema only; its clients leave the rest out, or are refused",
        "say it in the description as well",
    ),
    # https://github.com/thClaws/thClaws/issues/172: Invalid value at enum[0] (TYPE_STRING)
    "schema-enum": LintRule(NOTE, "Gemini takes texts only as values of enum", "use texts, or name the range"),
    # https://github.com/asbis/shapeitup/releases/tag/v1.6.2
    "schema-map": LintRule(
        NOTE,
        "OpenAI's strict mode and Gemini do not take objects with free names (additionalProperties with a schema)",
        "a list of objects with a name and a value works everywhere",
    ),
    # https://github.com/tidyverse/ellmer/issues/671: OpenAI began with 5 levels, and takes 10 now.
    "schema-depth": LintRule(
        WARNING, "OpenAI refuses more than 10 levels in strict mode, and models get lost before", "flatten it"
    ),
    "schema-size": LintRule(
        WARNING, "OpenAI refuses more than 5000 properties in strict mode", "divide the tool into several"
    ),
    # ── schemas of results ──
    # https://github.com/kenn-io/msgvault/issues/626, https://github.com/anthropics/claude-code/issues/10030
    "output-type": LintRule(
        ERROR,
        "up to 2025-11-25 a result's schema has type object, and clients refuse the whole list",
        "return an object",
    ),
    # ── texts ──
    "tool-description": LintRule(
        WARNING, "a model chooses tools by their descriptions", "say what it does, and when to use it"
    ),
    "parameter-description": LintRule(
        WARNING,
        "a model has only the name to go by",
        'say what it means: in the docstring, or by Field(description="…")',
    ),
    # https://github.com/getsentry/sentry-mcp/issues/106, https://github.com/asbis/shapeitup/releases/tag/v1.6.2
    "description-length": LintRule(
        WARNING,
        "Azure's OpenAI and older Gemini clients refuse more than 1024 characters",
        "keep what decides whether to use it; put the rest into parameters or a prompt",
    ),
    "prompt-description": LintRule(WARNING, "people choose prompts by their descriptions", "say what it is for"),
    "argument-description": LintRule(WARNING, "people see the name of the argument only", "say what to fill in"),
    # ── hints ──
    # https://modelcontextprotocol.io/specification/2025-11-25/schema#toolannotations: without a hint, a tool counts as
    # destructive and open; clients that ask before a call do so every time.
    "hint-destructive": LintRule(
        WARNING,
        "its name sounds as if something is lost, and nothing says whether it is so: some clients ask, some do not",
        'say it: annotations={"destructiveHint": True}, or False if nothing is lost',
    ),
    "hint-read-only": LintRule(
        NOTE,
        "its name sounds as if it only looks, but nothing says so, and clients ask before each call",
        'say it: annotations={"readOnlyHint": True}',
    ),
    "hint-contradiction": LintRule(
        WARNING, "what it says of itself does not go together", "keep the hint that is true, or rename it"
    ),
    # ── resources ──
    "uri-invalid": LintRule(ERROR, "clients refuse what is no URI", "give it a scheme, and escape the rest"),
    "uri-duplicate": LintRule(ERROR, "only one of them can be read", "give each a URI of its own"),
    "template-malformed": LintRule(ERROR, "it is no URI template of RFC 6570", "correct its braces"),
    "template-unmatchable": LintRule(
        WARNING, "a URI can be read in several ways, or in none", "put something between its variables"
    ),
    "template-unsafe": LintRule(
        NOTE, "values such as ../x and /etc/passwd reach its function", "let the function check them, or drop unsafe="
    ),
    "mime-type": LintRule(NOTE, "clients have to guess what it is", 'say it: mime_type="text/plain"'),
    # https://modelcontextprotocol.io/specification/2025-11-25/schema#icon: https or data only.
    "icon-source": LintRule(WARNING, "clients show icons of https: and data: only", "serve it by https, or inline it"),
    # ── sizes ──
    # https://github.com/bun913/mcp-testrail/issues/6: Cursor sends the first 40 tools; 80 later, of all servers.
    "tool-count": LintRule(
        WARNING,
        "Cursor has sent the first 40 tools only, and models choose worse among many",
        "offer fewer, or divide the server",
    ),
    # https://github.com/microsoft/vscode-copilot-release/issues/11653
    "tool-count-limit": LintRule(
        ERROR, "VS Code refuses requests with more than 128 tools", "offer fewer, or divide the server"
    ),
    "tool-tokens": LintRule(
        WARNING, "it takes more than about 1000 tokens of each conversation", "shorten description and schema"
    ),
    "catalogue-tokens": LintRule(
        WARNING, "the tools take more than about 10000 tokens of each conversation", "offer fewer, or shorten them"
    ),
}


class RuleChoice(NamedTuple):
    """Rules that were chosen on the command line, and of what."""

    rules: Collection[str]
    name: str = ""  # of the tool, resource, template or prompt; all of them if there is none

    @classmethod
    def of(cls, word: str) -> "RuleChoice":
        """`schema-ref`, `schema` for all of `schema-…`, `schema-ref:bake` for one tool. Unknown ones raise KeyError."""
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


# ── names ──


def findings_of_names(tools: Sequence[Definition], server: str) -> Iterator[Finding]:
    prefix = re.sub(r"[^a-zA-Z0-9_-]", "-", server)
    for tool in tools:
        name = text_of(tool, "name")
        if not name:
            yield Finding("name-missing", "a tool")
            continue
        place = f"tool {name}"
        if not re.fullmatch(r"[a-zA-Z0-9_-]+", name):
            strange = sorted(set(re.findall(r"[^a-zA-Z0-9_-]", name)))
            yield Finding("name-characters", place, " ".join(map(repr, strange[:5])))
        if name[0].isdigit() or name[0] == "-":
            yield Finding("name-start", place)
        if len(name) > 64:
            yield Finding("name-length", place, f"{len(name)} characters")
        elif len(name) + len(prefix) >= 60:
            yield Finding("name-prefixed", place, f"{len(name) + len(prefix)} characters with {prefix}")
    yield from _alike([text_of(tool, "name") for tool in tools if text_of(tool, "name")])


def _alike(names: Sequence[str]) -> Iterator[Finding]:
    same = _grouped(names, lambda name: re.sub(r"[^a-zA-Z0-9_-]", "_", name))
    for group in same:
        yield Finding("name-duplicate", f"tool {group[0]}", ", ".join(group[1:]))
    single = list(dict.fromkeys(names))
    for group in _grouped(single, lambda name: re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("s")):
        if group not in same:
            yield Finding("name-similar", f"tool {group[0]}", ", ".join(group[1:]))


def _grouped(names: Sequence[str], key: Callable[[str], str]) -> list[list[str]]:
    groups = defaultdict(list)
    for name in names:
        groups[key(name)].append(name)
    return [group for group in groups.values() if len(group) > 1]


# ── hints ──

# Only the place of the verb counts: `get_reset_date` resets nothing. That is the first word, behind what several tools
# begin with (`slack_delete_message`), or the last (`note_delete`).
CERTAINLY_LOSING = {
    *("delete", "destroy", "erase", "purge", "wipe", "kill", "terminate", "uninstall", "revoke", "unsubscribe"),
}
LOSING = CERTAINLY_LOSING | {"del", "xdel", "remove", "overwrite", "discard", "forget", "prune"}
LOSING_STORES = {"drop", "clear", "reset", "truncate", "empty", "flush"}  # if it is one of these that they are done to
STORES = {
    *("table", "database", "db", "collection", "index", "column", "schema", "data", "storage", "cache", "history"),
    *("memory", "queue", "cookie", "log", "trash", "bucket", "branch", "repository", "workspace", "disk", "all"),
}
READING = {"get", "list", "search", "find", "read", "fetch", "describe", "count", "lookup"}
NOT_ONLY_READING = {"or", "replace", "create", "update", "index", "store", "save"}  # get_or_create, find_and_replace
OTHER_VERBS = {  # before which a last word is no verb: cancel_delete, set_auto_kill
    *("set", "enable", "disable", "toggle", "allow", "schedule", "plan", "preview", "confirm", "cancel", "undo"),
    *("is", "can", "has", "check", "create", "add", "update"),
}
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def findings_of_hints(tools: Sequence[Definition], server: str) -> Iterator[Finding]:
    names = [words_of(text_of(tool, "name")) for tool in tools]
    prefixes = _prefixes(names, words_of(server))
    for tool, words in zip(tools, names, strict=True):
        while len(words) > 1 and words[0] in prefixes:
            words = words[1:]
        yield from _compared(tool, words)


def words_of(name: str) -> list[str]:
    """`noteDelete` and `note_delete` have the same two."""
    return [word.lower() for word in _WORDS.findall(name)]


def _prefixes(names: Iterable[Sequence[str]], server: Iterable[str]) -> set[str]:
    """What says whose tool it is, and not what it does."""
    first = Counter(words[0] for words in names if words)
    shared = {word for word, count in first.items() if count > 1}
    return shared.union(server) - LOSING - LOSING_STORES - READING - OTHER_VERBS


def _compared(tool: Definition, words: Sequence[str]) -> Iterator[Finding]:
    place, hints = f"tool {text_of(tool, 'name') or '?'}", mapping(tool.get("annotations"))
    is_read_only, is_destructive = hints.get("readOnlyHint"), hints.get("destructiveHint")
    losing = losing_word(words)
    if is_read_only is True and is_destructive is True:
        yield Finding("hint-contradiction", place, "readOnlyHint and destructiveHint")
    elif is_read_only is True and losing in CERTAINLY_LOSING:
        yield Finding("hint-contradiction", place, f"readOnlyHint, and the word {losing}")
    elif losing and is_read_only is not True and is_destructive is None:
        yield Finding("hint-destructive", place, losing)
    elif is_read_only is None and is_destructive is None and only_reads(words):
        yield Finding("hint-read-only", place)


def losing_word(words: Sequence[str]) -> str:
    """The verb by which something is lost; nothing if there is none."""
    if not words:
        return ""
    first, last = words[0], words[-1]
    if _loses(first, words[1:]):
        return first
    has_other_verb = first in READING or first in OTHER_VERBS
    return last if not has_other_verb and _loses(last, words[:-1]) else ""


def _loses(verb: str, things: Collection[str]) -> bool:
    if verb in LOSING_STORES:
        is_of_store = any(thing in STORES or thing.removesuffix("s") in STORES for thing in things)
        return is_of_store or (not things and verb != "drop")  # a browser drops what it has dragged
    return verb in LOSING


def only_reads(words: Sequence[str]) -> bool:
    return bool(words) and words[0] in READING and not NOT_ONLY_READING.intersection(words)


# ── texts of tools ──


def findings_of_tool_texts(tool: Definition, place: str) -> Iterator[Finding]:
    description = text_of(tool, "description").strip()
    if not description:
        yield Finding("tool-description", place)
    if len(description) > 1_024:
        yield Finding("description-length", place, f"{len(description)} characters")
    yield from _icons(tool, place)


def _icons(definition: Definition, place: str) -> Iterator[Finding]:
    icons = definition.get("icons")
    for icon in icons if isinstance(icons, list) else ():
        source = text_of(mapping(icon), "src")
        if not source.lower().startswith(("https:", "data:")):
            yield Finding("icon-source", place, source.partition(":")[0] if ":" in source else "no URI")


# ── resources and prompts ──


def findings_of_resources(resources: Sequence[Definition], templates: Sequence[Definition]) -> Iterator[Finding]:
    seen: set[str] = set()
    for resource in resources:
        uri = text_of(resource, "uri")
        place = f"resource {uri}"
        if not valid_uri(uri):
            yield Finding("uri-invalid", place)
        if uri in seen:
            yield Finding("uri-duplicate", place)
        seen.add(uri)
        yield from _kind_and_icons(resource, place)
    for template in templates:
        uri = text_of(template, "uriTemplate")
        place = f"template {uri}"
        yield from _template(uri, place)
        meta = template.get("_meta")
        if isinstance(meta, dict) and isinstance(names := meta.get(UNSAFE_KEY), list) and names:
            yield Finding("template-unsafe", place, ", ".join(map(str, names))[:100])
        yield from _kind_and_icons(template, place)


def _kind_and_icons(definition: Definition, place: str) -> Iterator[Finding]:
    if not text_of(definition, "mimeType"):
        yield Finding("mime-type", place)
    yield from _icons(definition, place)


def _template(uri: str, place: str) -> Iterator[Finding]:
    try:
        template = UriTemplate(uri)
    except SetupError as bad:
        yield Finding("template-malformed", place, str(bad))
        return
    if "{" not in uri:
        yield Finding("template-unmatchable", place, "it has no variables")
        return
    try:
        template.check_matchable()
    except SetupError as bad:
        yield Finding("template-unmatchable", place, str(bad))


def findings_of_prompts(prompts: Sequence[Definition]) -> Iterator[Finding]:
    for prompt in prompts:
        place = f"prompt {text_of(prompt, 'name')}"
        if not text_of(prompt, "name"):
            yield Finding("name-missing", "a prompt")
        if not text_of(prompt, "description").strip():
            yield Finding("prompt-description", place)
        arguments = prompt.get("arguments")
        for argument in arguments if isinstance(arguments, list) else ():
            if isinstance(argument, Mapping) and not text_of(argument, "description").strip():
                yield Finding("argument-description", place, text_of(argument, "name"))
        yield from _icons(prompt, place)
