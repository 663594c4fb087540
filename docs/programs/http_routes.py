from dovetail import RouteRequest, RouteResponse, Server

server = Server("library", version="1.0.0")
BOOKS = ["Dune", "Emma"]


@server.tool
def count_books() -> int:
    """Count the books."""
    return len(BOOKS)


@server.custom_route("/")
def home(request: RouteRequest) -> RouteResponse:
    return RouteResponse("<h1>Library</h1>", media_type="text/html")


@server.custom_route("/books", methods=["GET"])
async def find_books(request: RouteRequest) -> list[str] | RouteResponse:
    start = request.query.get("start", [""])[0]
    found = [book for book in BOOKS if book.startswith(start)]
    return found or RouteResponse({"error": f"no book starts with {start}"}, status=404)


if __name__ == "__main__":
    server.run(transport="http")
