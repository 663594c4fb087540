"""Whom the audit names when the door turns somebody away: whoever is behind a proxy of ours, and nobody's invention."""

import pytest

from dovetail import Server
from dovetail.auth import Principal
from dovetail.engine.audit import AuditEvent
from http_serving import serving, until
from http_wire import HttpWire


async def nobody(token: str) -> Principal | None:
    return None


@pytest.mark.parametrize(
    ("trusted", "address"),
    [([], "127.0.0.1"), (["10.0.0.0/8"], "127.0.0.1"), (["127.0.0.1"], "198.51.100.7")],
    ids=["no proxy", "another proxy", "our proxy"],
)
async def test_a_refusal_names_whoever_is_behind_the_proxy(trusted: list[str], address: str) -> None:
    events: list[AuditEvent] = []
    server = Server("notes", version="1.0.0", auth=nobody, audit=events.append)
    headers = {"authorization": "Bearer guessed", "x-forwarded-for": "203.0.113.9, 198.51.100.7"}
    async with serving(server, trusted_proxies=trusted) as app:
        assert (await HttpWire(app, headers=headers).post("tools/list")).status == 401
        await until(lambda: bool(events))
    assert [event.address for event in events] == [address]
