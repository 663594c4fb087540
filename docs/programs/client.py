import asyncio

from dovetail import Client, ToolError


async def main(url: str = "http://127.0.0.1:8000/mcp") -> None:
    async with Client(url, headers={"X-Tenant": "acme"}, timeout=10) as client:
        print(client.protocol_version)
        try:
            result = await client.call_tool("forecast", {"city": "Rome"}, progress_handler=print)
            print(result.data)
        except ToolError as failure:
            print("the tool says:", failure)


if __name__ == "__main__":
    asyncio.run(main())
