"""Search index of tools: BM25F over names, titles, tags, argument names and descriptions, with a stemmer."""

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from heapq import nlargest
from itertools import chain, islice
from typing import Any

from dovetail.protocol.types import ToolDefinition, tags_of

K1, B = 2.0, 0.75  # of BM25F: how soon more of a word counts less, and how much less a word of a long part counts
# How much a word counts in each part of a tool, and how many words such a part has mostly. Its name says most, and
# among names the short one: `createIssue` is about issues, `createIssueTypeScheme` is not.
NAME, TITLE, TAG, ARGUMENT, DESCRIPTION, VALUES = (4.0, 4), (2.0, 6), (2.0, 2), (0.5, 8), (1.3, 20), (0.2, 40)
SYNONYM = 0.7  # how much it counts that a tool has another word of the same group
MAX_TEXT, MAX_TERMS = 4_000, 200  # characters and terms of one part of a tool
MAX_QUERY, MAX_QUERY_WORDS = 400, 32  # characters and words of a query
BEST, CANDIDATES = 40, 40  # tools that a term brings in, and those of them that are compared

_words = re.compile(r"[^\W_]{1,40}").findall  # longer ones in pieces, so that the cache of words is bounded
_humps = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+").findall  # the parts of a camelCase word
_is_unspaced = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]").search

_STOP_WORDS = """
    a about all also am an and any are as at be been but by can could did do does for from had has have how i if in
    into is it its just let like may me might must my need of on or our out over please s shall should so some t than
    that the their them then there these they this those to too up us use used uses using ve want was we were what
    where which who why will with would you your
"""
# Words that APIs and people use for one another. A term for each of their groups is indexed beside them.
_SYNONYMS = """
    create add make new insert register generate open, delete remove erase drop destroy discard clear wipe
    trash, get fetch read show view retrieve load display list browse see give tell, find search query lookup
    look filter locate discover, update change edit modify modification set alter adjust replace patch revise
    correct amend, send sent post publish submit deliver, reply answer respond response, run execute start
    launch invoke trigger perform begin evaluate, stop cancel abort end halt kill terminate close quit, copy
    duplicate clone fork, move transfer relocate, rename title name, save store write put, upload attach
    attachment, download export, choose select pick option, click press tap push hit, type enter input fill,
    merge combine join, connect link relate relation relationship associate association edge, accept approve
    confirm allow, reject decline dismiss deny refuse, check verify validate test inspect, compare diff
    difference, convert transform translate format, wait pause sleep delay, pay payment charge, buy purchase
    order, assign delegate give, sort order rank, archive hide, restore undo recover revert, watch monitor
    observe track follow, picture image photo screenshot capture snapshot, folder directory, file document,
    people person user member account profile, contact customer client, ticket issue bug task problem,
    repository repo project codebase, pull merge pr mr, meeting event appointment calendar, mail email inbox,
    message chat conversation thread discussion, comment remark note discussion feedback, reaction emoji like,
    website site page url web internet online, bill invoice receipt, place location address spot, direction
    route way navigation navigate path, elevation altitude height, distance far duration, nearby near around
    close local, several multiple many batch bulk, history log past changelog, dialog alert popup prompt box,
    notification alert reminder notify remind, size big large length, information info detail metadata property
    properties, content text body, error failure exception fault, key token secret credential password, database
    table sheet, column field attribute property, row record entry item, label tag category, status state
    condition, count number total amount, price cost rate, summary overview digest, graph network, group team,
    tree structure hierarchy, permission right access, weather forecast, article news story, remember memory
    memorize memorise recall knowledge, organization organisation company org business enterprise firm, entity
    node object concept thing, observation fact, scrape extract crawl parse, tab window, javascript script code,
    commit revision version, star bookmark favorite favourite, author contributor owner maintainer, channel
    room, coordinate geocode latitude longitude position gps, walk drive travel trip journey transit direction,
    restaurant cafe hotel shop business place, last latest recent newest tail, first head beginning start, time
    date when timestamp day hour, disk drive volume storage filesystem local, workflow pipeline build job,
    deploy release ship rollout, server machine instance host vm, statistic metric analytics stats, schedule
    plan cron, todo task checklist, deadline due, keyboard key shortcut, mouse cursor pointer hover, video movie
    film, audio sound music song, translate translation language, paragraph block section, space workspace,
    employee staff colleague coworker user, question ask, request call http network, quick fast, line lines,
    everything all whole complete full, map sitemap, go visit navigate, back previous return, warning error
    console
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
_GROUPS: dict[str, list[str]] = defaultdict(list)  # by stem
for _number, _group in enumerate(_SYNONYMS.split(",")):
    for _word in _group.split():
        _GROUPS[stem(_word)].append(f"={_number}")


@lru_cache(maxsize=10_000)
def _terms_of(word: str) -> tuple[tuple[str, ...], ...]:
    """The terms of a word, and of its parts if it is camelCase: for each its stem, and the groups of its synonyms."""
    whole = word.casefold()
    if _is_unspaced(word):  # a script that puts no blanks between words: each two characters
        return tuple((whole[start : start + 2],) for start in range(max(1, len(whole) - 1)))
    humps = [hump.lower() for hump in _humps(word)] if word.isascii() else []
    stems = [stem(part) for part in (whole, *(humps if len(humps) > 1 else ())) if part not in _STOPPED]
    return tuple((each, *_GROUPS.get(each, ())) for each in stems)


def words(text: str) -> Iterator[tuple[str, ...]]:
    """The terms of each word, which are indexed and looked up: without upper case, accents, stop words and endings."""
    if not text.isascii():
        bare = (each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))
        text = unicodedata.normalize("NFC", "".join(bare))
    return chain.from_iterable(map(_terms_of, _words(text)))


class SearchIndex:
    """Ranks tools. All scores are computed beforehand: a search adds up those of its terms, and sees no tool."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        weights = [_weights(tool) for tool in tools]
        found: dict[str, dict[int, float]] = defaultdict(dict)
        for number, each in enumerate(weights):
            for term, weight in each.items():
                found[term][number] = weight / (weight + K1)
        self._scores = {term: _ranked(parts, len(tools)) for term, parts in found.items()}  # by term and tool

    def search(self, query: str, limit: int) -> list[int]:
        """The positions of the best tools, the best first."""
        wanted = dict.fromkeys(islice(words(query[:MAX_QUERY]), MAX_QUERY_WORDS))
        found = [[self._scores[term] for term in terms if term in self._scores] for terms in wanted]
        rough: dict[int, float] = {}
        for scores in chain.from_iterable(found):
            for number, score in islice(scores.items(), BEST):
                rough[number] = rough.get(number, 0.0) + score
        exact = dict.fromkeys(nlargest(max(CANDIDATES, limit), rough, key=rough.__getitem__), 0.0)
        for number in exact:
            for postings in found:  # a word counts once: as it is, or as one of its synonyms
                best = 0.0
                for scores in postings:
                    if (score := scores.get(number, 0.0)) > best:
                        best = score
                exact[number] += best
        return nlargest(limit, exact, key=exact.__getitem__)


