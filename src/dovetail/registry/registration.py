"""Options of registrations: their checks, access rules (`scopes=`, `authorize=`), rate limits, idempotency."""

import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence, Set
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import msgspec

from dovetail import registry
from dovetail.errors import SetupError
from dovetail.protocol.scopes import checked_scopes
from dovetail.protocol.types import IDEMPOTENCY_KEY, CacheScope, Icon, Meta

Given = TypeVar("Given", bound=Mapping[str, Any])
OutputPolicy = Literal["auto", "text", "structured", "both"]
UntrustedOutput = bool | Literal["fence"]
Authorize = Callable[[Any], bool | Awaitable[bool]]  # it gets the principal, or None if the caller is unknown


class CommonOptions(TypedDict, total=False):
    """Options of tools, resources and prompts."""

    title: str
    icons: Sequence[Icon | Mapping[str, Any]]
    tags: Sequence[str] | Set[str]
    meta: Meta
    timeout: float | None
    thread: bool
    scopes: Sequence[str]
    authorize: Authorize


MAX_WINDOW = 366 * 86_400.0  # seconds


class Idempotency(msgspec.Struct, frozen=True):
    """Calls of a tool may be repeated: for `window` seconds a second call with the same key gets the first's result."""

    window: float = 86_400.0

    def __post_init__(self) -> None:
        if type(self.window) not in (int, float) or not 0 < self.window <= MAX_WINDOW:
            raise SetupError(f"Idempotency(window={self.window!r}): it must be a number of seconds, up to a year")

    @property
    def mark(self) -> Meta:
        return {IDEMPOTENCY_KEY: {"windowSeconds": self.window}}


class Caching(msgspec.Struct, frozen=True):
    """Results of a tool are cached for some seconds: for each caller, or for all."""

    seconds: float
    shared: bool


Reuse = Idempotency | Caching


class TaskConfig(msgspec.Struct, frozen=True):
    """When calls of a tool become tasks, for clients that can have one; for the others they stay ordinary calls."""

    after: float | None = 0.0  # seconds; None: only where the function says `await ctx.detach()`
    mode: Literal["optional", "required"] = "optional"  # required: clients that can't have a task are refused
    timeout: float = 86_400.0  # seconds for the work of a task, without the time in which a client is asked
    ttl: float = 3_600.0  # seconds that the outcome is stored after the end
    poll_interval: float = 1.0  # seconds between two questions of a client for the state

    def __post_init__(self) -> None:
        for name, least in (("after", 0.0), ("timeout", 0.001), ("ttl", 1.0), ("poll_interval", 0.01)):
            value = getattr(self, name)
            is_number = type(value) in (int, float) and least <= value <= MAX_WINDOW
            if not is_number and not (name == "after" and value is None):
                words = f"a number of seconds, from {least:g} up to a year" + (", or None" if name == "after" else "")
                raise SetupError(f"TaskConfig({name}={value!r}): it must be {words}")
        if self.mode not in ("optional", "required"):
            raise SetupError(f'TaskConfig(mode={self.mode!r}): it must be "optional" or "required"')


class Kind(msgspec.Struct, frozen=True):
    """The values that an option may have: as a type, and in words."""

    type: Any
    words: str


TEXT = Kind(str, "a string")
SWITCH = Kind(bool, "True or False")
COUNT = Kind(Annotated[int, msgspec.Meta(ge=0)], "a whole number, 0 or more")
POSITIVE_COUNT = Kind(Annotated[int, msgspec.Meta(ge=1)], "a whole number, 1 or more")
SECONDS = Kind(Annotated[float, msgspec.Meta(gt=0)], "a number of seconds above 0")
LIMIT_SECONDS = Kind(Annotated[float, msgspec.Meta(gt=0)] | None, "a number of seconds above 0, or None for no limit")
NAMES = Kind(list[str], "a list of strings")
SCOPE = Kind(CacheScope, '"public" or "private"')
OUTPUT = Kind(OutputPolicy, '"auto", "text", "structured" or "both"')

KINDS = {
    **dict.fromkeys(("name", "title", "description", "mime_type"), TEXT),
    **dict.fromkeys(("tags", "requires", "unsafe"), NAMES),
    **dict.fromkeys(("thread", "structured_output", "cache_shared", "always_visible"), SWITCH),
    **dict.fromkeys(("size", "ttl_ms"), COUNT),
    "meta": Kind(dict[str, Any], "a dict with string keys"),
    "timeout": LIMIT_SECONDS,
    "max_concurrency": POSITIVE_COUNT,
    "output": OUTPUT,
    "untrusted_output": Kind(UntrustedOutput, 'True, False or "fence"'),
    "cache": SECONDS,
    "idempotency": Kind(bool | Idempotency, "True, False or Idempotency(window=…)"),
    "task": Kind(bool | TaskConfig, "True, False or TaskConfig(…)"),
    "max_result_bytes": Kind(Annotated[int, msgspec.Meta(ge=200)], "a whole number, 200 or more"),
    "cache_scope": SCOPE,
}


