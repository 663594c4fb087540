from dataclasses import dataclass
from pathlib import Path

from dovetail import Context, Server

server = Server("weather", version="1.0.0")
CHART = "ui://weather/chart"
server.add_ui(CHART, Path(__file__).with_name("apps_chart.html"), title="Temperatures")


@dataclass
class Forecast:
    city: str
    degrees: list[int]


@server.tool(ui=CHART, annotations={"readOnlyHint": True})
def forecast(city: str, days: int = 7) -> Forecast:
    """Tell the temperatures of the coming days."""
    return Forecast(city, [(len(city) * 7 + day * day) % 23 for day in range(days)])


@server.tool(visibility=["app"], annotations={"readOnlyHint": True})
def extend(city: str, days: int) -> Forecast:
    """More days of a forecast, for the button of the chart."""
    return forecast(city, days)


@server.tool
def advise(city: str, ctx: Context) -> str:
    """Tell what to wear."""
    warmth = "a coat" if max(forecast(city).degrees) < 15 else "a hat"
    return f"Take {warmth}; look at the chart." if ctx.client.can_show_apps else f"Take {warmth}."


if __name__ == "__main__":
    server.run()
