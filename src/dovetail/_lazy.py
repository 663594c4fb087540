"""Modules that are loaded when they are first used: a folder's `__init__` names them, and nobody else does.

`registry.files.File(path)` after `from dovetail import registry` is what an import of `dovetail.registry.files` inside
a function would be, but stands where all imports stand. So a server pays at its start for what every server needs.
"""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType


def lazy_modules(package: str, *modules: str) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package that offers these modules of its own. Python asks it once for each."""

    def load(name: str) -> ModuleType:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return load
