"""Results and definitions of a server as text for people, or as files.

Text is shown as text, a list of flat objects as a table, other structured values as JSON. What is neither text nor JSON
is saved where `--output` says, and else described in a line.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from dovetail.cli.arguments import MAX_DESCRIBED, Schema, described, mapping, properties, required, text_of
from dovetail.cli.output import (
    CommandExit,
    aligned,
    as_json,
    columns,
    highlighted,
    in_line,
    out,
    out_bytes,
    out_text,
    plain,
    styled,
    tell,
    width_of,
    wrapped,
)
from dovetail.protocol.types import (
    Audio,
    Content,
    EmbeddedResource,
    Image,
    ResourceContents,
    ResourceLink,
    Text,
    ToolHints,
)

if TYPE_CHECKING:
    from dovetail.client import CallResult

MAX_COLUMNS = 12
LONGEST_CELLS = (60, 40, 30, 20, 12)  # on a terminal: the first with which a table fits; what is piped is whole
WHOLE_CELL = 100_000
FILE_ENDINGS = {"audio/wav": ".wav", "image/webp": ".webp", "image/jpeg": ".jpg"}  # that not every system knows
LONGEST_SUMMARY = 500
BELOW = 6  # columns before what stands below a name
LONGEST_DESCRIPTION = 20_000
NAMES = {"resources": "uri", "templates": "uriTemplate"}  # the key that names one; for all others it is `name`
FACTS = {"resources": ("name", "mimeType", "size"), "templates": ("name", "mimeType")}  # shown in a line each
HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")

Definition = Mapping[str, Any]


# ── results ──


class Binary(NamedTuple):
    """Content that is no text."""

    data: bytes
    mime_type: str
    name: str  # for a file, without its ending

    def __str__(self) -> str:
        return f"[{in_line(self.mime_type, 60)}, {size_of(len(self.data))}; --output FILE saves it]"

    @property
    def ending(self) -> str:
        import mimetypes  # late: it reads files of the system's

        kind = self.mime_type.partition(";")[0].strip().lower()
        return FILE_ENDINGS.get(kind) or mimetypes.guess_extension(kind) or ".bin"


class ResultTable(NamedTuple):
    """A list of flat objects, each a row."""

    rows: Sequence[Mapping[str, Any]]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, longest: int = WHOLE_CELL, **of_head: Any) -> list[str]:
        """The names and then the values, without control characters."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        head = [styled(in_line(name, longest), **of_head) for name in names]
        return aligned([head, *([_cell(row.get(name), longest) for name in names] for row in self.rows)])


def _cell(value: Any, longest: int) -> str:
    if value is None:
        return ""
    return in_line(value if isinstance(value, str) else as_json(value, indent=False), longest)


Piece = str | Binary | ResultTable


