"""Definitions come in; what says too little, too much, or contradicts itself goes out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dovetail.cli.linting.names import Definition, text_of
from dovetail.cli.linting.references import References
from dovetail.cli.linting.rules import Finding
from dovetail.errors import SetupError
from dovetail.protocol.types import UNSAFE_KEY
from dovetail.protocol.uri_template import UriTemplate, valid_uri

LONGEST_DESCRIPTION = 1_024


# ── tools ──


def findings_of_tool_texts(tool: Definition, place: str) -> Iterator[Finding]:
    description = text_of(tool, "description").strip()
    if not description:
        yield Finding("tool-description", place)
    if len(description) > LONGEST_DESCRIPTION:
        yield Finding("description-length", place, f"{len(description)} characters")
    yield from _parameters(tool.get("inputSchema"), place)
    yield from _icons(tool, place)


def _parameters(schema: Any, place: str) -> Iterator[Finding]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return
    references = References(schema)
    for name, part in properties.items():
        if isinstance(part, Mapping) and not _is_described(part, references):
            yield Finding("parameter-description", place, name)


def _is_described(part: Definition, references: References) -> bool:
    """By itself, or by what it is made of."""
    if text_of(part, "description").strip():
        return True
    meant = references.meant(part.get("$ref"))
    inner = part.get("anyOf") or part.get("oneOf") or part.get("allOf")
    candidates = [meant, *(inner if isinstance(inner, list) else [])]
    return any(isinstance(each, Mapping) and text_of(each, "description").strip() for each in candidates)


def _icons(definition: Definition, place: str) -> Iterator[Finding]:
    icons = definition.get("icons")
    for icon in icons if isinstance(icons, list) else ():
        source = text_of(icon, "src") if isinstance(icon, Mapping) else ""
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
