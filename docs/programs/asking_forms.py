import asyncio
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Literal

from dovetail import Context, Field, Server

server = Server("travel", version="1.0.0")


@dataclass
class Trip:
    city: Annotated[str, Field(description="Where to", max_length=80)]
    start: date
    nights: Annotated[int, Field(ge=1, le=60)] = 7
    seat: Literal["window", "aisle"] = "window"


@server.tool
async def book(ctx: Context) -> str:
    """Book a trip."""
    trip = await ctx.elicit("Where do you want to go?", Trip)
    if trip.data is None:
        return "Nothing booked."
    meals, speed = await asyncio.gather(
        ctx.elicit("Which meals?", [["breakfast", "lunch", "dinner"]]),
        ctx.elicit("How fast?", {"slow": "By train", "fast": "By plane"}),
    )
    wishes = ", ".join(meals.data or []) or "no meals"
    return f"{trip.data.nights} nights in {trip.data.city}, {wishes}, {speed.data}"


if __name__ == "__main__":
    server.run()
