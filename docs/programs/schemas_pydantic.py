from pydantic import BaseModel, Field, field_validator

from dovetail import Server

server = Server("people", version="1.0.0")


class Person(BaseModel):
    name: str = Field(min_length=1)
    email: str

    @field_validator("email")
    @classmethod
    def must_have_an_at(cls, value: str) -> str:
        if "@" not in value:
            raise ValueError("an e-mail address has an @")
        return value


@server.tool
def register(person: Person, age: int = Field(default=18, ge=18)) -> Person:
    """Register a person."""
    return person


if __name__ == "__main__":
    server.run()
