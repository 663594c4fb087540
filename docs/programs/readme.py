from datetime import date

from dovetail import Server

server = Server("calendar", version="1.0.0")


@server.tool
def days_between(start: date, end: date) -> int:
    """Count the days from one date to another."""
    return (end - start).days


if __name__ == "__main__":
    server.run()
