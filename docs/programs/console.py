from dovetail import Console, Server

server = Server("weather", version="1.0.0")


@server.tool
def forecast(city: str) -> str:
    """Tell tomorrow's weather."""
    return f"Sun in {city}."


if __name__ == "__main__":
    server.run(transport="http", routes=Console(server).routes())
