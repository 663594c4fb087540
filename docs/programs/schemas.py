from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated

from dovetail import Field, Server

server = Server("hotel", version="1.0.0")


class Board(Enum):
    NONE = "none"
    HALF = "half"
    FULL = "full"


@dataclass
class Guest:
    name: str
    born: date | None = None


@server.tool
def book(
    guests: Annotated[list[Guest], Field(min_length=1, max_length=4)],
    arrival: date,
    nights: Annotated[int, Field(description="How long they stay", ge=1, le=30)],
    board: Board = Board.NONE,
    code: Annotated[str, Field(pattern="^[A-Z]{3}[0-9]+$")] | None = None,
) -> str:
    """Book a room."""
    return f"{guests[0].name} and {len(guests) - 1} more, {nights} nights from {arrival}, board: {board.value}"


if __name__ == "__main__":
    server.run()
