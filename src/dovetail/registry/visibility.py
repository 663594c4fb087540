"""Rules that enable and disable tools, resources and prompts: the last one that fits an item counts."""

import logging
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from dovetail.errors import SetupError
from dovetail.protocol.session import Rules, VisibilityRule
from dovetail.protocol.types import tags_of
from dovetail.registry.registration import did_you_mean

log = logging.getLogger("dovetail")
MAX_RULES = 100  # of a session
MAX_LENGTH = 256  # characters of a tag or name in a rule
Names = str | Iterable[str]  # one, or several


def fits(rule: VisibilityRule, item: Any) -> bool:
    return _fits(rule, *_labels(item))


def is_enabled(rules: Rules, item: Any, default: bool = True) -> bool:
    name, tags = _labels(item)
    return next((rule.enabled for rule in reversed(rules) if _fits(rule, name, tags)), default)


def _labels(item: Any) -> tuple[str, frozenset[str]]:
    """The name or URI that rules see, and the tags. A file of a folder is enabled and disabled with its folder."""
    if getattr(item, "folder", None) is not None:
        return item.folder, item.folder_tags
    name: str = item.uri if hasattr(item, "uri") else item.name
    return name, tags_of(item.definition)


def _fits(rule: VisibilityRule, name: str, tags: frozenset[str]) -> bool:
    return (not rule.tags or not tags.isdisjoint(rule.tags)) and (
        not rule.names or any(name == pattern or fnmatchcase(name, pattern) for pattern in rule.names)
    )


def compile_rules(
    items: Iterable[Any], where: str, *,
    enabled: bool, tags: Names = (), names: Names = (), only: bool = False, more_may_come: bool = False,
) -> Rules:  # fmt: skip
    """The rules of one call of `enable` or `disable`. If none of the items fits, and no more may come: SetupError."""
    known = [_labels(item) for item in items]
    rule = VisibilityRule(enabled, texts(tags, f"{where}: tags"), texts(names, f"{where}: names"))
    if not rule.tags and not rule.names:
        raise SetupError(f'{where} needs tags= or names=; names="*" means all')
    problem = _misfit(rule, known)
    if problem and not more_may_come:
        raise SetupError(f"{where}: {problem}")
    if problem:
        log.warning("%s: %s so far; a server whose lists are not known yet may have it", where, problem)
    return (VisibilityRule(False), rule) if only else (rule,)


def _misfit(rule: VisibilityRule, known: list[tuple[str, frozenset[str]]]) -> str:
    """What of a rule fits nothing that is known; "" if all does."""
    parts = [("tag", tag, VisibilityRule(True, tags=(tag,))) for tag in rule.tags]
    parts += [("name or URI", name, VisibilityRule(True, names=(name,))) for name in rule.names]
    for kind, text, part in parts:
        if not any(_fits(part, *labels) for labels in known):
            near = did_you_mean(text, sorted({label for name, tags_ in known for label in (name, *tags_)}))
            return f"nothing has the {kind} {text!r}{near}"
    is_fit = any(_fits(rule, *labels) for labels in known)
    return "" if is_fit else "nothing has both one of the tags and one of the names; use two calls for either"


def texts(given: Any, where: str) -> tuple[str, ...]:
    """One or several tags, names or patterns. Raises SetupError."""
    found: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if not all(isinstance(text, str) and 0 < len(text) <= MAX_LENGTH for text in found):
        raise SetupError(f"{where}={given!r} is not possible; use strings of 1 to {MAX_LENGTH} characters")
    return tuple(sorted(set(found)))


def extended(rules: Rules, new: Rules, *, of_session: bool = False) -> Rules:
    """The rules with new ones behind them, which replace those for the same tags and names. Raises SetupError."""
    for rule in new:
        is_for_all = not rule.tags and rule.names in ((), ("*",))
        kept = () if is_for_all else (each for each in rules if (each.tags, each.names) != (rule.tags, rule.names))
        rules = (*kept, rule)
    if of_session and len(rules) > MAX_RULES:
        raise SetupError(f"ctx.enable, ctx.disable: a session holds {MAX_RULES} rules at most; use tags or patterns")
    return rules
