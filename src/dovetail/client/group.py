"""`Clients`: the servers of an `mcp.json` as open clients, and together as if they were one server.

The name of a tool or a prompt begins with that of its server, so that no two of them are the same.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import msgspec

from dovetail.client.client import Client
from dovetail.client.config import ListedServer, SharedOptions, read_servers
from dovetail.client.dispatcher import ProgressHandler
from dovetail.client.results import CallToolResult
from dovetail.client.session import Seconds
from dovetail.errors import BadResponse, ConnectionLost, SetupError, ToolError
from dovetail.protocol.methods import LogLevel
from dovetail.protocol.results import PromptResult
from dovetail.protocol.types import (
    PromptDefinition,
    ResourceContents,
    ResourceDefinition,
    TemplateDefinition,
    ToolDefinition,
)
from dovetail.registry.registration import checked_options

log = logging.getLogger("dovetail.client")

T = TypeVar("T")
Named = TypeVar("Named", ToolDefinition, PromptDefinition)
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")


class Clients(Mapping[str, Client]):
    """The servers of an `mcp.json`, or of a dict of that shape, open inside `async with`.

    async with Clients("mcp.json") as clients:
        tools = await clients.list_tools()                                  # weather_forecast, notes_add, …
        result = await clients.call_tool("weather_forecast", {"city": "Rome"})
        notes = clients["notes"]                                            # a Client

    All are opened at once, each within `connect_timeout` seconds. One that fails does not stop the others: `failures`
    says why, by its name; with `strict` it is raised. `options_for` gives what one server gets beside, or instead of,
    the other options.
    """

    def __init__(
        self,
        servers: str | Path | Mapping[str, Any],
        *,
        strict: bool = False,
        connect_timeout: float | None = 30,
        options_for: Callable[[str], Mapping[str, Any]] | None = None,
        **options: Unpack[SharedOptions],
    ) -> None:
        checked_options(options, SharedOptions.__optional_keys__, "Clients", {})
        _check_auth(options.get("auth"))
        self._listed = read_servers(servers)
        self._prefixes = _prefixes(self._listed)
        self._strict = strict
        self._seconds = connect_timeout
        self._options_for = options_for
        self._options = options
        self._clients: dict[str, Client] = {}
        self.failures: dict[str, Exception] = {}

    def __repr__(self) -> str:
        return f"Clients({', '.join(self._listed)})"

    # ── opening and closing ──

    async def __aenter__(self) -> Self:
        if self._clients:
            raise SetupError("Clients: they are open already; make others for other connections")
        self.failures = {}
        try:
            async with asyncio.TaskGroup() as opening:  # whoever stops waiting leaves none of them behind
                for name, listed in self._listed.items():
                    opening.create_task(self._open(name, listed))
            if self._strict and self.failures:
                name, failure = next(iter(self.failures.items()))
                failure.add_note(f"This is about the server {name!r}.")
                raise failure
        except BaseException:
            await self.close()
            raise
        self._clients = {name: self._clients[name] for name in self._listed if name in self._clients}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for outcome in await asyncio.gather(*(each.close() for each in clients.values()), return_exceptions=True):
            if isinstance(outcome, Exception):
                log.warning("a client could not be closed: %s", outcome)

    async def _open(self, name: str, listed: ListedServer) -> None:
        try:
            client = self._client(name, listed)
            try:
                await client.open(self._seconds)
            except BaseException:
                await client.close()  # it may have opened in the very last moment
                raise
        except Exception as failure:
            self.failures[name] = failure
        else:
            self._clients[name] = client

    def _client(self, name: str, listed: ListedServer) -> Client:
        if listed.problem:
            raise SetupError(listed.problem)
        common: dict[str, Any] = {**listed.options, **self._options}
        if not listed.needs_auth:
            common.pop("auth", None)
        more = {} if self._options_for is None else self._options_for(name)
        return Client(listed.target, **{**common, **more})

    # ── one of them ──

    def __getitem__(self, name: str) -> Client:
        if name in self._clients:
            return self._clients[name]
        if name in self.failures:
            raise KeyError(f"the server {name!r} could not be opened: {self.failures[name]}")
        raise KeyError(f"there is no server {name!r}; open are: {', '.join(self._clients) or 'none'}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    # ── all of them ──

    async def list_tools(self, *, fresh: bool = False) -> list[ToolDefinition]:
        """Of all servers, as `server_tool`."""
        return self._named("tool", await self._each("tools", lambda client: client.list_tools(fresh=fresh)))

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: Seconds = "default",
        progress_handler: ProgressHandler | None = None,
        log_level: LogLevel | None = None,
        raise_on_error: bool = True,
    ) -> CallToolResult:
        """As `Client.call_tool`, of the server that the name begins with. No such server is a ToolError."""
        client, own = self._home(name, "tool")
        return await client.call_tool(
            own,
            arguments,
            timeout=timeout,
            progress_handler=progress_handler,
            log_level=log_level,
            raise_on_error=raise_on_error,
        )

    async def list_prompts(self, *, fresh: bool = False) -> list[PromptDefinition]:
        """Of all servers, as `server_prompt`."""
        return self._named("prompt", await self._each("prompts", lambda client: client.list_prompts(fresh=fresh)))

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> PromptResult:
        """As `Client.get_prompt`, of the server that the name begins with."""
        client, own = self._home(name, "prompt")
        return await client.get_prompt(own, arguments)

    async def list_resources(self, *, fresh: bool = False) -> list[tuple[str, ResourceDefinition]]:
        """Of all servers, each with the name of its server: several may use the same URI."""
        return await self._each("resources", lambda client: client.list_resources(fresh=fresh))

    async def list_resource_templates(self, *, fresh: bool = False) -> list[tuple[str, TemplateDefinition]]:
        return await self._each("resources", lambda client: client.list_resource_templates(fresh=fresh))

    async def read_resource(self, server: str, uri: str, *, fresh: bool = False) -> list[ResourceContents]:
        return await self[server].read_resource(uri, fresh=fresh)

    # ── names ──

    async def _each(self, feature: str, ask: Callable[[Client], Awaitable[list[T]]]) -> list[tuple[str, T]]:
        """What the servers that have a feature say; one that fails is left out, and `failures` says why."""
        names = [name for name, client in self._clients.items() if feature in client.capabilities]
        answers = await asyncio.gather(*(ask(self._clients[name]) for name in names), return_exceptions=True)
        found: list[tuple[str, T]] = []
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, BaseException):
                if self._strict or not isinstance(answer, Exception):
                    raise answer
                self.failures[name] = answer
            else:
                self.failures.pop(name, None)
                found += [(name, item) for item in answer]
        return found

    def _named(self, what: str, found: Iterable[tuple[str, Named]]) -> list[Named]:
        """Under their names here. What could not be called by its name is left out, and `failures` says why."""
        items: dict[str, Named] = {}
        for server, item in found:
            name = f"{self._prefixes[server]}{item.name}"
            home = self._server_of(name)
            if home == server and name not in items:
                items[name] = msgspec.structs.replace(item, name=name)
            elif home == server:
                self._blame(
                    server, BadResponse(f"{server!r} has two {what}s called {item.name}; the second is left out")
                )
            else:
                words = f"the {what} {item.name} of {server!r} is left out: {name} would be one of {home!r}"
                self._blame(server, SetupError(f"Clients: {words}; give one of these servers another name"))
        return list(items.values())

    def _blame(self, server: str, failure: Exception) -> None:
        if self._strict:
            raise failure
        self.failures[server] = failure

    def _server_of(self, name: str) -> str | None:
        """Of servers `a` and `a_b`, all that begins with `a_b_` is of the second, whatever they offer."""
        fits = [server for server, prefix in self._prefixes.items() if name.startswith(prefix)]
        return max(fits, key=lambda server: len(self._prefixes[server]), default=None)

    def _home(self, name: str, what: str) -> tuple[Client, str]:
        """The client of a prefixed name, and the name that its server knows."""
        server = self._server_of(name)
        if server in self._clients:
            return self._clients[server], name.removeprefix(self._prefixes[server])
        if server is not None:
            why = self.failures.get(server, "it is not open")
            raise ConnectionLost(f"{name}: the server {server!r} can't be used: {why}")
        known = ", ".join(self._prefixes[server] for server in self._clients) or "none is open"
        words = f"There is no {what} {name!r}: it has to begin with the name of its server ({known})"
        raise ToolError(words) if what == "tool" else SetupError(words)


def _check_auth(auth: Any) -> None:
    """What goes to all servers must not be a secret that is meant for one of them."""
    if auth is None:
        return
    if not callable(getattr(auth, "for_server", None)):
        raise SetupError(
            "Clients: a token as auth= would be shown to every server; write it into the headers of its server, "
            "or give it by options_for="
        )
    if getattr(auth, "bound_to_issuer", False) and auth.issuer is None:
        raise SetupError(
            f"Clients: what auth={type(auth).__name__}(…) holds would be shown to whomever a server names; "
            "say where it belongs by issuer=, or give it to one server by options_for="
        )


def _prefixes(names: Iterable[str]) -> dict[str, str]:
    """What the names of each server's tools begin with: letters, digits, `_` and `-`, as models want it."""
    prefixes = {name: f"{_NOT_IN_A_NAME.sub('_', name)}_" for name in names}
    for one, other in combinations(prefixes, 2):
        if prefixes[one] == prefixes[other]:
            raise SetupError(f"Clients: {one!r} and {other!r} are both {prefixes[one]} here; rename one of them")
    return prefixes
