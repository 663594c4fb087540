"""Can a text be read in two ways? In: a row of cells. Out: the shortest text that two walks along the row can read.

A cell holds one character out of a set, or, if it repeats, a run of them. A row without such a text is unambiguous:
any text leads to each cell, at each of its characters, by one walk at most. Hence a backtracking search along the row
takes time in proportion to the text.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Cell(NamedTuple):
    """A literal character, or a run of characters that belongs to a variable."""

    holds: frozenset[str]
    pattern: str  # what stands for it in a regular expression
    owner: str = ""  # the variables that get the text; "" for literal text
    repeats: bool = False
    skip: int = 0  # how many cells a text may leave out from here: the length of an optional part


Readings = tuple[dict[str, str], dict[str, str]]  # what each of two walks gives to the owners
_Walks = tuple[int, int, bool]  # where two walks are, and whether they ever parted


def two_readings(row: Sequence[Cell]) -> tuple[str, Readings] | None:
    """Follow two walks in step, breadth first, until both end after they parted."""
    cells = [*row, Cell(frozenset({""}), "")]  # the last one is the end of the text
    followers = [_followers(cells, index) for index in range(-1, len(row))]
    start = (-1, -1, False)
    came_from: dict[_Walks, _Walks] = {start: start}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        left, right, parted = here
        if left == len(row):  # so is the other: nothing else holds the end
            if parted:
                return _witness(cells, came_from, here)
            continue
        for one in followers[left + 1]:
            for other in followers[right + 1]:
                step = (one, other, parted or one != other)
                if step not in came_from and not cells[one].holds.isdisjoint(cells[other].holds):
                    came_from[step] = here
                    queue.append(step)
    return None


def _followers(cells: Sequence[Cell], index: int) -> list[int]:
    found = [index + 1]
    while cells[found[-1]].skip:
        found.append(found[-1] + cells[found[-1]].skip)
    return [index, *found] if index >= 0 and cells[index].repeats else found


def _witness(cells: Sequence[Cell], came_from: Mapping[_Walks, _Walks], end: _Walks) -> tuple[str, Readings]:
    """Go back from the end, then spell the text out."""
    steps = []
    here = came_from[end]
    while came_from[here] != here:
        steps.append(here)
        here = came_from[here]
    text = ""
    readings: Readings = ({}, {})
    for one, other, _ in reversed(steps):
        shared = cells[one].holds & cells[other].holds
        character = "a" if "a" in shared else min(shared)
        text += character
        for reading, cell in zip(readings, (cells[one], cells[other]), strict=True):
            reading[cell.owner] = reading.get(cell.owner, "") + character
    return text, readings
