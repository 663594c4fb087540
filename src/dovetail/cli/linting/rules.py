"""The rules of the lint as a table, and what a finding is.

A rule is here because a client documents it, or because its refusals are on record; the comment above it says where.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

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
