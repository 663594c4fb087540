import asyncio

from dovetail import Server

server = Server("thermometer", version="1.0.0")
reading = {"celsius": 20.0}


@server.tool
def temperature() -> float:
    """Tell how warm it is."""
    return reading["celsius"]


async def measure() -> None:
    """Read the sensor, once a second."""
    while True:
        reading["celsius"] += 0.1
        await asyncio.sleep(1)


async def main() -> None:
    measuring = asyncio.create_task(measure())
    await server.run_async("http", path="/")
    measuring.cancel()


if __name__ == "__main__":
    asyncio.run(main())
