"""Scopes that hold others: the scopes of a token come in, and all that they mean goes out."""

from collections.abc import Iterable, Mapping

from dovetail.protocol.scopes import checked_scopes


class Hierarchy:
    """Which scopes hold others: `{"notes:write": ["notes:read"]}`, over as many steps as there are."""

    def __init__(self, holds: Mapping[str, Iterable[str]] | None = None) -> None:
        direct = {scope: checked_scopes(held, "Auth: hierarchy") for scope, held in (holds or {}).items()}
        checked_scopes(list(direct), "Auth: hierarchy")
        self._all = {scope: _reached(scope, direct) for scope in direct}

    def expand(self, granted: frozenset[str]) -> frozenset[str]:
        """The granted scopes and all that they hold."""
        return granted.union(*(self._all[scope] for scope in granted if scope in self._all)) if self._all else granted


def _reached(scope: str, direct: Mapping[str, frozenset[str]]) -> frozenset[str]:
    reached: set[str] = set()
    ahead = [scope]
    while ahead:
        for held in direct.get(ahead.pop(), frozenset()) - reached:
            reached.add(held)
            ahead.append(held)
    return frozenset(reached)
