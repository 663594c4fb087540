"""The names of tools come in; those that clients refuse, or models mix up, go out."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dovetail.cli.linting.rules import Finding

LONGEST = 64
LONGEST_PREFIXED = 60
NAME = re.compile(r"[a-zA-Z0-9_-]+")

Definition = Mapping[str, Any]


def text_of(definition: Definition, key: str) -> str:
    value = definition.get(key)
    return value if isinstance(value, str) else ""


def findings_of_names(tools: Sequence[Definition], server: str) -> Iterator[Finding]:
    prefix = re.sub(r"[^a-zA-Z0-9_-]", "-", server)
    for tool in tools:
        name = text_of(tool, "name")
        if not name:
            yield Finding("name-missing", "a tool")
            continue
        place = f"tool {name}"
        if not NAME.fullmatch(name):
            strange = sorted(set(re.findall(r"[^a-zA-Z0-9_-]", name)))
            yield Finding("name-characters", place, " ".join(map(repr, strange[:5])))
        if name[0].isdigit() or name[0] == "-":
            yield Finding("name-start", place)
        if len(name) > LONGEST:
            yield Finding("name-length", place, f"{len(name)} characters")
        elif len(name) + len(prefix) >= LONGEST_PREFIXED:
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
