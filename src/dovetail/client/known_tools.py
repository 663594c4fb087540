"""The tools of a server as they were listed last: a name comes in, its definition goes out.

One listing is enough for all who need it at the same time; nothing that was listed before a change is used after it.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from dovetail.client.channel import Channel, Seconds
from dovetail.client.results import ListPage
from dovetail.errors import DovetailError, ServerError, SetupError
from dovetail.protocol.headers import HeaderParameter, header_parameters
from dovetail.protocol.types import WRAPPED_KEY, ToolDefinition

TOOLS = ("tools/list", "tools", ToolDefinition)
MAX_LISTINGS = 5  # of tools that change while they are listed
FASTMCP_WRAPS = "x-fastmcp-wrap-result"  # in an output schema; FastMCP wraps in every revision

log = logging.getLogger("dovetail.client")


class KnownTools:
    """What is known of the tools of one server. It begins with nothing whenever something has changed."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._tools: dict[str, ToolDefinition] = {}
        self._unlisted: set[str] = set()  # names that were looked for in vain
        self._listing: _Listing | None = None
        self._changes = 0

    def forget(self) -> None:
        self._tools = {}
        self._unlisted = set()
        self._listing = None  # it goes on for those who wait for it, but is too old for others

    def changed(self) -> None:
        """A listing that is under way may be older than that."""
        self._changes += 1
        self.forget()

    async def listed(self, *, fresh: bool, timeout: Seconds) -> list[ToolDefinition]:
        changes = self._changes
        tools, mirrored = self._usable(await self._channel.pages(*TOOLS, fresh=fresh, timeout=timeout))
        if self._channel.mirrored is not None:
            self._channel.mirrored.clear()
            self._channel.mirrored.update(mirrored)
        if changes == self._changes:
            self._tools = {tool.name: tool for tool in tools}
        return tools

    async def page(self, cursor: str | None, *, fresh: bool, timeout: Seconds) -> ListPage[ToolDefinition]:
        page = await self._channel.page(*TOOLS, cursor, fresh=fresh, timeout=timeout)
        return ListPage(self._usable(page.items)[0], page.next_cursor)

    def _usable(
        self, tools: Sequence[ToolDefinition]
    ) -> tuple[list[ToolDefinition], dict[str, tuple[HeaderParameter, ...]]]:
        """Without those that nobody can call over HTTP, because their headers can't work; and those headers."""
        if self._channel.mirrored is None:
            return [*tools], {}
        usable, mirrored = [], {}
        for tool in tools:
            try:
                mirrored[tool.name] = header_parameters(tool.input_schema, secrets=True)
            except SetupError as wrong:
                log.warning("the tool %s is left out: %s", tool.name, wrong)
            else:
                usable.append(tool)
        return usable, mirrored

    async def find(self, name: str, *, fresh: bool = True, timeout: Seconds) -> ToolDefinition | None:
        """As the server offers it now; None if it does not, or if its list changes as often as it is read."""
        for _ in range(MAX_LISTINGS):
            if name in self._tools or name in self._unlisted:
                return self._tools.get(name)
            changes = self._changes
            await self._learn(fresh, timeout)
            if changes == self._changes:
                if name not in self._tools:
                    self._unlisted.add(name)
                return self._tools.get(name)
        return None

    async def _learn(self, fresh: bool, timeout: Seconds) -> None:
        if self._listing is None or self._listing.is_over:
            self._listing = _Listing(self.listed(fresh=fresh, timeout=None))
        async with self._channel.within(self._channel.seconds(timeout), "tools/list: no answer"):
            await self._listing.wait()

    async def learn_headers(self, name: str, timeout: Seconds) -> None:
        """Of a tool that is about to be called; a server that lists nothing may still have it."""
        with suppress(ServerError):
            await self.find(name, timeout=timeout)
            return
        self._unlisted.add(name)

    async def wraps(self, name: str, timeout: Seconds) -> bool:
        """Whether the tool's structured content is only the wrapping of a value that is no object.

        The tool has run: whatever becomes of the listing, its result must not be lost.
        """
        try:
            tool = await self.find(name, timeout=timeout)
        except ServerError:
            self._unlisted.add(name)
            return False
        except (DovetailError, TimeoutError) as failure:
            log.info("the result of %s is given as it came: %s", name, failure)
            return False
        if tool is None:
            return False
        ours = not self._channel.revision.any_structured_output and bool((tool.meta or {}).get(WRAPPED_KEY))
        return ours or (tool.output_schema or {}).get(FASTMCP_WRAPS) is True


class _Listing:
    """Goes on for as long as anybody waits for it, whoever began it."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may be left to see it
        self._waiting = 0

    @property
    def is_over(self) -> bool:
        return self._task.done() or self._task.cancelling() > 0

    async def wait(self) -> None:
        self._waiting += 1
        try:
            await asyncio.wait([self._task])
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._task.cancel()
        self._task.result()
