from dovetail import AuditEvent, Server

journal: list[AuditEvent] = []  # yours is a table, or a topic


async def remember(event: AuditEvent) -> None:
    """Gets one event after the other, beside the calls."""
    journal.append(event)


server = Server("bank", version="1.0.0", audit=remember, redact=["iban"])


@server.tool(rate_limit=["5/minute per principal", "100/day per principal"])
async def transfer(amount: int, iban: str, password: str) -> str:
    """Send money."""
    return f"{amount} sent."


if __name__ == "__main__":
    server.run(transport="http")
