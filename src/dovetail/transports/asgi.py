"""The words of ASGI, and the headers of a request as a mapping."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]  # a Message, but hosts have types of their own for it
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]


def is_below(path: str, root: str) -> bool:
    """Whether a path is `root` or something below it."""
    return path == root or path.startswith(f"{root}/")


class Headers(Mapping[str, str]):
    """Names in lower case, values as latin-1 text, without the blanks around; what nobody asks for is not decoded.

    Of a header that came twice this shows the last; `repeated` tells which those are.
    """

    __slots__ = ("_raw", "_values")

    def __init__(self, raw: RawHeaders) -> None:
        self._raw = raw
        self._values: dict[bytes, bytes] = dict(raw)

    def __getitem__(self, name: str) -> str:
        return _text(self._values[name.encode("latin-1")])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.encode("latin-1", "replace") in self._values

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, name: str, default: Any = None) -> Any:
        value = self._values.get(name.encode("latin-1", "replace"))
        return default if value is None else _text(value)

    def all(self, name: str) -> list[str]:
        """Every value of a header that may come more than once."""
        wanted = name.encode("latin-1", "replace")
        return [_text(value) for key, value in self._raw if key == wanted]

    @property
    def repeated(self) -> frozenset[str]:
        if len(self._raw) == len(self._values):
            return frozenset()
        seen: set[bytes] = set()
        twice = {name for name, _ in self._raw if name in seen or seen.add(name)}  # type: ignore[func-returns-value]
        return frozenset(name.decode("latin-1") for name in twice)


def _text(value: bytes) -> str:
    return value.strip(b" \t").decode("latin-1")
