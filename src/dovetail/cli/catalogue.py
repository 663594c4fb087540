"""What a server lists comes in, as it came over the wire; the lines that a person reads go out."""

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.cli.schemas import MAX_DESCRIBED, Schema, described, mapping, properties, required
from dovetail.cli.terminal import aligned, as_json, columns, highlighted, in_line, out, plain, styled, width_of, wrapped
from dovetail.protocol.types import ToolHints

LONGEST_NAME = 500
LONGEST_ARGUMENTS = 60
LONGEST_SUMMARY, SHORTEST_SUMMARY = 500, 50
GAP = 2
BELOW = 6  # columns before what stands below a name
LONGEST_LINE = 200
LONGEST_DESCRIPTION = 20_000
NAMES = {"resources": "uri", "templates": "uriTemplate"}  # what each is called by; all others by their name
SCHEMAS = ("inputSchema", "outputSchema", "arguments")
FACTS = {"resources": ("name", "mimeType", "size"), "templates": ("name", "mimeType")}  # that are told in a line each
HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")

Definition = Mapping[str, Any]


def show(found: Mapping[str, Sequence[Definition]], *, verbose: bool) -> None:
    is_first = True
    for kind, listed in found.items():
        if not listed:
            continue
        if not is_first:
            out()
        is_first = False
        out(styled(kind.capitalize(), bold=True))
        for line in details(kind, listed) if verbose else lines(kind, listed):
            out(line)


def lines(kind: str, listed: Sequence[Definition]) -> list[str]:
    """One for each: name, arguments, and what it is. On a terminal, as much of it as fits beside, or else below."""
    width = columns()
    longest = LONGEST_ARGUMENTS if width is None else width // 3
    names = [in_line(_name(kind, each), LONGEST_NAME if width is None else width - GAP) for each in listed]
    arguments = [_arguments(kind, each, longest) for each in listed]
    taken = sum(max(map(width_of, column)) + GAP for column in (names, arguments))
    room = LONGEST_SUMMARY if width is None else width - taken - GAP
    heads = [(f"  {styled(name, fg='cyan')}", given) for name, given in zip(names, arguments, strict=True)]
    if width is None or room >= SHORTEST_SUMMARY:
        return aligned([(*head, _summary(kind, each, room)) for head, each in zip(heads, listed, strict=True)])
    tops, under = (aligned(heads), [""] * len(heads)) if taken <= width else ([name for name, _ in heads], arguments)
    rows = zip(tops, under, (_summary(kind, each, width - BELOW) for each in listed), strict=True)
    return [line for top, *below in rows for line in (top, *(" " * BELOW + part for part in below if part))]


def _name(kind: str, each: Definition) -> str:
    return _text(each, NAMES.get(kind, "name")) or "?"


def _text(each: Definition, key: str) -> str:
    value = each.get(key)
    return value if isinstance(value, str) else ""


def _summary(kind: str, each: Definition, room: int) -> str:
    """Hints, title and the first line of the description."""
    first = next((line for line in _text(each, "description")[:LONGEST_DESCRIPTION].splitlines() if line.strip()), "")
    title = _text(each, "title") or _text(mapping(each.get("annotations")), "title")
    hints = f"{_marks(kind, each, room)} "
    words = f"{title}: {first}" if title and first else title or first
    left = room - width_of(hints)
    return (hints + (in_line(words, left) if left > 1 else "")).strip()


def hints_of(tool: Definition) -> tuple[list[str], bool]:
    """What has to be assumed of it, in words; and whether it is annotated: gives at least one of the four."""
    said = mapping(tool.get("annotations"))
    hints = ToolHints.of(*map(said.get, HINTS))
    words = [name.replace("_", "-") for name, holds in hints._asdict().items() if holds]
    return words, any(isinstance(said.get(hint), bool) for hint in HINTS)


def _marks(kind: str, each: Definition, room: int) -> str:
    words = hints_of(each)[0] if kind == "tools" else []
    is_said = mapping(each.get("annotations")).get("destructiveHint") is True
    colour = "green" if "destructive" not in words else "red" if is_said else "yellow"
    return styled(in_line(f"[{', '.join(words)}]", room), fg=colour) if words else ""


def _arguments(kind: str, each: Definition, longest: int) -> str:
    """In short: `a: integer, [b: string]`, those in brackets may be left out. Where that is too long, names alone."""
    if kind == "tools":
        schema = mapping(each.get("inputSchema"))
        whole = in_line(_joined(schema, typed=True), LONGEST_SUMMARY)
        return whole if width_of(whole) <= longest else in_line(_joined(schema, typed=False), longest)
    if kind == "prompts":
        listed = each.get("arguments")
        rows = [mapping(row) for row in listed] if isinstance(listed, list) else []
        names = (_text(row, "name") if row.get("required") is True else f"[{_text(row, 'name')}]" for row in rows)
        return in_line(", ".join(names), longest)
    return in_line(_text(each, "mimeType"), min(longest, 60))


def _joined(schema: Schema, *, typed: bool) -> str:
    needed = required(schema)
    parts = [*properties(schema).items()][:MAX_DESCRIBED]
    shown = {name: f"{name}: {described(part, schema)}" if typed else name for name, part in parts}
    return ", ".join(text if name in needed else f"[{text}]" for name, text in shown.items())


def details(kind: str, listed: Sequence[Definition]) -> list[str]:
    """All that is known of each."""
    found: list[str] = []
    width = columns()
    room = LONGEST_LINE if width is None else width - BELOW
    for each in listed:
        title = _text(each, "title")
        whole = wrapped(in_line(_name(kind, each), LONGEST_DESCRIPTION), None if width is None else room)
        name = "\n  ".join(styled(part, fg="cyan", bold=True) for part in whole)
        head = [part for part in (name, in_line(title, room), _marks(kind, each, room)) if part]
        fits = width is None or sum(map(width_of, head)) + len(head) < width
        found += [f"  {' '.join(head)}"] if fits else [f"  {name}", *(f"    {part}" for part in head[1:])]
        description = plain(_text(each, "description")[:LONGEST_DESCRIPTION])
        found += [f"    {line}" for line in wrapped(description, None if width is None else room)]
        found += [f"    {in_line(f'{key}: {each[key]}', room)}" for key in FACTS.get(kind, ()) if key in each]
        for key in SCHEMAS:
            if key in each:
                found.append(styled(f"    {key}:", dim=True))
                found += [f"      {line}" for line in highlighted(as_json(each[key], indent=True)).splitlines()]
    return [line.rstrip() for line in found]
