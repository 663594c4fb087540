"""Who may use a tool, a resource or a prompt: `scopes=` and `authorize=` come in, one frozen rule goes out.

`Rules` is what those of a whole catalogue look at: callers who are alike in that see the same list.
"""

import inspect
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import msgspec

from dovetail.errors import SetupError
from dovetail.protocol.scopes import checked_scopes
from dovetail.registry.options import AccessOptions, Authorize


class AccessRule(msgspec.Struct, frozen=True, eq=False):
    """All `scopes` are needed, and `authorize` has to agree; it is asked only about callers that have the scopes.

    `key` is what `authorize` has declared (`authorize.key = function`): callers for whom it gives the same are alike.
    """

    scopes: frozenset[str] = frozenset()
    authorize: Authorize | None = None
    key: Callable[[Any], Hashable] | None = None


class Rules(msgspec.Struct, frozen=True, eq=False):
    """Of several rules together: the scopes that any of them names, and the keys that their functions declare."""

    scopes: frozenset[str]
    keys: tuple[Callable[[Any], Hashable], ...]
    has_keys: bool  # of every `authorize`; else nobody knows who is alike

    @classmethod
    def of(cls, rules: Iterable[AccessRule]) -> "Rules":
        rules = list(rules)
        asking = [rule for rule in rules if rule.authorize is not None]
        return cls(
            scopes=frozenset().union(*(rule.scopes for rule in rules)),
            keys=tuple({id(rule.key): rule.key for rule in asking if rule.key is not None}.values()),
            has_keys=all(rule.key is not None for rule in asking),
        )


def compile_access(options: AccessOptions, where: str) -> AccessRule | None:
    """None for what everybody may use. Raises SetupError."""
    needed = options.get("scopes")
    scopes = frozenset[str]() if needed is None else checked_scopes(needed, where)
    authorize = options.get("authorize")
    if authorize is None:
        return AccessRule(scopes) if scopes else None
    _check_function(authorize, where, "authorize")
    key = getattr(authorize, "key", None)
    if key is not None:
        _check_function(key, where, "authorize.key")
        if inspect.iscoroutinefunction(key):
            raise SetupError(f"{where}: authorize.key={key!r} is async; write it as a plain def")
    return AccessRule(scopes, authorize, key)


def _check_function(given: object, where: str, option: str) -> None:
    """It can be called with a principal, and with nothing else."""
    if not callable(given):
        raise SetupError(f"{where}: {option}={given!r} is not callable; give it a function of the principal")
    try:
        signature = inspect.signature(given)
    except (ValueError, TypeError):  # some that are not written in Python have none
        return
    try:
        signature.bind(None)
    except TypeError as problem:
        fix = "let it take one argument, the principal (None where nobody is known)"
        raise SetupError(f"{where}: {option}={given!r} can't be called: {problem}; {fix}") from None
