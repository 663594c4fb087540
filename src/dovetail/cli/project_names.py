"""The name of a folder comes in; a name for the project in it goes out, and one that no package has.

A project that is called like a package it needs would need itself, and nothing could be installed.
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

NEEDED = frozenset({"dovetail", "dovetail-mcp", "pytest", "pytest-asyncio", "ruff", "mypy"})  # by every project


def project_name(name: str) -> str:
    """As packages are called."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "server"


def free_name(name: str) -> str:
    """The same, or with `-server` behind it if there is such a package."""
    free = project_name(name)
    while _is_taken(free):
        free += "-server"
    return free


def _is_taken(name: str) -> bool:
    module = name.replace("-", "_")
    return name in NEEDED or module in sys.stdlib_module_names or _is_installed(name) or _is_importable(module)


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _is_importable(module: str) -> bool:
    """From where packages are installed; a folder that happens to be on the way is none."""
    spec = find_spec(module)
    return spec is not None and "site-packages" in (spec.origin or "")
