from dovetail import Context, Elicit, InputRequired, Server

server = Server("greeter", version="1.0.0")


@server.tool
async def greet(ctx: Context) -> str | InputRequired:
    """Ask under a key of our own, and keep a state of our own."""
    answer = (ctx.input_responses or {}).get("user_name")
    name = answer.get("content", {}).get("name") if isinstance(answer, dict) else None
    if not isinstance(name, str):
        tries = (ctx.request_state or 0) + 1
        schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        return InputRequired({"user_name": Elicit("What is your name?", schema=schema)}, state=tries)
    return f"Hello, {name}! I asked {ctx.request_state} times."


if __name__ == "__main__":
    server.run()
