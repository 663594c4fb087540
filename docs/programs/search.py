from dovetail import Server

server = Server("billing", version="1.0.0", tool_search="auto", token_budget=100)


@server.tool(always_visible=True)
def whoami() -> str:
    """Who is signed in."""
    return "Ann"


@server.tool(tags={"customers"}, annotations={"readOnlyHint": True})
def find_customer(name: str) -> int:
    """Find the number of a customer."""
    return 17


@server.tool(tags={"invoices"})
def create_invoice(customer: int, amount: float) -> str:
    """Make an invoice, and send it to the customer."""
    return f"Invoice for customer {customer}: {amount:.2f}"


if __name__ == "__main__":
    server.run()
