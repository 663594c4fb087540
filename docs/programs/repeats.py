from dovetail import Idempotency, Server, ToolError

server = Server("bank", version="1.0.0")
TRANSFERS: list[str] = []


@server.tool(idempotency=Idempotency(window=7 * 86_400))
def transfer(to: str, amount: int) -> str:
    """Send money, once for each idempotency key."""
    if amount > 1000:
        raise ToolError("1000 is the most that can be sent at once")
    TRANSFERS.append(to)
    return f"Transfer {len(TRANSFERS)}: {amount} to {to}"


@server.tool(cache=60, cache_shared=True)
def rate(currency: str) -> float:
    """The price of a currency, looked up once in a minute for all callers."""
    return {"EUR": 1.0, "USD": 1.08}[currency]


@server.tool(max_result_bytes=200)
def statement() -> str:
    """All transfers; of a long list the beginning."""
    return "\n".join(f"{number}. {to}" for number, to in enumerate(TRANSFERS * 50, 1))


if __name__ == "__main__":
    server.run()
