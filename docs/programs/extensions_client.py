import asyncio

from dovetail import Client

ID = "com.example/books"


async def main(url: str = "http://127.0.0.1:8000/mcp") -> None:
    async with Client(url, extensions={ID: {"cover": "large"}}) as client:
        print(client.capabilities["extensions"][ID])
        print(await client.call_tool("show", {"isbn": "978-0140449136"}))
        print(await client.request("com.example/books/find", {"words": "pride"}))
        await client.notify("notifications/com.example/books/opened", {"isbn": "978-0141439518"})


if __name__ == "__main__":
    asyncio.run(main())
