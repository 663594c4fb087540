"""The secrets of a server: where they come from, and that nobody sees them."""

from typing import Any

import pytest
from keys_stage import ONE, TWO, secrets_of

from dovetail import Server, SetupError
from dovetail.engine.keys import Secrets
from dovetail.engine.options import Options


@pytest.fixture(autouse=True)
def _no_secret_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOVETAIL_SECRET", raising=False)


# ── where they come from ──


@pytest.mark.parametrize(
    ("given", "secrets"),
    [
        (ONE, [ONE]),
        (ONE.encode(), [ONE]),
        ([ONE, TWO], [ONE, TWO]),
        ((TWO.encode(), ONE), [TWO, ONE]),
        ([ONE, ONE.encode(), TWO], [ONE, TWO]),
        ("with, commas and blanks", ["with, commas and blanks"]),
        ("é" * 8, ["é" * 8]),  # 16 bytes
    ],
    ids=str,
)
def test_one_secret_or_several(given: Any, secrets: list[str]) -> None:
    assert secrets_of(secret=given) == tuple(secret.encode() for secret in secrets)


@pytest.mark.parametrize("divided", [f"{ONE}, {TWO}", f"{ONE} {TWO}", f"  {ONE},,{TWO}\n"])
def test_the_environment_may_hold_several(divided: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = divided.replace(ONE, ONE.replace(" ", "-")).replace(TWO, TWO.replace(" ", "-"))
    monkeypatch.setenv("DOVETAIL_SECRET", text)
    assert secrets_of() == (b"the-first-secret-of-two", b"the-second-secret-of-two")
    assert secrets_of(secret=TWO) == (TWO.encode(),)


def test_without_any_there_is_a_random_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_SECRET", "")
    made = {secrets_of() for _ in range(5)}
    assert len(made) == 5
    assert {(len(secrets), len(secrets[0])) for secrets in made} == {(1, 32)}


# ── what is refused, and not shown ──


WRONG = [
    ("hunter2", "secret must be at least 16 bytes"),
    ("", "secret must be at least 16 bytes"),
    (b"hunter2", "secret must be at least 16 bytes"),
    ([ONE, "hunter2"], "secret must be at least 16 bytes"),
    ([], "secret must be"),
    (None, "secret must be"),
    (5, "secret must be"),
    ({"hunter2": ONE}, "secret must be"),
    (bytearray(b"hunter2 hunter2 hunter2"), "secret must be"),
    ([[ONE]], "secret must be"),
    ("hunter2 hunter2 \ud800", "surrogate"),
]


@pytest.mark.parametrize(("given", "words"), WRONG, ids=ascii)
def test_a_wrong_secret_is_refused_and_not_shown(given: Any, words: str) -> None:
    with pytest.raises(SetupError) as caught:
        secrets_of(secret=given)
    message = str(caught.value)
    assert message.startswith("Server: secret ")
    assert words in message
    assert "hunter2" not in message
    assert "first secret" not in message
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize("text", ["hunter2", f"hunter2,{ONE}", " ", ",", "hunter2 \udcff"], ids=ascii)
def test_a_wrong_variable_is_refused_by_its_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_SECRET", text)
    with pytest.raises(SetupError, match=r"^DOVETAIL_SECRET ") as caught:
        Server("x")
    assert "hunter2" not in str(caught.value)


def test_secrets_are_not_printed() -> None:
    server = Server("x", secret=[ONE, TWO])
    held = [server.engine.secrets, server.engine.options, Options.of({"secret": ONE}), server, server.engine.sealer]
    for thing in held:
        shown = f"{thing} {thing!r} {[thing]}"
        assert "secret of two" not in shown, type(thing)
    assert repr(Secrets([b"x"])) == "<1 hidden>"
