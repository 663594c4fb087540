from dovetail import Server

server = Server("library", version="1.0.0", rate_limit=["50/second", "1000/hour per principal"])


@server.tool
def find(title: str) -> str:
    """Only the server's limits hold for it."""
    return f"{title} is on the second floor."


@server.tool(rate_limit="2/day per principal")
def order(title: str) -> str:
    """Costs money, so no caller orders more than two books in a day."""
    return f"{title} is ordered."


@server.tool(max_concurrency=1)
def scan(page: int) -> str:
    """There is one scanner, however many workers there are."""
    return f"page {page}"


if __name__ == "__main__":
    server.run(transport="http")
