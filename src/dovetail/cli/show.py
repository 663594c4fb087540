"""Results and definitions of a server as text for the user, or as files.

Text is shown as text, a list of flat objects as a table, other structured values as JSON. Binary content is saved to
`--output`, else described in a line.
"""

import itertools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dovetail.cli import output as terminal
from dovetail.cli.given_arguments import (
    MAX_PARAMETERS,
    Schema,
    as_object,
    describe_type,
    get_text,
    properties,
    required,
)
from dovetail.protocol import types

if TYPE_CHECKING:
    from dovetail.client import CallToolResult

MAX_COLUMNS = 12  # of a table; a wider one is shown as JSON
EXTENSIONS = {"audio/wav": ".wav", "image/webp": ".webp", "image/jpeg": ".jpg"}  # not the same on all systems
MAX_SUMMARY = 500  # characters of one line
MAX_DESCRIPTION = 20_000  # characters
NAME_KEYS = {"resources": "uri", "templates": "uriTemplate"}  # for all others it is `name`
DETAIL_KEYS = {"resources": ("name", "mimeType", "size"), "templates": ("name", "mimeType")}  # shown in a line each
HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")

Definition = Mapping[str, Any]


class Binary(NamedTuple):
    """Content that is no text."""

    data: bytes
    mime_type: str
    stem: str  # of a file for it

    def __str__(self) -> str:
        return f"[{terminal.one_line(self.mime_type, 60)}, {format_size(len(self.data))}; --output FILE saves it]"

    @property
    def extension(self) -> str:
        import mimetypes  # late: it reads files of the system

        kind = self.mime_type.partition(";")[0].strip().lower()
        return EXTENSIONS.get(kind) or mimetypes.guess_extension(kind) or ".bin"


Piece = str | Binary


def format_size(count: int) -> str:
    for unit, size in (("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def result_pieces(result: "CallToolResult", *, is_whole: bool) -> list[Piece]:
    """The pieces of a result; a structured value replaces text that repeats it. `is_whole`: cells are not truncated."""
    pieces = [content_piece(block) for block in result.content]
    if result.structured is None:
        return pieces
    others = [piece for piece in pieces if not (isinstance(piece, str) and _repeats(piece, result))]
    return [*others, _structured(result.data, 100_000 if is_whole else 40)]


def _repeats(text: str, result: "CallToolResult") -> bool:
    if text == result.data:
        return True
    try:
        return msgspec.json.decode(text) in (result.structured, result.data)
    except (msgspec.DecodeError, RecursionError):
        return False


def _structured(value: Any, width: int) -> str:
    """A table for a list of flat objects, also if it is the only value of an object."""
    rows = next(iter(value.values())) if isinstance(value, Mapping) and len(value) == 1 else value
    names = _columns_of(rows)
    if not 0 < len(names) <= MAX_COLUMNS:
        return value if isinstance(value, str) else terminal.to_json(value, indent=True)
    values = [["" if row.get(name) is None else row[name] for name in names] for row in rows]
    texts = [
        [each if isinstance(each, str) else terminal.to_json(each, indent=False) for each in row] for row in values
    ]
    cells = [[terminal.one_line(text, width) for text in row] for row in (names, *texts)]
    return "\n".join(terminal.align(cells))


def _columns_of(rows: Any) -> list[str]:
    """The keys of a list of flat objects; empty for other values."""
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) and row for row in rows):
        return []
    is_flat = all(not isinstance(cell, Mapping | list) for row in rows for cell in row.values())
    return list(dict.fromkeys(name for row in rows for name in row)) if is_flat else []


def content_piece(block: types.Content | str) -> Piece:
    if isinstance(block, str):
        return block
    if isinstance(block, types.Text):
        return block.text
    if isinstance(block, types.Image | types.Audio):
        return Binary(block.data, block.mime_type, "image" if isinstance(block, types.Image) else "audio")
    if isinstance(block, types.EmbeddedResource):
        return resource_piece(block.resource)
    about = ", ".join(terminal.one_line(note, 200) for note in (block.mime_type, block.description) if note)
    link = f"{terminal.one_line(block.title or block.name, 100)}: {terminal.one_line(block.uri, 2_000)}"
    return f"{link} ({about})" if about else link


def resource_piece(contents: types.ResourceContents) -> Piece:
    if contents.blob is None:
        return contents.text or ""
    return Binary(contents.blob, contents.mime_type or "application/octet-stream", "resource")


def show(pieces: Iterable[Piece], output: str | None, *, exact: bool = False) -> None:
    """Write to stdout, or into files. `exact`: a single piece is piped byte for byte."""
    pieces = list(pieces)
    if output is not None:
        _save(pieces, output)
        return
    if exact and len(pieces) == 1 and not sys.stdout.isatty():
        only = pieces[0]
        terminal.out_bytes(only.data if isinstance(only, Binary) else str(only).encode())
        return
    for piece in pieces:
        terminal.out_text(str(piece))


def _save(pieces: Sequence[Piece], output: str) -> None:
    """Save into a file, numbered files, or a folder. Text is saved only if there is no binary content."""
    binaries = [piece for piece in pieces if isinstance(piece, Binary)]
    if binaries:
        show([piece for piece in pieces if not isinstance(piece, Binary)], None)
    else:
        text = "\n".join(str(piece) for piece in pieces)
        binaries = [Binary(text.encode(), "text/plain", "result")]
    for number, binary in enumerate(binaries, 1):
        try:
            path = _file_path(binary, output, number if len(binaries) > 1 else None)
            path.write_bytes(binary.data)
        except OSError as failure:
            raise terminal.CommandExit(f"--output {failure.filename or output}: {failure.strerror}") from None
        terminal.err(f"saved {path} ({format_size(len(binary.data))})", dim=True)