def _weights(tool: ToolDefinition) -> dict[str, float]:
    """How much each term counts in a tool."""
    arguments = tool.input_schema.get("properties")
    described = list(arguments.values()) if isinstance(arguments, dict) else []
    parts = (
        (NAME, tool.name),
        (TITLE, tool.title or ""),
        (TAG, " ".join(sorted(tags_of(tool)))),
        (ARGUMENT, " ".join(arguments) if isinstance(arguments, dict) else ""),
        (DESCRIPTION, tool.description or ""),
        (VALUES, " ".join(map(_said_of, described))),
    )
    weights: dict[str, float] = {}
    for part, text in parts:
        found = list(words(text[:MAX_TEXT]))
        terms = chain.from_iterable(found)
        weight = part[0] / (1 - B + B * len(found) / part[1])
        for term in islice(terms if part is not VALUES else dict.fromkeys(terms), MAX_TERMS):
            weights[term] = weights.get(term, 0.0) + (weight * SYNONYM if term[0] == "=" else weight)
    return weights


def _said_of(argument: Any) -> str:
    """The description of an argument, and the values that it may have."""
    if not isinstance(argument, dict):
        return ""
    values = [argument.get("description"), *(argument.get("enum") or ())]
    return " ".join(each for each in values if isinstance(each, str))


def _ranked(parts: dict[int, float], count: int) -> dict[int, float]:
    """The scores of one term, the highest first if there are many: then the others are not looked at."""
    rarity = math.log(1 + (count - len(parts) + 0.5) / (len(parts) + 0.5))
    order = sorted(parts, key=parts.__getitem__, reverse=True) if len(parts) > BEST else parts
    return {number: rarity * parts[number] for number in order}
