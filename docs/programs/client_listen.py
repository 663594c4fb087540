import asyncio

from dovetail import Client


async def main(url: str = "http://127.0.0.1:8000/mcp") -> None:
    async with Client(url) as client, client.listen(tools=True, uris=["counter://value"]) as changes:
        async for change in changes:
            print(change.kind, change.uri)


if __name__ == "__main__":
    asyncio.run(main())
