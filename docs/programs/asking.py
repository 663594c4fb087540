from dovetail import Context, Server

server = Server("notes", version="1.0.0")
notes = {"1": "Buy milk", "2": "Call Ada"}


@server.tool(annotations={"destructiveHint": True})
async def delete_note(note_id: str, ctx: Context) -> str:
    """Delete a note for good."""
    answer = await ctx.elicit(f"Delete note {note_id}?", bool)
    if not answer.accepted or not answer.data:
        return "Kept."
    await ctx.step("delete", lambda: notes.pop(note_id, None))
    return "Deleted."


if __name__ == "__main__":
    server.run()
