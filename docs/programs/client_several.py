import asyncio
from typing import Any

from dovetail import Clients


async def main(servers: str | dict[str, Any] = "mcp.json") -> None:
    async with Clients(servers) as clients:
        for name, failure in clients.failures.items():
            print(f"{name} is not there: {failure}")
        print(list(clients), (await clients.call_tool("weather_forecast", {"city": "Rome"})).data)


if __name__ == "__main__":
    asyncio.run(main())
