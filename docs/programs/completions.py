from typing import Literal

from dovetail import Completion, Server

server = Server("atlas", version="1.0.0")
CITIES = {"France": ["Lyon", "Paris"], "Peru": ["Cusco", "Lima"]}


@server.prompt
def trip(country: str, city: str, season: Literal["spring", "summer", "autumn", "winter"] = "summer") -> str:
    """Plan a trip."""
    return f"Plan a {season} trip to {city}, {country}."


@server.completion(prompt="trip", argument="country")
def countries(value: str) -> list[str]:
    return [name for name in CITIES if name.lower().startswith(value.lower())]


@server.completion(prompt="trip", argument="city")
async def cities(value: str, arguments: dict[str, str]) -> list[str]:
    known = CITIES.get(arguments.get("country", ""), [])
    return [name for name in known if name.lower().startswith(value.lower())]


@server.resource("atlas://{country}")
def country_page(country: str) -> str:
    """What there is to see."""
    return ", ".join(CITIES.get(country, []))


@server.completion(resource="atlas://{country}", argument="country")
def some_countries(value: str) -> Completion:
    return Completion(countries(value)[:1], total=195, has_more=True)


@server.tool
def distance(start: str, end: str) -> str:
    """Tell how far it is."""
    return f"It is far from {start} to {end}."


@server.completion(tool="distance", argument="start")
def starts(value: str) -> list[str]:
    return [city for cities in CITIES.values() for city in cities if city.startswith(value)]


if __name__ == "__main__":
    server.run()
