"""The session record: what `initialize` negotiated, its limits, and its encoding."""

import msgspec
import pytest

from dovetail.protocol import revisions
from dovetail.protocol.methods import InitializeParams
from dovetail.protocol.session import Session

PARAMS = InitializeParams(
    protocol_version="2099-01-01",
    capabilities={"roots": {"listChanged": True}},
    client_info={"name": "c", "version": "1"},
)


@pytest.mark.rule("LIFE-2", "LIFE-7")
@pytest.mark.parametrize("revision", revisions.HANDSHAKE.values(), ids=lambda row: row.name)
def test_a_session_begins_with_what_was_agreed_on(revision: revisions.Revision) -> None:
    session = Session.open("id-1", PARAMS, revision)
    assert session.revision is revision
    assert session.id == "id-1"
    assert session.version == revision.name  # and not what the client asked for
    assert session.capabilities == b'{"roots":{"listChanged":true}}'
    assert session.client == b'{"name":"c","version":"1"}'
    assert not session.initialized
    assert session.log_level is None
    assert session.subscriptions == frozenset()


def test_a_change_makes_another_record() -> None:
    session = Session.open("id-1", PARAMS, revisions.R2025_06_18)
    later = session.replace(initialized=True, log_level="error", subscriptions=frozenset({"a://b"}))
    assert (later.initialized, later.log_level, later.subscriptions) == (True, "error", {"a://b"})
    assert not session.initialized
    assert later.id == session.id
    with pytest.raises(AttributeError):
        session.initialized = True  # type: ignore[misc]


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
def test_a_session_survives_the_way_to_another_worker(codec: object) -> None:
    session = Session.open("id-1", PARAMS, revisions.R2025_11_25).replace(
        initialized=True, log_level="debug", subscriptions=frozenset({"a://b", "c://d"})
    )
    assert codec.decode(codec.encode(session), type=Session) == session  # type: ignore[attr-defined]
