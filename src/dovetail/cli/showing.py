"""Results of a server come in; what a person reads, or a file holds, goes out.

Text is shown as text, a list of flat objects as a table, other structured values as JSON. What is neither text nor JSON
is saved where `--output` says, and else described in a line.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from dovetail.cli.exits import Ending
from dovetail.cli.terminal import (
    aligned,
    as_json,
    columns,
    in_line,
    out,
    out_bytes,
    out_text,
    styled,
    tell,
    width_of,
)
from dovetail.client import CallResult
from dovetail.protocol.types import (
    Audio,
    Content,
    EmbeddedResource,
    Image,
    ResourceContents,
    ResourceLink,
    Text,
)

MAX_COLUMNS = 12
LONGEST_CELLS = (60, 40, 30, 20, 12)  # on a terminal: the first with which a table fits; what is piped is whole
WHOLE_CELL = 100_000
ENDINGS = {"audio/wav": ".wav", "image/webp": ".webp", "image/jpeg": ".jpg"}  # that not every system knows
_SAFE_NAME = 60  # characters of a file's name that a server proposes


class Binary(NamedTuple):
    """Something that is no text."""

    data: bytes
    mime_type: str
    name: str  # for a file, without its ending

    def __str__(self) -> str:
        return f"[{in_line(self.mime_type, 60)}, {size_of(len(self.data))}; --output FILE saves it]"

    @property
    def ending(self) -> str:
        import mimetypes  # late: it reads files of the system's

        kind = self.mime_type.partition(";")[0].strip().lower()
        return ENDINGS.get(kind) or mimetypes.guess_extension(kind) or ".bin"


class ResultTable(NamedTuple):
    """A list of flat objects, each a row."""

    rows: Sequence[Mapping[str, Any]]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, longest: int = WHOLE_CELL, **of_head: Any) -> list[str]:
        """The names and then the values; nothing in them steers a terminal."""
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


# ── what a result is made of ──


def pieces_of_result(result: CallResult) -> list[Piece]:
    """The structured value stands for the text that only repeats it."""
    pieces = [piece_of(block) for block in result.content]
    if result.structured is None:
        return pieces
    shown = structured(result.data)
    return [piece for piece in pieces if not (isinstance(piece, str) and _repeats(piece, result))] + [shown]


def _repeats(text: str, result: CallResult) -> bool:
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
    """The last part of a URI as the name of a file, and nothing that could lead out of a folder."""
    try:
        last = Path(urlsplit(uri).path).stem
    except ValueError:
        last = ""
    safe = "".join(sign for sign in last if sign.isalnum() or sign in "-_")[:_SAFE_NAME]
    return safe or "resource"


def _link(link: ResourceLink) -> str:
    name, notes = in_line(link.title or link.name, 100), [link.mime_type or "", link.description or ""]
    about = ", ".join(in_line(note, 200) for note in notes if note)
    return f"{name}: {in_line(link.uri, 2_000)}" + (f" ({about})" if about else "")


# ── structured values ──


def structured(value: Any) -> Piece:
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


# ── where it goes ──


def show(pieces: Iterable[Piece], output: str | None, *, exact: bool = False) -> None:
    """To the terminal, or into files. With `exact`, what is piped is what came and no more."""
    pieces = list(pieces)
    if output is not None:
        _save(pieces, output)
        return
    if exact and len(pieces) == 1 and not sys.stdout.isatty():
        out_bytes(_content(pieces[0]))
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


def _content(piece: Piece) -> bytes:
    return piece.data if isinstance(piece, Binary) else str(piece).encode()


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
            raise Ending(f"--output {failure.filename or output}: {failure.strerror}") from None
        tell(f"saved {path} ({size_of(len(binary.data))})", dim=True)


def _place(binary: Binary, output: str, number: int | None) -> Path:
    path = Path(output)
    if not path.is_dir() and not output.endswith(("/", os.sep)):
        return path if number is None else path.with_stem(f"{path.stem}-{number}")
    path.mkdir(parents=True, exist_ok=True)
    for count in range(1, 10_000):
        place = path / f"{binary.name}{f'-{count}' if count > 1 else ''}{binary.ending}"
        if not place.exists():
            return place
    raise Ending(f"--output {output}: the folder is full of {binary.name}{binary.ending}")
