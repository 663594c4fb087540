import asyncio

from dovetail import Client, NotSignedIn
from dovetail.client import OAuth, TokenFile


async def main(url: str = "http://127.0.0.1:8000/mcp", auth: OAuth | None = None) -> None:
    try:
        async with Client(url, auth=auth or OAuth(tokens=TokenFile())) as client:
            print([tool.name for tool in await client.list_tools()])
    except NotSignedIn as failure:
        print("not signed in:", failure)


if __name__ == "__main__":
    asyncio.run(main())
