"""All definitions of a server come in, findings and the cost of its tools go out. No server is needed for it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.cli.linting.hints import findings_of_hints
from dovetail.cli.linting.names import Definition, findings_of_names, text_of
from dovetail.cli.linting.rules import LEVELS, RULES, Finding
from dovetail.cli.linting.schemas import findings_of_schemas
from dovetail.cli.linting.texts import findings_of_prompts, findings_of_resources, findings_of_tool_texts

BYTES_PER_TOKEN = 4  # an estimate: English prose and JSON come to between three and five
SEEN_BY_MODELS = ("name", "description", "inputSchema")
MANY_TOOLS = 40
MOST_TOOLS = 128
TOOL_TOKENS = 1_000
ALL_TOKENS = 10_000


class Catalogue(NamedTuple):
    """What a server lists, as it came over the wire."""

    tools: Sequence[Definition] = ()
    resources: Sequence[Definition] = ()
    templates: Sequence[Definition] = ()
    prompts: Sequence[Definition] = ()
    malformed: Sequence[tuple[str, str]] = ()  # what is no definition: the kind that was asked for, and words
    server: str = ""  # its name
    objects_only: bool = False  # it was listed in a revision whose results are objects


def lint(catalogue: Catalogue) -> list[Finding]:
    """All findings, the worst first, and in the order of the table."""
    order = {rule: number for number, rule in enumerate(RULES)}
    found = dict.fromkeys(_findings(catalogue))  # each once
    return sorted(found, key=lambda finding: (-LEVELS.index(finding.level), order[finding.rule]))


def _findings(catalogue: Catalogue) -> Iterator[Finding]:
    yield from (Finding("list-malformed", f"all {kind}", words) for kind, words in catalogue.malformed)
    yield from findings_of_names(catalogue.tools, catalogue.server)
    yield from findings_of_hints(catalogue.tools, catalogue.server)
    for tool in catalogue.tools:
        place = f"tool {text_of(tool, 'name') or '?'}"
        yield from findings_of_schemas(tool, place, catalogue.objects_only)
        yield from findings_of_tool_texts(tool, place)
        if (cost := tokens(tool)) > TOOL_TOKENS:
            yield Finding("tool-tokens", place, f"about {cost} tokens")
    yield from _sizes(catalogue.tools)
    yield from findings_of_resources(catalogue.resources, catalogue.templates)
    yield from findings_of_prompts(catalogue.prompts)


def _sizes(tools: Sequence[Definition]) -> Iterator[Finding]:
    if len(tools) > MOST_TOOLS:
        yield Finding("tool-count-limit", "all tools", f"{len(tools)} tools")
    elif len(tools) > MANY_TOOLS:
        yield Finding("tool-count", "all tools", f"{len(tools)} tools")
    if (cost := sum(map(tokens, tools))) > ALL_TOKENS:
        yield Finding("catalogue-tokens", "all tools", f"about {cost} tokens")


def tokens(tool: Mapping[str, Any]) -> int:
    """About how much of a conversation it takes: what models are shown of it, as JSON, by its bytes."""
    shown = {key: tool[key] for key in SEEN_BY_MODELS if key in tool}
    try:
        text = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return TOOL_TOKENS + 1  # more than anybody reads
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)
