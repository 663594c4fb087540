"""URI templates (RFC 6570, all levels) and how they match URIs; valid and normalized URIs (RFC 3986).

A URI matches if it is an expansion of the template, but for the spelling of escapes and the order of named parameters:

    {x} {x,y}         one character or more up to the next `/`, `?` or `#`; never a `/`, also not as `%2F`
    {+x} {#x}         one character or more, `/` included; it ends at a `?` or `#` that follows in the template
    {.x}              a label: like {x}, and without `.`
    {/x}              one segment: like {x}
    {x*} {.x*} {/x*}  a list of one item or more, none empty; items of {/x*} may hold `%2F`; or see `wholes`
    {;x} {?x} {&x}    named, any text; they may come in any order, or be missing, but no others may be there
    {;x*} {?x*} {&x*} a list: the name `x` may be repeated

Reserved characters that need no escape in their place (`bob@example.org`) may be unescaped, unless the template itself
uses them after the variable: in `{lat},{lon}` a comma ends `lat`.

Two variables need a literal character between them that the first one can't hold; the last two may also have one that
only the last can't hold (`{+path}/{name}`). So a URI has one reading, and matching takes linear time.
"""

import re
import string
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import combinations, product
from typing import NamedTuple
from urllib.parse import quote, unquote

from dovetail.errors import SetupError
from dovetail.protocol.types import MAX_URI_LENGTH

Value = str | list[str]

_RESERVED_TEXT = ":/?#[]@!$&'()*+,;="
RESERVED = frozenset(_RESERVED_TEXT)
UNRESERVED = frozenset(string.ascii_letters + string.digits + "-._~")
SEGMENT = UNRESERVED | frozenset("!$&'()*+,;=:@%")  # raw in a path segment; % begins an escape
EVERYTHING = UNRESERVED | RESERVED | {"%"}
MAX_MATCHABLE = 1_000  # characters; the search for a URI that fits two templates is quadratic
HOST_SCHEMES = ("http:", "https:", "ws:", "wss:", "ftp:", "file:")  # elsewhere case counts: notes://Ada is a name


class Operator(NamedTuple):
    """One row of the table in RFC 6570, appendix A, and the characters that a value may hold."""

    first: str
    separator: str
    named: bool
    empty: str  # what follows the name of an empty value
    keeps_reserved: bool  # also unescaped
    holds: frozenset[str]


OPERATORS = {
    "": Operator("", ",", False, "", False, SEGMENT),
    "+": Operator("", ",", False, "", True, EVERYTHING),
    "#": Operator("#", ",", False, "", True, EVERYTHING),
    ".": Operator(".", ".", False, "", False, SEGMENT - {"."}),
    "/": Operator("/", "/", False, "", False, SEGMENT),
    ";": Operator(";", ";", True, "", False, SEGMENT),
    "?": Operator("?", "&", True, "=", False, SEGMENT | {"/", "?"}),
    "&": Operator("&", "&", True, "=", False, SEGMENT | {"/", "?"}),
}

