"""Modules that are loaded at their first use; the `__init__` of their package lists them.

`registry.files.ServedFile(path)` after `from dovetail import registry` does what an import of `dovetail.registry.files`
inside a function would do, with the import at the top of the file. So a server starts with what every server needs.
"""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType


def lazy_modules(package: str, *modules: str) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package for these submodules. Python calls it once for each."""

    def load(name: str) -> ModuleType:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return load
