"""Records with secrets show none, however they are shown."""

from collections.abc import Iterable
from typing import Any

import pytest

from dovetail.auth.confidential import Confidential
from dovetail.auth.fetch import Fetched, FetchRequest
from dovetail.authserver.client_metadata import ClientMetadata
from dovetail.authserver.client_record import OAuthClient
from dovetail.authserver.keyring import _Kept

SECRET = "a-word-that-nobody-may-see"
RECORDS: list[Any] = [
    FetchRequest(url="https://as.example/token", headers={"authorization": SECRET}, body=SECRET.encode()),
    Fetched(status=200, headers={"set-cookie": SECRET}, body=SECRET.encode()),
    OAuthClient(id="ci", secret=SECRET, jwks={"keys": [SECRET]}),
    ClientMetadata(client_id="https://app.example/id", client_secret=SECRET),
    _Kept({"d": SECRET}, SECRET.encode()),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_nothing_of_it_is_shown(record: Confidential) -> None:
    for_rich: Iterable[tuple[str, Any]] = record.__rich_repr__()
    for shown in (repr(record), str(record), f"{record}", str(list(for_rich))):
        assert SECRET not in shown
        assert "sha256" not in shown


def test_what_is_harmless_is_shown() -> None:
    assert repr(OAuthClient(id="ci")) == "OAuthClient(id='ci')"
