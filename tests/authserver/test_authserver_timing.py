"""Structural: how long a look at a secret or a password takes tells nothing of how much of it is right."""

import ast
import hmac
import inspect
import textwrap
from typing import Any

import pytest

from authserver_stage import PASSWORD, SECRET, USERS
from dovetail.authserver import OAuthClient, clients, users


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The lengths of what was compared in constant time."""
    seen: list[tuple[int, int]] = []

    class Watched:
        @staticmethod
        def compare_digest(one: Any, other: Any) -> bool:
            seen.append((len(one), len(other)))
            return hmac.compare_digest(one, other)

    for module in (clients, users):
        monkeypatch.setattr(module, "hmac", Watched)
    return seen


def comparisons(function: Any) -> list[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Compare)]


@pytest.mark.parametrize("given", [SECRET, SECRET[:-1] + "x", "x" + SECRET[1:], SECRET[:3], "", "\udc80é"])
def test_a_secret_is_compared_by_its_digest(given: str, compared: list[tuple[int, int]]) -> None:
    client = OAuthClient(id="ci", grant_types=["client_credentials"], secret=SECRET)
    assert clients.proves_secret(client, given) is (given == SECRET)
    assert compared == [(71, 71)]
    assert comparisons(clients.proves_secret) == ["client.secret is not None"]


@pytest.mark.parametrize(
    ("name", "password"), [("ann", PASSWORD), ("ann", PASSWORD[:-1]), ("ann", ""), ("nobody", PASSWORD), ("", "")]
)
async def test_a_name_that_nobody_has_costs_as_much(
    name: str, password: str, compared: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: list[tuple[Any, ...]] = []
    scrypt = users._scrypt

    def watched(password: str, how: Any) -> bytes:
        costs.append((how.cost, how.block, how.parallel, len(how.salt)))
        return scrypt(password, how)

    monkeypatch.setattr(users, "_scrypt", watched)
    assert await users.Users(USERS).accepts(name, password) is (password == PASSWORD and name == "ann")
    assert costs == [(16, 8, 3, 16)]
    assert compared == [(32, 32)]
