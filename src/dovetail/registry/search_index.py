"""Search index of tools: BM25 over names, titles, tags, argument names and descriptions, with a stemmer."""

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from heapq import nlargest
from itertools import islice

from dovetail.protocol.types import ToolDefinition, tags_of

K1, B = 1.2, 0.6  # of BM25: how soon more of a word counts less, and how much less a word of a long text counts
# How much a word counts in each part of a tool: its name says most, and many tools share their arguments.
NAME, TITLE, TAG, ARGUMENT, DESCRIPTION = 4.0, 2.0, 2.0, 0.5, 1.0
MAX_TEXT, MAX_TERMS = 4_000, 200  # characters and terms of one part of a tool
MAX_QUERY, MAX_QUERY_TERMS = 400, 32  # characters and terms of a query
COMMON = 100  # tools: a term of more of them ranks what rarer ones have found; alone it finds its best tools

_words = re.compile(r"[^\W_]{1,40}").findall  # longer ones in pieces, so that the cache of words is bounded
_humps = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+").findall  # the parts of a camelCase word
_is_unspaced = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]").search

_STOP_WORDS = """
    a about all also am an and any are as at be been but by can could did do does for from had has have how i if in
    into is it its just let like may me might must my need of on or our out over please s shall should so some t than
    that the their them then there these they this those to too up us use used uses using ve want was we were what when
    where which who why will with would you your
"""
# Words that APIs use for one another. A term for their group is indexed beside each of them.
_SYNONYMS = """
    create add make new insert register, delete remove erase drop destroy discard clear,
    get fetch read show view retrieve load display list browse, find search query lookup look filter,
    update change edit modify set alter adjust rename replace, send post publish submit deliver reply message,
    run execute start launch invoke trigger perform, stop cancel abort end halt kill terminate close,
    copy duplicate clone, move transfer, save store upload write,
    picture image photo screenshot, folder directory, file document, people person user member account contact,
    ticket issue bug task, repository repo, meeting event appointment calendar, mail email, bill invoice,
    website site page url link web, client customer
"""

# Endings, and what is put in their place; a word keeps an ending that leaves too little of it.
_ENDINGS = {
    "ification": "ifi", "iption": "ib", "ation": "", "ating": "", "ator": "", "ated": "", "ment": "", "ing": "",
    "ion": "", "ate": "", "ed": "",
}  # fmt: skip
_MIN_STEM = 3
_VOWELS = frozenset("aeiouy")


def stem(word: str) -> str:
    """What the forms of an English word have in common: `cre` of creates, created, creating, creation, creator."""
    if len(word) <= _MIN_STEM or not (word.isascii() and word.isalpha()):
        return word
    word = _singular(word)
    for ending, rest in _ENDINGS.items():
        start = word.removesuffix(ending)
        if start != word and len(start) >= _MIN_STEM and not _VOWELS.isdisjoint(start):
            word = start + rest
            break
    if len(word) > _MIN_STEM:
        word = word.removesuffix("e")
    if len(word) > _MIN_STEM and word[-1] == word[-2] and word[-1] not in _VOWELS:
        return word[:-1]
    return word[:-1] + "i" if len(word) > _MIN_STEM and word.endswith("y") else word


def _singular(word: str) -> str:
    if not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("sses", "xes", "zes", "ches", "shes")) else word[:-1]


_STOPPED = frozenset(_STOP_WORDS.split())
_GROUPS = {stem(word): f"={group.split()[0]}" for group in _SYNONYMS.split(",") for word in group.split()}


@lru_cache(maxsize=10_000)
def _terms_of(word: str) -> tuple[str, ...]:
    """The terms of one word: its stem, the group of its synonyms, and those of its parts if it is camelCase."""
    whole = word.casefold()
    if _is_unspaced(word):  # a script that puts no blanks between words: each two characters
        return tuple(whole[start : start + 2] for start in range(max(1, len(whole) - 1)))
    humps = [hump.lower() for hump in _humps(word)] if word.isascii() else []
    parts = [whole, *humps] if len(humps) > 1 else [whole]
    stems = [stem(part) for part in parts if part not in _STOPPED]
    return tuple(dict.fromkeys([*stems, *(_GROUPS[each] for each in stems if each in _GROUPS)]))


def terms(text: str) -> Iterator[str]:
    """The terms of a text, which are indexed and looked up: without upper case, accents, stop words and endings."""
    if not text.isascii():
        bare = (each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))
        text = unicodedata.normalize("NFC", "".join(bare))
    for word in _words(text):
        yield from _terms_of(word)


class SearchIndex:
    """Ranks tools. All scores are computed beforehand: a search adds up those of its terms, and sees no tool."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        weights = [_weights(tool) for tool in tools]
        lengths = [sum(each.values()) for each in weights]
        average = sum(lengths) / max(1, len(tools)) or 1.0
        found: dict[str, dict[int, float]] = defaultdict(dict)
        for number, each in enumerate(weights):
            slack = K1 * (1 - B + B * lengths[number] / average)
            for term, weight in each.items():
                found[term][number] = weight / (weight + slack)
        self._scores = {term: _ranked(parts, len(tools)) for term, parts in found.items()}  # by term and tool

    def search(self, query: str, limit: int) -> list[int]:
        """The positions of the best tools, the best first."""
        wanted = dict.fromkeys(islice(terms(query[:MAX_QUERY]), MAX_QUERY_TERMS))
        ranking: dict[int, float] = {}
        for scores in sorted((self._scores[term] for term in wanted if term in self._scores), key=len):
            if len(scores) > COMMON and len(ranking) >= limit:
                for number in ranking:
                    ranking[number] += scores.get(number, 0.0)
                continue
            for number, score in islice(scores.items(), COMMON):
                ranking[number] = ranking.get(number, 0.0) + score
        return nlargest(limit, ranking, key=ranking.__getitem__)


def _weights(tool: ToolDefinition) -> dict[str, float]:
    """How much each term counts in a tool."""
    arguments = tool.input_schema.get("properties")
    parts = (
        (NAME, tool.name),
        (TITLE, tool.title or ""),
        (TAG, " ".join(sorted(tags_of(tool)))),
        (ARGUMENT, " ".join(arguments) if isinstance(arguments, dict) else ""),
        (DESCRIPTION, tool.description or ""),
    )
    weights: dict[str, float] = {}
    for weight, text in parts:
        for term in islice(terms(text[:MAX_TEXT]), MAX_TERMS):
            weights[term] = weights.get(term, 0.0) + weight
    return weights


def _ranked(parts: dict[int, float], count: int) -> dict[int, float]:
    """The scores of one term, the highest first if there are many: then the others are not looked at."""
    rarity = math.log(1 + (count - len(parts) + 0.5) / (len(parts) + 0.5))
    order = sorted(parts, key=parts.__getitem__, reverse=True) if len(parts) > COMMON else parts
    return {number: rarity * parts[number] for number in order}