def _file_path(binary: Binary, output: str, number: int | None) -> Path:
    path = Path(output)
    if not path.is_dir() and not output.endswith(("/", os.sep)):
        return path if number is None else path.with_stem(f"{path.stem}-{number}")
    path.mkdir(parents=True, exist_ok=True)
    suffixes = itertools.chain([""], (f"-{count}" for count in itertools.count(2)))
    paths = (path / f"{binary.stem}{suffix}{binary.extension}" for suffix in suffixes)
    return next(each for each in paths if not each.exists())


def show_definitions(found: Mapping[str, Sequence[Definition]], *, verbose: bool) -> None:
    shown = {kind: listed for kind, listed in found.items() if listed}
    for number, (kind, listed) in enumerate(shown.items()):
        terminal.out(("\n" if number else "") + terminal.styled(kind.capitalize(), bold=True))
        for line in details(kind, listed) if verbose else lines(kind, listed):
            terminal.out(line)


def lines(kind: str, listed: Sequence[Definition]) -> list[str]:
    """Name, arguments and summary of each, truncated to the width of the terminal."""
    width = terminal.terminal_width()
    names = [terminal.one_line(_name(kind, each), MAX_SUMMARY) for each in listed]
    arguments = [_arguments(kind, each, 60 if width is None else width // 3) for each in listed]
    used = sum(max(map(terminal.display_width, column)) + 2 for column in (names, arguments))
    remaining = MAX_SUMMARY if width is None else max(width - used - 2, 30)
    heads = [f"  {terminal.styled(name, fg='cyan')}" for name in names]
    summaries = [_summary(kind, each, remaining) for each in listed]
    return terminal.align(list(zip(heads, arguments, summaries, strict=True)))


def _name(kind: str, each: Definition) -> str:
    return get_text(each, NAME_KEYS.get(kind, "name")) or "?"


def _summary(kind: str, each: Definition, width: int) -> str:
    """Hints, title and the first line of the description."""
    description = get_text(each, "description")[:MAX_DESCRIPTION]
    first = next((line for line in description.splitlines() if line.strip()), "")
    title = get_text(each, "title") or get_text(as_object(each.get("annotations")), "title")
    hints = f"{_hint_label(kind, each, width)} "
    text = f"{title}: {first}" if title and first else title or first
    remaining = width - terminal.display_width(hints)
    return (hints + (terminal.one_line(text, remaining) if remaining > 1 else "")).strip()


def tool_hints(tool: Definition) -> tuple[list[str], bool]:
    """The hints that hold, by default or by annotation; and whether one of the four is annotated."""
    annotations = as_object(tool.get("annotations"))
    hints = types.ToolHints.from_values(*map(annotations.get, HINTS))
    names = [name.replace("_", "-") for name, holds in hints._asdict().items() if holds]
    return names, any(isinstance(annotations.get(hint), bool) for hint in HINTS)


def _hint_label(kind: str, each: Definition, width: int) -> str:
    hints = tool_hints(each)[0] if kind == "tools" else []
    is_annotated = as_object(each.get("annotations")).get("destructiveHint") is True
    colour = "green" if "destructive" not in hints else "red" if is_annotated else "yellow"
    return terminal.styled(terminal.one_line(f"[{', '.join(hints)}]", width), fg=colour) if hints else ""


def _arguments(kind: str, each: Definition, width: int) -> str:
    """The arguments, `a: integer, [b: string]`, optional ones in brackets; names only if that is too long."""
    if kind == "tools":
        schema = as_object(each.get("inputSchema"))
        typed = terminal.one_line(_joined(schema, typed=True), MAX_SUMMARY)
        is_short = terminal.display_width(typed) <= width
        return typed if is_short else terminal.one_line(_joined(schema, typed=False), width)
    if kind == "prompts":
        listed = each.get("arguments")
        rows = [as_object(row) for row in listed] if isinstance(listed, list) else []
        names = (get_text(row, "name") if row.get("required") is True else f"[{get_text(row, 'name')}]" for row in rows)
        return terminal.one_line(", ".join(names), width)
    return terminal.one_line(get_text(each, "mimeType"), min(width, 60))


def _joined(schema: Schema, *, typed: bool) -> str:
    needed = required(schema)
    parts = [*properties(schema).items()][:MAX_PARAMETERS]
    shown = {name: f"{name}: {describe_type(part, schema)}" if typed else name for name, part in parts}
    return ", ".join(text if name in needed else f"[{text}]" for name, text in shown.items())


def details(kind: str, listed: Sequence[Definition]) -> list[str]:
    """The details: whole descriptions and schemas. The terminal wraps long lines."""
    found: list[str] = []
    for each in listed:
        name = terminal.styled(terminal.one_line(_name(kind, each), MAX_DESCRIPTION), fg="cyan", bold=True)
        head = (name, terminal.one_line(get_text(each, "title"), MAX_SUMMARY), _hint_label(kind, each, MAX_SUMMARY))
        found.append(f"  {' '.join(part for part in head if part)}")
        description = terminal.sanitize(get_text(each, "description")[:MAX_DESCRIPTION])
        found += [f"    {line}" for line in description.splitlines()]
        lines = [f"{key}: {each[key]}" for key in DETAIL_KEYS.get(kind, ()) if key in each]
        found += [f"    {terminal.one_line(line, MAX_SUMMARY)}" for line in lines]
        for key in ("inputSchema", "outputSchema", "arguments"):
            if key in each:
                found.append(terminal.styled(f"    {key}:", dim=True))
                found += [f"      {line}" for line in terminal.to_json(each[key], indent=True).splitlines()]
    return [line.rstrip() for line in found]
