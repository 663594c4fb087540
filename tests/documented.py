"""The documentation's programs for tests: as modules, and as servers that are reached over HTTP."""

import importlib.util
import logging
import os
import runpy
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from dovetail import HttpApp, transports
from dovetail.engine.engine import Engine
from dovetail.transports.http.options import HttpOptions
from http_serving import listening

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLLOWED = [ROOT / "docs" / "quickstart.md"]  # pages that tests/test_learning.py follows to the letter
PROGRAMS = {path.stem: path for path in sorted((ROOT / "docs" / "programs").glob("*.py"))}
REVISIONS = ("2025-11-25", "2026-07-28")  # one of each era; what the others change is shown in revisions.md
SECRETS = {"NOTES_SECRET": "secret-of-the-notes", "NIGHTLY_SECRET": "secret-of-the-night"}  # that programs read
PROVIDERS = ("GITHUB", "GOOGLE", "ENTRA", "FORGE")  # where programs are registered

os.environ.update(SECRETS)
os.environ.update(
    {f"{name}_CLIENT_{part}": f"{part.lower()}-at-{name.lower()}" for name in PROVIDERS for part in ("ID", "SECRET")}
)


def load(name: str) -> ModuleType:
    """A program as a fresh module. Some web frameworks set up the log of the whole process: not here."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    spec = importlib.util.spec_from_file_location(f"docs_program_{name}", PROGRAMS[name])
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    return module


@asynccontextmanager
async def served(name: str) -> AsyncIterator[str]:
    """A program at a free port, with the options that it runs with; gives the URL of its root."""
    found: list[tuple[HttpApp, HttpOptions]] = []

    def remember(engine: Engine, options: HttpOptions, *, owner: Any) -> None:
        options = msgspec.structs.replace(options, port=0, drain_delay=0.0)
        found.append((HttpApp(engine, options, owner=owner, bound_to=options.host), options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transports.serve, "serve_http", remember)
        runpy.run_path(str(PROGRAMS[name]), run_name="__main__")
    async with listening(*found[0]) as url:
        yield url.replace("0.0.0.0", "127.0.0.1")
