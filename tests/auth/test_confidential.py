"""Records with secrets show none, however they are shown."""

from typing import Any

import pytest

from dovetail.auth.fetch import Fetched, FetchRequest
from dovetail.auth.jose import SigningKey, read_token
from dovetail.auth.principal import Confidential
from dovetail.authserver.clients import ClientMetadata, OAuthClient

SECRET = "a-word-that-nobody-may-see"
RECORDS: list[Any] = [
    FetchRequest(url="https://as.example/token", headers={"authorization": SECRET}, body=SECRET.encode()),
    Fetched(status=200, headers={"set-cookie": SECRET}, body=SECRET.encode()),
    OAuthClient(id="ci", secret=SECRET, jwks={"keys": [SECRET]}),
    ClientMetadata(client_id="https://app.example/id", client_secret=SECRET),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_nothing_of_it_is_shown(record: Confidential) -> None:
    for shown in (repr(record), str(record), f"{record}", str(list(record.__rich_repr__()))):
        assert SECRET not in shown
        assert "sha256" not in shown


def test_what_is_harmless_is_shown() -> None:
    assert repr(OAuthClient(id="ci")) == "OAuthClient(id='ci')"
    assert repr(read_token(SigningKey.new().sign({"sub": "ann"}, "at+jwt"))) == "SignedToken()"
