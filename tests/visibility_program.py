"""A server whose finance tools are disabled until a session unlocks them, for tests; over stdio as a program."""

from typing import Any

from dovetail import Context, Server


def create_server(**options: Any) -> Server:
    """Two of each kind, of which one is tagged; and tools that change what their session sees."""
    server = Server("visible", version="1.0.0", **options)
    for prefix, tags in (("open", {"common"}), ("money", {"finance", "common"})):
        _add(server, prefix, tags)

    @server.tool
    async def enable(ctx: Context, tags: tuple[str, ...] = (), names: tuple[str, ...] = (), only: bool = False) -> None:
        await ctx.enable(tags=tags, names=names, only=only)

    @server.tool
    def disable(ctx: Context, tags: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> None:
        ctx.disable(tags=tags, names=names)

    @server.tool
    async def read(ctx: Context, tags: tuple[str, ...], uri: str) -> str:
        await ctx.enable(tags=tags)
        return (await ctx.read_resource(uri))[0].text or ""

    return server


def _add(server: Server, prefix: str, tags: set[str]) -> None:
    def prompt(city: str) -> str:
        return city

    server.add_tool(lambda: prefix, name=f"{prefix}_tool", tags=tags)
    server.add_prompt(prompt, name=f"{prefix}_prompt", tags=tags)
    server.add_resource(f"{prefix}://one", lambda: prefix, name=prefix, tags=tags, cache=60)
    server.add_resource(f"{prefix}://all/{{name}}", lambda name: name, name=f"{prefix}s", tags=tags)

    @server.completion(argument="city", prompt=f"{prefix}_prompt")
    def cities(value: str) -> list[str]:
        return [value]


if __name__ == "__main__":
    program = create_server()
    program.disable(tags="finance")
    program.run()
