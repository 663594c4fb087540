from datetime import date
from typing import Annotated

from dovetail import Field, Server

server = Server("hotel", version="1.0.0", schemas="portable")


@server.tool
def book(
    arrival: date,
    nights: Annotated[int, Field(description="How long they stay", ge=1, le=30)],
    prices: dict[str, float] | None = None,
) -> str:
    """Book a room."""
    return f"{nights} nights from {arrival}"


if __name__ == "__main__":
    server.run()
