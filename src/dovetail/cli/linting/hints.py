"""The tools of a server come in; those whose names and hints do not go together go out.

Only the place of the verb is listened to: `get_reset_date` resets nothing. That is the first word, behind what several
tools begin with (`slack_delete_message`), or the last (`note_delete`).
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from dovetail.cli.linting.names import Definition, text_of
from dovetail.cli.linting.rules import Finding

CERTAINLY_LOSING = {
    *("delete", "destroy", "erase", "purge", "wipe", "kill", "terminate", "uninstall", "revoke", "unsubscribe"),
}
LOSING = CERTAINLY_LOSING | {"del", "xdel", "remove", "overwrite", "discard", "forget", "prune"}
LOSING_STORES = {"drop", "clear", "reset", "truncate", "empty", "flush"}  # if it is one of these that they are done to
STORES = {
    *("table", "database", "db", "collection", "index", "column", "schema", "data", "storage", "cache", "history"),
    *("memory", "queue", "cookie", "log", "trash", "bucket", "branch", "repository", "workspace", "disk", "all"),
}
READING = {"get", "list", "search", "find", "read", "fetch", "describe", "count", "lookup"}
NOT_ONLY_READING = {"or", "replace", "create", "update", "index", "store", "save"}  # get_or_create, find_and_replace
OTHER_VERBS = {  # before which a last word is no verb: cancel_delete, set_auto_kill
    *("set", "enable", "disable", "toggle", "allow", "schedule", "plan", "preview", "confirm", "cancel", "undo"),
    *("is", "can", "has", "check", "create", "add", "update"),
}
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def findings_of_hints(tools: Sequence[Definition], server: str) -> Iterator[Finding]:
    names = [words_of(text_of(tool, "name")) for tool in tools]
    prefixes = _prefixes(names, words_of(server))
    for tool, words in zip(tools, names, strict=True):
        while len(words) > 1 and words[0] in prefixes:
            words = words[1:]
        yield from _compared(tool, words)


def words_of(name: str) -> list[str]:
    """`noteDelete` and `note_delete` have the same two."""
    return [word.lower() for word in _WORDS.findall(name)]


def _prefixes(names: Iterable[Sequence[str]], server: Iterable[str]) -> set[str]:
    """What says whose tool it is, and not what it does."""
    first = Counter(words[0] for words in names if words)
    shared = {word for word, count in first.items() if count > 1}
    return shared.union(server) - LOSING - LOSING_STORES - READING - OTHER_VERBS


def _compared(tool: Definition, words: Sequence[str]) -> Iterator[Finding]:
    place, given = f"tool {text_of(tool, 'name') or '?'}", tool.get("annotations")
    hints = given if isinstance(given, Mapping) else {}
    is_read_only, is_destructive = hints.get("readOnlyHint"), hints.get("destructiveHint")
    losing = losing_word(words)
    if is_read_only is True and is_destructive is True:
        yield Finding("hint-contradiction", place, "readOnlyHint and destructiveHint")
    elif is_read_only is True and losing in CERTAINLY_LOSING:
        yield Finding("hint-contradiction", place, f"readOnlyHint, and the word {losing}")
    elif losing and is_read_only is not True and is_destructive is None:
        yield Finding("hint-destructive", place, losing)
    elif is_read_only is None and is_destructive is None and only_reads(words):
        yield Finding("hint-read-only", place)


def losing_word(words: Sequence[str]) -> str:
    """The verb by which something is lost; nothing if there is none."""
    if not words:
        return ""
    first, last = words[0], words[-1]
    if _loses(first, words[1:]):
        return first
    has_other_verb = first in READING or first in OTHER_VERBS
    return last if not has_other_verb and _loses(last, words[:-1]) else ""


def _loses(verb: str, things: Collection[str]) -> bool:
    if verb in LOSING_STORES:
        is_of_store = any(thing in STORES or thing.removesuffix("s") in STORES for thing in things)
        return is_of_store or (not things and verb != "drop")  # a browser drops what it has dragged
    return verb in LOSING


def only_reads(words: Sequence[str]) -> bool:
    return bool(words) and words[0] in READING and not NOT_ONLY_READING.intersection(words)
