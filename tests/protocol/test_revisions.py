"""The revisions as rows: each cell of the matrix that a row answers."""

import pytest

from dovetail.protocol import revisions as r

NAMES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")

# In the order of NAMES; how the specification matrix has it.
CELLS: dict[str, tuple[object, ...]] = {
    "handshake": (True, True, True, True, False),
    "batches": (False, True, False, False, False),
    "error_id_optional": (False, False, False, True, True),
    "tool_annotations": (False, True, True, True, True),
    "audio": (False, True, True, True, True),
    "progress_message": (False, True, True, True, True),
    "completions_capability": (False, True, True, True, True),
    "titles": (False, False, True, True, True),
    "structured_output": (False, False, True, True, True),
    "any_structured_output": (False, False, False, False, True),
    "open_schemas": (False, False, False, False, True),
    "resource_links": (False, False, True, True, True),
    "object_meta": (False, False, True, True, True),
    "last_modified": (False, False, True, True, True),
    "icons": (False, False, False, True, True),
    "server_details": (False, False, False, True, True),
    "result_type": (False, False, False, False, True),
    "extensions": (False, False, False, False, True),
    "missing_resource_code": (-32002, -32002, -32002, -32002, -32602),
    "disconnect_cancels": (False, False, False, False, True),
    "resumable": (False, False, False, True, False),
    "log_on_request": (False, False, False, False, True),
    "listens": (False, False, False, False, True),
    "rounds": (False, False, False, False, True),
    "elicitation": (False, False, True, True, True),
    "url_elicitation": (False, False, False, True, True),
    "elicitation_ids": (False, False, False, True, False),
    "rich_forms": (False, False, False, True, True),
    "rich_sampling": (False, False, False, True, True),
}


@pytest.mark.rule("BASE-9", "BASE-11", "BASE-13", "BASE-16", "CAN-8", "LOG-3", "RES-5")
@pytest.mark.parametrize("cell", CELLS)
def test_cells(cell: str) -> None:
    assert tuple(getattr(row, cell) for row in r.ALL) == CELLS[cell]


def test_every_cell_is_checked() -> None:
    assert set(r.Revision.__struct_fields__) - {"name", "header"} == set(CELLS)


def test_names() -> None:
    assert tuple(row.name for row in r.ALL) == NAMES
    assert tuple(row.header.decode() for row in r.ALL) == NAMES
    assert NAMES[::-1] == r.SUPPORTED
    assert {name: row.name for name, row in r.BY_NAME.items()} == {name: name for name in NAMES}
    assert tuple(r.HANDSHAKE) == NAMES[:4]
    assert tuple(r.MODERN) == NAMES[4:]
    assert r.LATEST.name == "2026-07-28"


@pytest.mark.rule("LIFE-5", "MH-17")
def test_what_stands_in_for_an_unknown_or_unnamed_version() -> None:
    assert r.LATEST_HANDSHAKE.name == "2025-11-25"
    assert r.UNNAMED.name == "2025-03-26"


@pytest.mark.parametrize(
    ("first", "last", "names"),
    [
        (r.R2024_11_05, None, NAMES),
        (r.R2025_06_18, None, NAMES[2:]),
        (r.R2026_07_28, None, NAMES[4:]),
        (r.R2024_11_05, r.R2025_11_25, NAMES[:4]),
        (r.R2025_11_25, r.R2025_11_25, NAMES[3:4]),
    ],
)
def test_at_least(first: r.Revision, last: r.Revision | None, names: tuple[str, ...]) -> None:
    assert r.at_least(first, last) == frozenset(names)
