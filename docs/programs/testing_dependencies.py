from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import pytest

from dovetail import Client, Depends, Server


class Mailbox:
    async def send(self, text: str) -> str:
        raise ConnectionError("a test must not send mail")


class FakeMailbox(Mailbox):
    async def send(self, text: str) -> str:
        return f"{text} is not sent."


async def open_mailbox() -> AsyncIterator[Mailbox]:
    yield Mailbox()


server = Server("mail", version="1.0.0")


@server.tool
async def send(text: str, mailbox: Annotated[Mailbox, Depends(open_mailbox)]) -> str:
    """Send a mail."""
    return await mailbox.send(text)


@pytest.fixture
def fake_mailbox() -> Iterator[None]:
    server.dependency_overrides[open_mailbox] = FakeMailbox
    yield
    server.dependency_overrides.clear()


@pytest.mark.usefixtures("fake_mailbox")
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-06-18", "2025-11-25", "2026-07-28"])
async def test_send(revision: str) -> None:
    async with Client(server, protocol_version=revision) as client:
        assert (await client.call_tool("send", {"text": "Hello"})).text == "Hello is not sent."


if __name__ == "__main__":
    server.run()
