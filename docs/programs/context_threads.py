from dovetail import Context, Server

server = Server("archive", version="1.0.0")


@server.resource("archive://index")
async def index() -> str:
    """All entries, one on each line."""
    return "apple\nbanana\ncherry"


@server.tool
def search(text: str, ctx: Context) -> list[str]:
    """Search the index, in a worker thread."""
    (contents,) = ctx.wait(ctx.read_resource("archive://index"))
    lines = (contents.text or "").splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        if ctx.cancelled:
            break
        if text in line:
            found.append(line)
        ctx.report_progress(number, total=len(lines))
    return found


@server.tool
def nap(seconds: float, ctx: Context) -> str:
    """Sleep, but wake up at once when the call is cancelled."""
    return "woken" if ctx.cancelled.wait(timeout=seconds) else "rested"


if __name__ == "__main__":
    server.run()
