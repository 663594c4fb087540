from dovetail import Context, Server

server = Server("bank", version="1.0.0")
PIN = "0000"  # in real life the user signs in


@server.tool(tags={"finance"})
def balance() -> int:
    return 1200


@server.tool(tags={"finance", "admin"})
def close_account() -> str:
    return "Closed."


@server.tool
async def unlock(pin: str, ctx: Context) -> str:
    """Show the finance tools to this session."""
    if pin != PIN:
        return "That is wrong."
    await ctx.enable(tags={"finance"})
    await ctx.disable(names="close_*")
    return "Unlocked."


@server.tool
def holiday(begins: bool) -> str:
    """Show the finance tools to nobody, or to everybody, at this worker."""
    (server.disable if begins else server.enable)(tags={"finance"})
    return "Enjoy it." if begins else "Welcome back."


server.disable(tags={"finance"})

if __name__ == "__main__":
    server.run()
