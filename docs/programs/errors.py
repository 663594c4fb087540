from dovetail import ProtocolError, Server, ToolError

server = Server("bank", version="1.0.0")
ACCOUNTS = {"alice": 100, "bob": 20}


@server.tool
def withdraw(account: str, amount: int) -> int:
    """Take money from an account."""
    if account not in ACCOUNTS:
        raise ToolError(f"There is no account {account}; there are {', '.join(ACCOUNTS)}")
    if amount > ACCOUNTS[account]:
        raise ToolError(f"{account} has only {ACCOUNTS[account]}")
    return ACCOUNTS[account] - amount


@server.tool
def audit() -> str:
    """Fails by accident: the details stay in the server's log."""
    return str(ACCOUNTS["mallory"])


@server.prompt
def statement(account: str) -> str:
    """Explain a statement."""
    if account not in ACCOUNTS:
        raise ProtocolError(f"There is no account {account}", code=-32602)
    return f"Explain that {account} has {ACCOUNTS[account]}."


if __name__ == "__main__":
    server.run()
