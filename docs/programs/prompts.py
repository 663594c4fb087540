from typing import Annotated, Literal

from dovetail import EmbeddedResource, Field, Message, ResourceContents, Server

server = Server("reviews", version="1.0.0")


@server.prompt(title="Review some code")
def code_review(
    code: Annotated[str, Field(description="The code to review")],
    language: Literal["python", "go", "rust"] = "python",
    strict: bool = False,
) -> str:
    """Ask for a code review."""
    tone = "Be strict. " if strict else ""
    return f"{tone}Please review this {language} code:\n{code}"


@server.prompt
async def continue_letter(begin: str) -> list[Message]:
    """Go on with a letter."""
    rules = ResourceContents(uri="style://letters", text="Be brief.")
    return [
        Message("user", EmbeddedResource(rules)),
        Message("user", "Continue this letter."),
        Message("assistant", begin),
    ]


if __name__ == "__main__":
    server.run()
