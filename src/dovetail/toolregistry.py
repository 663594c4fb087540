"""`ToolRegistry`: the catalogue of tools on its own, for people who like explicit calls."""

import inspect
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import msgspec

from dovetail.engine.core import INJECTABLE
from dovetail.errors import SetupError
from dovetail.protocol.cursors import decode_cursor, encode_cursor
from dovetail.registry.catalog import Catalog
from dovetail.registry.invocation import called
from dovetail.registry.options import checked_options
from dovetail.registry.tools import Tool, ToolOptions, ToolTraits, compile_tool

NAMES = {"handler", *ToolOptions.__optional_keys__}
KEYS = {re.sub("_(.)", lambda found: found[1].upper(), name): name for name in NAMES}  # as TypeScript writes them


class ToolPage(msgspec.Struct, frozen=True):
    """Some tools, and the cursor of the next page (None at the end)."""

    tools: list[Tool]
    next_cursor: str | None


class ToolRegistry:
    """Register tools by hand, list them in pages, hear of changes; `Server(tools=registry)` serves them."""

    def __init__(self) -> None:
        self.catalog: Catalog[Tool] = Catalog("tool")
        self._secret = os.urandom(32)

    def register_tool(
        self,
        name: str | Mapping[str, Any],
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        handler: Callable[..., Any] | None = None,
        **traits: Unpack[ToolTraits],
    ) -> Tool:
        """Register a tool by its parts, or by one mapping of them: `name`, `inputSchema`, `handler` and so on.

        The handler takes the arguments as one dict, or each by its name.
        """
        if isinstance(name, Mapping):
            given = checked_options(name, KEYS, f"tool {name.get('name')}", {})
            return self.register_tool(**{"name": "", **{KEYS[key]: part for key, part in given.items()}}, **traits)
        checked_options(traits, NAMES, f"tool {name}", {})
        if handler is None or not input_schema:
            part = "handler" if input_schema else "input_schema"
            raise SetupError(f'tool {name}: {part} is missing; a tool without arguments has {{"type": "object"}}')
        options: Any = {**traits, "name": name, "description": description, "input_schema": input_schema}
        if "output_schema" not in traits:  # what is not declared here is not guessed from the handler's annotation
            options.setdefault("output", "text")
        tool = compile_tool(handler, options, injectable=INJECTABLE)
        self.catalog.add(tool.name, tool, where=called(handler))
        return tool

    def unregister_tool(self, name: str) -> bool:
        return self.catalog.remove(name)

    def get_tool(self, name: str) -> Tool | None:
        return self.catalog.get(name)

    def has_tool(self, name: str) -> bool:
        return self.catalog.get(name) is not None

    def get_all_tools(self) -> list[Tool]:
        return self.catalog.all()

    def clear(self) -> None:
        self.catalog.clear()

    def list_tools(self, cursor: str | None = None, page_size: int = 50) -> ToolPage:
        """A page of tools in the order of registration; raises ProtocolError for a cursor that is not ours."""
        now = time.time()
        after = decode_cursor(cursor, scope="tools", keys=(self._secret,), now=now)
        page = self.catalog.page(after, max(1, page_size))
        following = page.next_after
        encoded = None if following is None else encode_cursor(following, scope="tools", key=self._secret, now=now)
        return ToolPage(page.items, encoded)

    def on_tools_changed(self, listener: Callable[[], object]) -> None:
        """Call a plain function after each change. One that raises is logged, and harms nobody else."""
        if inspect.iscoroutinefunction(listener) or not callable(listener):
            raise SetupError(f"on_tools_changed: {listener!r} is no plain function; give it a def without arguments")
        self.catalog.on_change(listener)

    def off_tools_changed(self, listener: Callable[[], object]) -> None:
        self.catalog.off_change(listener)