_PART = re.compile(r"\{([^{}]*)\}|([^{}]+)|[{}]")
_NAME = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*"
_VARIABLE = re.compile(rf"({_NAME})(?::([1-9][0-9]{{0,3}})|(\*))?")
_NOT_LITERAL = re.compile(r'[\x00-\x20\x7f"<>\\^`|]|%(?![0-9A-Fa-f]{2})')
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_ESCAPE_OR_TEXT = re.compile(r"(%[0-9A-Fa-f]{2})|%|[^%]+")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-F]{2})")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_EXPRESSION = re.compile(r"\{[^{}]*\}")
_START = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)(//[^/?#]*)?([^?#]*)")  # scheme, authority, path
_PLAIN = re.compile(r"[a-z][a-z0-9+.-]*:[!-$&-~]*")  # a small scheme, and ASCII without escapes
_DOT_SEGMENT = re.compile(r"(?:[/:]|\A)\.\.?(?:/|\Z)")

_LEGAL = r"""(?:[^\s\x00-\x20\x7f-\x9f\u200e\u200f\u202a-\u202e\ud800-\udfff"<>\\^`{|}%/?#\[\]]|%[0-9A-Fa-f]{2})"""
_URI = re.compile(
    rf"[A-Za-z][A-Za-z0-9+.\-]*+:(?://(?:{_LEGAL}|[\[\]])*+)?"
    rf"(?:{_LEGAL}|/)*+(?:\?(?:{_LEGAL}|[/?])*+)?(?:\#(?:{_LEGAL}|[/?])*+)?"
)


def is_template(text: str) -> bool:
    """Whether the text is a template: braces are legal in templates only."""
    return "{" in text or "}" in text


def valid_uri(text: str, *, max_length: int = MAX_URI_LENGTH) -> bool:
    """Whether the text is a URI with a scheme; other scripts may be unescaped, spaces and controls may not."""
    return len(text) <= max_length and _URI.fullmatch(text) is not None


class Variable(NamedTuple):
    name: str
    prefix: int | None
    exploded: bool


class Expression(NamedTuple):
    operator: Operator
    variables: tuple[Variable, ...]


class UriTemplate:
    """A parsed template; `check_matchable` raises unless it can match.

    A variable of `wholes` is a text and no list: {x*} matches what {+x} does.
    """

    def __init__(self, text: str, wholes: Collection[str] = ()) -> None:
        self.text = text
        self.wholes = wholes
        self._parts = tuple(_as_whole(part, wholes) for part in _parse(text))
        self.lead = (
            _with_lowercase_host(normalize_escapes(first))
            if self._parts and isinstance(first := self._parts[0], str)
            else ""
        )
        self.literal_length = sum(len(normalize_escapes(part)) for part in self._parts if isinstance(part, str))
        expressions = [part for part in self._parts if isinstance(part, Expression)]
        found = [(variable, part.operator.named) for part in expressions for variable in part.variables]
        self.variables = tuple(dict.fromkeys(variable.name for variable, _ in found))
        self.optional = frozenset(variable.name for variable, named in found if named)  # a URI may omit them
        self.exploded = frozenset(variable.name for variable, _ in found if variable.exploded)  # never single values

    def __repr__(self) -> str:
        return f"UriTemplate({self.text!r})"

    def match_normal(self, text: str) -> dict[str, Value] | None:
        """The values in a URI that is normalized already, or None; takes linear time."""
        if not text.startswith(self.lead):
            return None
        pattern, readers = self._matcher
        found = pattern.fullmatch(text)
        if found is None:
            return None
        values: dict[str, Value] = {}
        for reader, part in zip(readers, found.groups(), strict=True):
            if part is not None:
                read = reader.read(part)
                if read is None:
                    return None
                values.update(read)
        return values

    def check_matchable(self) -> None:
        """Raises SetupError unless every URI has exactly one reading."""
        _ = self._matcher

    def overlaps(self, other: "UriTemplate") -> bool:
        """Whether some URI could match both, if their variables were all strings."""
        row, other_row = self._row, other._row
        stack = [(-1, -1)]
        seen = set(stack)
        while stack:
            place, other_place = stack.pop()
            for step in product(_following(row, place), _following(other_row, other_place)):
                if step in seen or row[step[0]].holds.isdisjoint(other_row[step[1]].holds):
                    continue
                if row[step[0]] is END:
                    return True
                seen.add(step)
                stack.append(step)
        return False

    @cached_property
    def _row(self) -> Sequence["Cell"]:
        parts = (self.lead, *self._parts[1:]) if self.lead else self._parts
        return [*_row(parts), END]

    @cached_property
    def _matcher(self) -> tuple[re.Pattern[str], tuple["_Positional | _Named", ...]]:
        """The pattern of the template, and a reader for each of its groups."""
        expressions = [part for part in self._parts if isinstance(part, Expression)]
        problem = _unreadable(self.text, expressions) or _ambiguous(self._row)
        if problem:
            raise SetupError(f"URIs can't be matched with the template {self.text!r}: {problem}.")
        readers = tuple(reader for expression in expressions for reader in _readers(expression))
        return re.compile("".join(cell.pattern for cell in self._row)), readers


def _parse(text: str) -> Iterator[str | Expression]:
    for found in _PART.finditer(text):
        inside, literal = found.groups()
        if inside is not None:
            yield _parse_expression(text, inside)
        elif literal is None:
            raise _malformed(text, f"there is a lone {found[0]!r} in it", "pair the braces or write %7B and %7D")
        else:
            wrong = _NOT_LITERAL.search(literal)
            if wrong:
                raise _malformed(text, f"{wrong[0]!r} may not stand in a URI", f"write {quote(wrong[0], safe='')}")
            yield _ESCAPE_OR_TEXT.sub(lambda each: each[1] or quote(each[0], safe=_RESERVED_TEXT), literal)


def _as_whole(part: str | Expression, wholes: Collection[str]) -> str | Expression:
    if isinstance(part, Expression) and part.operator is OPERATORS[""] and len(part.variables) == 1:
        (variable,) = part.variables
        if variable.exploded and variable.name in wholes:
            return Expression(OPERATORS["+"], (variable._replace(exploded=False),))
    return part


def _parse_expression(text: str, inside: str) -> Expression:
    if inside[:1] in tuple("=,!@|"):
        raise _malformed(text, f"the operator {inside[0]!r} has no meaning", "use one of + # . / ; ? & or none")
    operator = inside[:1] if inside[:1] in OPERATORS else ""
    variables = []
    for item in inside.removeprefix(operator).split(","):
        found = _VARIABLE.fullmatch(item)
        if found is None:
            fix = "use letters, digits, _ and dots, then `*` or `:` and a length below 10000, if wanted"
            raise _malformed(text, f"{item!r} in {{{inside}}} is not a variable", fix)
        variables.append(Variable(found[1], int(found[2]) if found[2] else None, found[3] is not None))
    return Expression(OPERATORS[operator], tuple(variables))


def _malformed(text: str, reason: str, fix: str) -> SetupError:
    return SetupError(f"The URI template {text!r} is malformed: {reason}; {fix}.")


def normalize_escapes(uri: str) -> str:
    """The text with escapes only where needed, in capitals, including other scripts and lone surrogates."""
    if "%" in uri:
        uri = _ESCAPE.sub(_normalize_escape, uri)
    return uri if uri.isascii() else _NOT_ASCII.sub(lambda found: quote(found[0], errors="surrogatepass"), uri)


def _normalize_escape(found: re.Match[str]) -> str:
    character = chr(int(found[0][1:], 16))
    return character if character in UNRESERVED else found[0].upper()


def normalize_uri(uri: str) -> str:
    """The one spelling of equal URIs (RFC 3986, 6.2.2): case of scheme and host, escapes, dot segments."""
    if "/." not in uri and _PLAIN.fullmatch(uri) and not uri.startswith(HOST_SCHEMES):  # nearly always
        return uri
    uri = _with_lowercase_host(normalize_escapes(uri))
    found = _START.match(uri)
    if found is None or "/." not in found[3]:
        return uri
    return uri[: found.start(3)] + _without_dot_segments(found[3]) + uri[found.end(3) :]


def _with_lowercase_host(text: str) -> str:
    """The text, a URI or the beginning of a template, with scheme and host in lower case."""
    found = _START.match(text)
    if found is None:
        return text
    scheme, authority = found[1].lower(), found[2] or ""
    if scheme in HOST_SCHEMES:
        user, at, host = authority.rpartition("@")
        authority = user + at + normalize_escapes(host.lower())
    return scheme + authority + text[found.start(3) :]


def _without_dot_segments(path: str) -> str:
    segments = path.split("/")
    kept: list[str] = []
    for segment in segments:
        if segment == "..":
            del kept[max(1, len(kept) - 1) :]
        elif segment != ".":
            kept.append(segment)
    return "/".join([*kept, ""] if segments[-1] in (".", "..") else kept)


def _decode(text: str) -> str | None:
    if "%" not in text:
        return text
    if _BAD_ESCAPE.search(text):
        return None
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return None


class _Positional(NamedTuple):
    """Decodes the text of one positional variable."""

    name: str
    separator: str  # "" for a single value
    takes_slash: bool

    def read(self, text: str) -> dict[str, Value] | None:
        if not self.takes_slash and "%2F" in text:
            return None
        if not self.separator:
            value = _decode(text)
            return None if value is None else {self.name: value}
        pieces = text.split(self.separator)
        items = [item for item in map(_decode, pieces) if item]
        return {self.name: items} if len(items) == len(pieces) else None


class _Named(NamedTuple):
    """Decodes the text of an expression with named variables."""

    operator: Operator
    variables: dict[str, Variable]

    def read(self, text: str) -> dict[str, Value] | None:
        values: dict[str, Value] = {}
        for pair in text.split(self.operator.separator):
            name, equals, raw = pair.partition("=")
            value = _decode(raw)
            wants_equals = raw != "" or self.operator.empty == "="
            if value is None or bool(equals) != wants_equals or not self._store(values, name, value):
                return None
        return values

    def _store(self, values: dict[str, Value], name: str, value: str) -> bool:
        variable = self.variables.get(name)
        if variable is None or (variable.name in values and not variable.exploded):
            return False
        if variable.exploded:
            items = values.setdefault(variable.name, [])
            assert isinstance(items, list)
            items.append(value)
        else:
            values[variable.name] = value
        return True


class Cell(NamedTuple):
    """A literal character, or the characters of a variable (or of all variables of a named expression)."""

    holds: frozenset[str]
    pattern: str  # its part of the regular expression
    owner: str = ""  # the variables; "" for a literal character
    skip: int = 0  # the length of the optional part that begins here


END = Cell(frozenset({""}), "")  # of the text


def _following(row: Sequence[Cell], place: int) -> Iterator[int]:
    """The cells that may hold the next character of a URI."""
    if place >= 0 and row[place].owner:
        yield place
    place += 1
    yield place
    while row[place].skip:
        place += row[place].skip
        yield place


def _literal(text: str, skip: int = 0) -> list[Cell]:
    return [Cell(frozenset(character), ("(?:" if skip else "") + re.escape(character), skip=skip) for character in text]


def _run(owner: str, holds: frozenset[str], after: str = "") -> Cell:
    return Cell(holds, f"([{re.escape(''.join(sorted(holds)))}]+){after}", owner)


def _row(parts: Sequence[str | Expression]) -> list[Cell]:
    """The cells of a template, built from its end: a run stops at the reserved characters that follow it."""
    row: list[Cell] = []
    stops: frozenset[str] = frozenset()
    for part in reversed(parts):
        if isinstance(part, str):
            cells = _literal(normalize_escapes(part))
            stops |= RESERVED.intersection(part)
        elif part.operator.named:
            operator, owner = part.operator, ", ".join(variable.name for variable in part.variables)
            holds = (operator.holds - stops) | {operator.separator, "="}
            cells = [*_literal(operator.first, skip=2), _run(owner, holds, after=")?")]
            stops |= {operator.first}
        else:
            cells = _positional_cells(part, stops)
            stops = RESERVED.intersection(part.operator.first)
        row[:0] = cells
    return row


def _positional_cells(expression: Expression, stops: frozenset[str]) -> list[Cell]:
    operator = expression.operator
    cells: list[Cell] = []
    for variable in reversed(expression.variables):
        ends = stops & {"?", "#"} if operator.keeps_reserved else stops
        holds = operator.holds - ends
        cells = [_run(variable.name, holds | {operator.separator} if variable.exploded else holds), *cells]
        cells = _literal(operator.separator) + cells
        stops = frozenset(operator.separator)
    return _literal(operator.first) + cells[1:]


def _unreadable(text: str, expressions: Sequence[Expression]) -> str | None:
    """The reason why no URI matches, or why a variable has no unique value even alone; None if neither applies."""
    if _DOT_SEGMENT.search(_EXPRESSION.sub("x", text)):
        return "a URI has no segments `.` and `..` any more when it is matched; leave them out"
    seen: set[str] = set()
    for operator, variables in expressions:
        for name, prefix, exploded in variables:
            if prefix is not None:
                return f"{name!r} keeps its first {prefix} characters only, so its value is lost; drop `:{prefix}`"
            if exploded and operator.keeps_reserved:
                return f"the items of {name!r} may hold the commas between them; drop `*` or use {{/{name}*}}"
            if name in seen:
                return f"{name!r} stands in it twice; use two names"
            seen.add(name)
    return None


def _ambiguous(row: Sequence[Cell]) -> str | None:
    if len(row) > MAX_MATCHABLE:
        return f"it is longer than {MAX_MATCHABLE} characters; shorten it"
    runs = [place for place, cell in enumerate(row) if cell.owner]
    for first, second in combinations(runs, 2):  # an optional part between them separates nothing
        literals = [cell for cell in row[first + 1 : second] if not cell.owner and not cell.skip]
        between = {each for cell in (*literals, row[second - 1]) if not cell.owner for each in cell.holds}
        is_last = not any(cell.owner or cell.skip for cell in row[second + 1 :]) and not row[second - 1].skip
        if between <= row[first].holds and not (is_last and between - row[second].holds):
            names = f"{row[first].owner!r} and {row[second].owner!r}"
            fix = "put a character between them that the first can't hold, such as '/' beside a plain {x}"
            return f"it is ambiguous in {names}; {fix}"
    for place in (place for place, cell in enumerate(row) if cell.skip):  # where an optional part begins
        others = [cell for cell in row[place + 1 :] if cell.skip]
        others += [row[after] for after in _following(row, place + 1) if after > place + 1]
        if any(row[place].holds & other.holds for other in others):
            return f"it is ambiguous in {row[place + 1].owner!r}; put no other {min(row[place].holds)!r} behind it"
    return None


def _readers(expression: Expression) -> Iterator[_Positional | _Named]:
    operator, variables = expression
    if operator.named:
        yield _Named(operator, {normalize_escapes(variable.name): variable for variable in variables})
        return
    for name, _, is_list in variables:
        takes_slash = operator.keeps_reserved or (operator.first == "/" and is_list)
        yield _Positional(name, operator.separator if is_list else "", takes_slash)
