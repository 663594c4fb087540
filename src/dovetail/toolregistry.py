"""`ToolRegistry`: a catalog of tools on its own, filled by explicit calls."""

import inspect
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import msgspec

from dovetail.engine.context import Context
from dovetail.errors import SetupError
from dovetail.protocol.pagination import decode_cursor, encode_cursor
from dovetail.registry.catalog import Catalog
from dovetail.registry.functions import qualified_name
from dovetail.registry.registration import checked_options
from dovetail.registry.tools import CommonToolOptions, Tool, compile_tool

REQUIRED = ("name", "input_schema", "handler")
NAMES = {name: name for name in (*REQUIRED, "description", *sorted(CommonToolOptions.__optional_keys__))}
KEYS = {re.sub("_(.)", lambda found: found[1].upper(), name): name for name in NAMES} | {"_meta": "meta"}


class ToolPage(msgspec.Struct, frozen=True):
    """A page of tools, and the cursor of the next page (None at the end)."""

    tools: list[Tool]
    next_cursor: str | None


class ToolRegistry:
    """Register tools by hand, list them in pages, listen for changes; `Server(tools=registry)` serves them."""

    def __init__(self) -> None:
        self.catalog: Catalog[Tool] = Catalog("tool")
        self._secret = os.urandom(32)

    def register_tool(
        self,
        name: str | Mapping[str, Any],
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        handler: Callable[..., Any] | None = None,
        **traits: Unpack[CommonToolOptions],
    ) -> Tool:
        """Register a tool by its parts, or by one mapping with `name`, `inputSchema`, `handler` and so on.

        The handler takes the arguments as one dict, or each by its name.
        """
        given: dict[str, Any] = {"name": name, "description": description, "input_schema": input_schema}
        given, known = {**given, "handler": handler, **traits}, NAMES
        if isinstance(name, Mapping):
            if beside := [part for part in given if part != "name" and (part in traits or given[part] is not None)]:
                raise SetupError(f"tool {name.get('name')}: {', '.join(beside)} can't be given beside a mapping")
            given, known = {**name}, KEYS
        given = checked_options(given, known, f"tool {given.get('name')}", {})
        options: Any = {known[key]: part for key, part in given.items()}
        if missing := [key for key, part in known.items() if part in REQUIRED and not options.get(part)]:
            hint = "; no arguments: {'type': 'object'}" if known[missing[0]] == "input_schema" else ""
            raise SetupError(f"tool {given.get('name')}: {missing[0]} is missing{hint}")
        if "output_schema" not in options:  # the handler's annotation declares no output schema here
            options.setdefault("output", "text")
        tool = compile_tool(options.pop("handler"), options, injectable=Context)
        self.catalog.add(tool.name, tool, where=qualified_name(tool.handler))
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
        """A page of tools in the order of registration; raises ProtocolError for a cursor of another registry."""
        now = time.time()
        after = decode_cursor(cursor, scope="tools", keys=(self._secret,), now=now)
        page = self.catalog.page(after, max(1, page_size))
        if page.next_after is None:
            return ToolPage(page.items, None)
        return ToolPage(page.items, encode_cursor(page.next_after, scope="tools", key=self._secret, now=now))

    def on_tools_changed(self, listener: Callable[[], object]) -> None:
        """Call a plain function after each change. If it raises, that is logged and the other listeners still run."""
        if any(map(inspect.iscoroutinefunction, (listener, type(listener).__call__))) or not callable(listener):
            raise SetupError(f"on_tools_changed: {listener!r} is no plain function; give it a def without arguments")
        self.catalog.on_change(listener)

    def off_tools_changed(self, listener: Callable[[], object]) -> None:
        self.catalog.off_change(listener)
