import asyncio

from dovetail import BadResponse, Client


async def main(url: str) -> None:
    async with Client(url) as client:
        for skill in await client.list_skills():  # which reads none of their files
            print(f"{skill.name}: {skill.description}")
        skill = await client.get_skill("skill://release-notes/SKILL.md")
        print((await skill.read()).splitlines()[-1])
        print(await skill.read("references/STYLE.md"))
        try:
            await skill.read("references/SECRETS.md")
        except BadResponse as refused:
            print(refused)


if __name__ == "__main__":
    asyncio.run(main("http://127.0.0.1:8000/mcp"))
