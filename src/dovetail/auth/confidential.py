"""Records that hold secrets: fields come in, and only those that are named harmless are ever shown."""

from typing import Any, ClassVar

import msgspec


class Confidential(msgspec.Struct, frozen=True):
    """Shows only its `harmless` fields, to `repr` as to `rich`, which does not ask `repr`."""

    harmless: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self.harmless]
