from dovetail import ResourceLink, Server

calendar = Server("calendar", version="1.0.0")
server = Server("desk", version="1.0.0")


@calendar.tool
def add(day: str, what: str) -> list[ResourceLink]:
    """Enter an appointment; returns where it can be read."""
    appointments.setdefault(day, []).append(what)
    return [ResourceLink(f"calendar://days/{day}", day)]


@calendar.resource("calendar://days/{day}")
def on(day: str) -> str:
    """The appointments of a day."""
    return "\n".join(appointments.get(day, []))


@calendar.prompt
def plan(day: str) -> str:
    """Plan a day."""
    return f"Read the appointments of {day} and plan the rest of it."


appointments: dict[str, list[str]] = {}
server.mount(calendar, namespace="office")

if __name__ == "__main__":
    server.run()