def checked_options(options: Given, known: Iterable[str], where: str, kinds: Mapping[str, Kind] = KINDS) -> Given:
    """The given options; None means "not given", unless None is a value of the option. Raises SetupError."""
    if unknown := sorted(set(options) - set(known)):
        names = ", ".join(name + did_you_mean(name, known) for name in unknown)
        raise SetupError(f"{where}: unknown options {names}; known are {', '.join(sorted(known))}")
    given = {}
    for name, value in options.items():
        kind = kinds.get(name)
        if kind is None or _fits(value, kind):
            given[name] = value
        elif value is not None:
            raise SetupError(f"{where}: {name}={value!r} is not possible; it must be {kind.words}")
    return given  # type: ignore[return-value]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint for the message about an unknown name: a similar known one, if there is one."""
    import difflib  # late: names are mostly right

    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _fits(value: Any, kind: Kind) -> bool:
    try:
        msgspec.convert(value, kind.type)
        msgspec.json.encode(value)  # or else no list that shows it could be sent
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError):
        return False
    return True


def from_official(value: Any) -> Any:
    """The value with our own types for those of the official package, which is loaded if there are any."""
    return registry.official.read(value) if "mcp_types" in sys.modules or "mcp.types" in sys.modules else value


def convert_option(value: Any, kind: Any, where: str, option: str) -> Any:
    """The option as a value of its type. Raises SetupError, also for unknown keys."""
    if value is None:
        return None
    try:
        plain = msgspec.to_builtins(from_official(value))
        converted = msgspec.convert(plain, kind)
    except (msgspec.ValidationError, TypeError) as failure:
        raise SetupError(f"{where}: {option}={value!r} is not right: {failure}") from None
    items = zip(plain, converted, strict=True) if isinstance(plain, list) else [(plain, converted)]
    for given, made in items:
        known = [field.encode_name for field in msgspec.structs.fields(made)]
        if unknown := sorted(set(given) - set(known)):
            raise SetupError(f"{where}: {option} has unknown keys {unknown}; known are {', '.join(known)}")
    return converted


class AccessRule(msgspec.Struct, frozen=True, eq=False):
    """A caller needs all `scopes`; then `authorize` has to agree too.

    `key` is `authorize.key` if the author set it: `authorize` decides the same for all callers with the same key.
    """

    scopes: frozenset[str] = frozenset()
    authorize: Authorize | None = None
    key: Callable[[Any], Hashable] | None = None


class AccessRules(msgspec.Struct, frozen=True, eq=False):
    """Several rules together: the scopes that any of them names, and the keys of their `authorize` functions."""

    scopes: frozenset[str]
    keys: tuple[Callable[[Any], Hashable], ...]
    has_keys: bool  # every `authorize` has one, so that scopes and keys decide what a caller may use

    @classmethod
    def combine(cls, rules: Iterable[AccessRule]) -> "AccessRules":
        rules = list(rules)
        with_function = [rule for rule in rules if rule.authorize is not None]
        return cls(
            scopes=frozenset().union(*(rule.scopes for rule in rules)),
            keys=tuple({id(rule.key): rule.key for rule in with_function if rule.key is not None}.values()),
            has_keys=all(rule.key is not None for rule in with_function),
        )


def access_rule(options: CommonOptions, where: str) -> AccessRule | None:
    """The rule of these options; None if every caller is allowed. Raises SetupError."""
    required = options.get("scopes")
    scopes = frozenset[str]() if required is None else checked_scopes(required, where)
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
    """Raises SetupError unless the option can be called with a principal."""
    if not callable(given):
        raise SetupError(f"{where}: {option}={given!r} is not callable; give it a function of the principal")
    try:
        signature = inspect.signature(given)
    except (ValueError, TypeError):  # some builtins have none
        return
    try:
        signature.bind(None)
    except TypeError as problem:
        fix = "let it take one argument, the principal (None if the caller is unknown)"
        raise SetupError(f"{where}: {option}={given!r} can't be called: {problem}; {fix}") from None


Unit = Literal["second", "minute", "hour", "day"]
Per = Literal["all", "principal", "address"]

UNIT_SECONDS: dict[Unit, int] = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
_PER_WORDS = {"all": "from all callers together", "principal": "from each caller", "address": "from each address"}
_RATE = re.compile(rf"([1-9][0-9]{{0,8}})/({'|'.join(UNIT_SECONDS)})(?: per (principal|address))?", re.ASCII)
_RATE_FIX = (
    'write it as "60/minute": a whole number from 1, a slash, and second, minute, hour or day, '
    'with " per principal" or " per address" behind it if each has a limit of its own'
)


class Rate(msgspec.Struct, frozen=True):
    """A number of calls per second, minute, hour or day, for all callers together or for each."""

    count: int
    unit: Unit
    per: Per = "all"

    @property
    def seconds(self) -> int:
        return UNIT_SECONDS[self.unit]

    def words(self, noun: str) -> str:
        return f"{self.count} {noun}{'' if self.count == 1 else 's'} per {self.unit} {_PER_WORDS[self.per]}"


def parse_rates(given: str | Sequence[str] | None, where: str) -> tuple[Rate, ...]:
    """The rates of an option: one, or several that all apply. Raises SetupError."""
    if given is None:
        return ()
    if not isinstance(given, (str, list, tuple)):
        raise SetupError(f"{where}: rate_limit={given!r} is not possible; {_RATE_FIX}, or a list of such strings")
    rates = []
    for text in [given] if isinstance(given, str) else given:
        match = _RATE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise SetupError(f"{where}: rate_limit={text!r} is not possible; {_RATE_FIX}")
        count, unit, per = match.groups(default="all")
        rates.append(msgspec.convert({"count": int(count), "unit": unit, "per": per}, Rate))
    if len({(rate.unit, rate.per) for rate in rates}) < len(rates):
        raise SetupError(f"{where}: rate_limit={given!r} limits the same thing twice; keep the lower one")
    return tuple(rates)