def size_of(count: int) -> str:
    for unit, size in (("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def pieces_of_result(result: "CallResult") -> list[Piece]:
    """The structured value replaces text that only repeats it."""
    pieces = [piece_of(block) for block in result.content]
    if result.structured is None:
        return pieces
    others = [piece for piece in pieces if not (isinstance(piece, str) and _repeats(piece, result))]
    return [*others, _structured(result.data)]


def _repeats(text: str, result: "CallResult") -> bool:
    if text == result.data:
        return True
    try:
        return msgspec.json.decode(text) in (result.structured, result.data)
    except (msgspec.DecodeError, RecursionError):
        return False


def piece_of(block: Content | str) -> Piece:
    if isinstance(block, str):
        return block
    if isinstance(block, Text):
        return block.text
    if isinstance(block, Image | Audio):
        return Binary(block.data, block.mime_type, "image" if isinstance(block, Image) else "audio")
    if isinstance(block, EmbeddedResource):
        return piece_of_contents(block.resource)
    return _link(block)


def piece_of_contents(contents: ResourceContents) -> Piece:
    if contents.blob is None:
        return contents.text or ""
    return Binary(contents.blob, contents.mime_type or "application/octet-stream", _name_in(contents.uri))


def _name_in(uri: str) -> str:
    """The last part of a URI as the name of a file; nothing in it can lead out of a folder."""
    try:
        last = Path(urlsplit(uri).path).stem
    except ValueError:
        last = ""
    return "".join(character for character in last if character.isalnum() or character in "-_")[:60] or "resource"


def _link(link: ResourceLink) -> str:
    name, notes = in_line(link.title or link.name, 100), [link.mime_type or "", link.description or ""]
    about = ", ".join(in_line(note, 200) for note in notes if note)
    return f"{name}: {in_line(link.uri, 2_000)}" + (f" ({about})" if about else "")


def _structured(value: Any) -> Piece:
    table = _table_in(value)
    if table is not None:
        return table
    return value if isinstance(value, str) else as_json(value, indent=True)


def _table_in(value: Any) -> ResultTable | None:
    """A list of flat objects, which may be all that an object holds."""
    if isinstance(value, Mapping) and len(value) == 1:
        (value,) = value.values()
    if not isinstance(value, list) or not value or not all(isinstance(row, Mapping) and row for row in value):
        return None
    if len({name for row in value for name in row}) > MAX_COLUMNS:
        return None
    flat = all(not isinstance(cell, Mapping | list) for row in value for cell in row.values())
    return ResultTable(value) if flat else None


def show(pieces: Iterable[Piece], output: str | None, *, exact: bool = False) -> None:
    """To the terminal, or into files. With `exact`, what is piped is what came and no more."""
    pieces = list(pieces)
    if output is not None:
        _save(pieces, output)
        return
    if exact and len(pieces) == 1 and not sys.stdout.isatty():
        only = pieces[0]
        out_bytes(only.data if isinstance(only, Binary) else str(only).encode())
        return
    for piece in pieces:
        if isinstance(piece, ResultTable) and sys.stdout.isatty():
            _show_table(piece)
        else:
            out_text(str(piece))


def _show_table(table: ResultTable) -> None:
    room = columns()
    for longest in LONGEST_CELLS:
        lines = table.lines(longest, bold=True)
        if room is None or max(map(width_of, lines)) <= room:
            break
    for line in lines:
        out(line)


def _save(pieces: Sequence[Piece], output: str) -> None:
    """Into one file, several files beside each other, or a folder. Text is saved only if there is nothing else."""
    binaries = [piece for piece in pieces if isinstance(piece, Binary)]
    if binaries:
        show([piece for piece in pieces if not isinstance(piece, Binary)], None)
    else:
        text = "\n".join(str(piece) for piece in pieces)
        binaries = [Binary(text.encode(), "text/plain", "result")]
    for number, binary in enumerate(binaries, 1):
        try:
            path = _place(binary, output, number if len(binaries) > 1 else None)
            path.write_bytes(binary.data)
        except OSError as failure:
            raise CommandExit(f"--output {failure.filename or output}: {failure.strerror}") from None
        tell(f"saved {path} ({size_of(len(binary.data))})", dim=True)


def _place(binary: Binary, output: str, number: int | None) -> Path:
    path = Path(output)
    if not path.is_dir() and not output.endswith(("/", os.sep)):
        return path if number is None else path.with_stem(f"{path.stem}-{number}")
    path.mkdir(parents=True, exist_ok=True)
    names = (f"{binary.name}{f'-{count}' if count > 1 else ''}{binary.ending}" for count in range(1, 10_000))
    place = next((path / name for name in names if not (path / name).exists()), None)
    if place is None:
        raise CommandExit(f"--output {output}: the folder is full of {binary.name}{binary.ending}")
    return place


# ── definitions, as they came over the wire ──


def show_definitions(found: Mapping[str, Sequence[Definition]], *, verbose: bool) -> None:
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
    """One for each: name, arguments, and what it is. On a terminal, what does not fit beside the name is below it."""
    width = columns()
    names = [in_line(_name(kind, each), LONGEST_SUMMARY if width is None else width - 2) for each in listed]
    arguments = [_arguments(kind, each, 60 if width is None else width // 3) for each in listed]
    taken = sum(max(map(width_of, column)) + 2 for column in (names, arguments))
    room = LONGEST_SUMMARY if width is None else width - taken - 2
    heads = [(f"  {styled(name, fg='cyan')}", given) for name, given in zip(names, arguments, strict=True)]
    if width is None or room >= 50:
        return aligned([(*head, _summary(kind, each, room)) for head, each in zip(heads, listed, strict=True)])
    tops, under = (aligned(heads), [""] * len(heads)) if taken <= width else ([name for name, _ in heads], arguments)
    rows = zip(tops, under, (_summary(kind, each, width - BELOW) for each in listed), strict=True)
    return [line for top, *below in rows for line in (top, *(" " * BELOW + part for part in below if part))]


def _name(kind: str, each: Definition) -> str:
    return text_of(each, NAMES.get(kind, "name")) or "?"


def _summary(kind: str, each: Definition, room: int) -> str:
    """Hints, title and the first line of the description."""
    description = text_of(each, "description")[:LONGEST_DESCRIPTION]
    first = next((line for line in description.splitlines() if line.strip()), "")
    title = text_of(each, "title") or text_of(mapping(each.get("annotations")), "title")
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
        names = (text_of(row, "name") if row.get("required") is True else f"[{text_of(row, 'name')}]" for row in rows)
        return in_line(", ".join(names), longest)
    return in_line(text_of(each, "mimeType"), min(longest, 60))


def _joined(schema: Schema, *, typed: bool) -> str:
    needed = required(schema)
    parts = [*properties(schema).items()][:MAX_DESCRIBED]
    shown = {name: f"{name}: {described(part, schema)}" if typed else name for name, part in parts}
    return ", ".join(text if name in needed else f"[{text}]" for name, text in shown.items())


def details(kind: str, listed: Sequence[Definition]) -> list[str]:
    """All that is known of each."""
    found: list[str] = []
    width = columns()
    room = 200 if width is None else width - BELOW
    for each in listed:
        whole = wrapped(in_line(_name(kind, each), LONGEST_DESCRIPTION), None if width is None else room)
        name = "\n  ".join(styled(part, fg="cyan", bold=True) for part in whole)
        head = [part for part in (name, in_line(text_of(each, "title"), room), _marks(kind, each, room)) if part]
        fits = width is None or sum(map(width_of, head)) + len(head) < width
        found += [f"  {' '.join(head)}"] if fits else [f"  {name}", *(f"    {part}" for part in head[1:])]
        description = plain(text_of(each, "description")[:LONGEST_DESCRIPTION])
        found += [f"    {line}" for line in wrapped(description, None if width is None else room)]
        found += [f"    {in_line(f'{key}: {each[key]}', room)}" for key in FACTS.get(kind, ()) if key in each]
        for key in ("inputSchema", "outputSchema", "arguments"):
            if key in each:
                found.append(styled(f"    {key}:", dim=True))
                found += [f"      {line}" for line in highlighted(as_json(each[key], indent=True)).splitlines()]
    return [line.rstrip() for line in found]
