"""`Clients`: the servers of an `mcp.json` as open clients, and as one server with prefixed names."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, Unpack

import msgspec

from dovetail.client.client import Client
from dovetail.client.config import ListedServer, SharedOptions, read_servers
from dovetail.client.dispatcher import ProgressHandler
from dovetail.client.results import CallToolResult
from dovetail.client.session import Timeout
from dovetail.errors import BadResponse, ConnectionLost, SetupError, ToolError
from dovetail.protocol import types
from dovetail.protocol.methods import LogLevel
from dovetail.protocol.results import PromptResult
from dovetail.registry.registration import checked_options

log = logging.getLogger("dovetail.client")

T = TypeVar("T")
Named = TypeVar("Named", types.ToolDefinition, types.PromptDefinition)
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")


class CallOptions(TypedDict, total=False):
    timeout: Timeout
    progress_handler: ProgressHandler | None
    log_level: LogLevel | None
    raise_on_error: bool
    idempotency_key: str | None


class Clients(Mapping[str, Client]):
    """The servers of an `mcp.json`, or of a dict of that shape, open inside `async with`.

    async with Clients("mcp.json") as clients:
        tools = await clients.list_tools()                                  # weather_forecast, notes_add, …
        result = await clients.call_tool("weather_forecast", {"city": "Rome"})
        notes = clients["notes"]                                            # a Client

    All are opened concurrently, each within `connect_timeout` seconds. One that fails does not stop the others:
    `failures` holds its exception by its name; with `strict` it is raised. `options_for` gives options of one server,
    which override the others.
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
        self._entries = read_servers(servers)
        self._prefixes = _prefixes(self._entries)
        self._strict = strict
        self._connect_timeout = connect_timeout
        self._options_for = options_for
        self._options = options
        self._clients: dict[str, Client] = {}
        self.failures: dict[str, Exception] = {}

    def __repr__(self) -> str:
        return f"Clients({', '.join(self._entries)})"

    async def __aenter__(self) -> Self:
        if self._clients:
            raise SetupError("Clients: they are open already; make others for other connections")
        self.failures = {}
        try:
            async with asyncio.TaskGroup() as opening:  # a cancellation leaves no task behind
                for name, entry in self._entries.items():
                    opening.create_task(self._open(name, entry))
            if self._strict and self.failures:
                name, failure = next(iter(self.failures.items()))
                failure.add_note(f"This is about the server {name!r}.")
                raise failure
        except BaseException:
            await self.close()
            raise
        self._clients = {name: self._clients[name] for name in self._entries if name in self._clients}
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for outcome in await asyncio.gather(*(each.close() for each in clients.values()), return_exceptions=True):
            if isinstance(outcome, Exception):
                log.warning("a client could not be closed: %s", outcome)

    async def _open(self, name: str, entry: ListedServer) -> None:
        try:
            if entry.problem:
                raise SetupError(entry.problem)
            options: dict[str, Any] = {**entry.options, **self._options}
            if not entry.needs_auth:
                options.pop("auth", None)
            own = {} if self._options_for is None else self._options_for(name)
            client = Client(entry.target, **{**options, **own})
            try:
                await client.open(self._connect_timeout)
            except BaseException:
                await client.close()  # it may have opened in the last moment
                raise
        except Exception as failure:
            self.failures[name] = failure
        else:
            self._clients[name] = client

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

    async def list_tools(self, *, fresh: bool = False) -> list[types.ToolDefinition]:
        """The tools of all servers, as `server_tool`."""
        return self._prefixed("tool", await self._collect("tools", lambda client: client.list_tools(fresh=fresh)))

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]
    ) -> CallToolResult:
        """Call a tool by its prefixed name, like `Client.call_tool`. An unknown prefix raises ToolError."""
        client, own_name = self._resolve(name, "tool")
        return await client.call_tool(own_name, arguments, **options)

    async def list_prompts(self, *, fresh: bool = False) -> list[types.PromptDefinition]:
        """The prompts of all servers, as `server_prompt`."""
        return self._prefixed("prompt", await self._collect("prompts", lambda client: client.list_prompts(fresh=fresh)))

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> PromptResult:
        """Get a prompt by its prefixed name, like `Client.get_prompt`."""
        client, own_name = self._resolve(name, "prompt")
        return await client.get_prompt(own_name, arguments)

    async def list_resources(self, *, fresh: bool = False) -> list[tuple[str, types.ResourceDefinition]]:
        """The resources of all servers, each with the name of its server: several may use the same URI."""
        return await self._collect("resources", lambda client: client.list_resources(fresh=fresh))

    async def list_resource_templates(self, *, fresh: bool = False) -> list[tuple[str, types.TemplateDefinition]]:
        return await self._collect("resources", lambda client: client.list_resource_templates(fresh=fresh))

    async def read_resource(self, server: str, uri: str, *, fresh: bool = False) -> list[types.ResourceContents]:
        return await self[server].read_resource(uri, fresh=fresh)

    async def _collect(self, feature: str, fetch: Callable[[Client], Awaitable[list[T]]]) -> list[tuple[str, T]]:
        """The lists of all servers that have a feature; the exception of one that fails goes to `failures`."""
        names = [name for name, client in self._clients.items() if feature in client.capabilities]
        results = await asyncio.gather(*(fetch(self._clients[name]) for name in names), return_exceptions=True)
        found: list[tuple[str, T]] = []
        for name, result in zip(names, results, strict=True):
            if isinstance(result, BaseException):
                if self._strict or not isinstance(result, Exception):
                    raise result
                self.failures[name] = result
            else:
                self.failures.pop(name, None)
                found += [(name, item) for item in result]
        return found

    def _prefixed(self, kind: str, found: Iterable[tuple[str, Named]]) -> list[Named]:
        """The items with prefixed names; an item whose name is ambiguous is left out, and `failures` says why."""
        items: dict[str, Named] = {}
        for server, item in found:
            name = f"{self._prefixes[server]}{item.name}"
            owner = self._server_of(name)
            if owner == server and name not in items:
                items[name] = msgspec.structs.replace(item, name=name)
                continue
            if owner == server:
                words = f"{server!r} has two {kind}s called {item.name}; the second is left out"
                failure: Exception = BadResponse(words)
            else:
                words = f"the {kind} {item.name} of {server!r} is left out: {name} would be one of {owner!r}"
                failure = SetupError(f"Clients: {words}; give one of these servers another name")
            if self._strict:
                raise failure
            self.failures[server] = failure
        return list(items.values())

    def _server_of(self, name: str) -> str | None:
        """The server with the longest matching prefix: with servers `a` and `a_b`, `a_b_x` is of the second."""
        servers = [server for server, prefix in self._prefixes.items() if name.startswith(prefix)]
        return max(servers, key=lambda server: len(self._prefixes[server]), default=None)

    def _resolve(self, name: str, kind: str) -> tuple[Client, str]:
        """The client of a prefixed name, and the name without the prefix."""
        server = self._server_of(name)
        if server in self._clients:
            return self._clients[server], name.removeprefix(self._prefixes[server])
        if server is not None:
            why = self.failures.get(server, "it is not open")
            raise ConnectionLost(f"{name}: the server {server!r} can't be used: {why}")
        known = ", ".join(self._prefixes[server] for server in self._clients) or "none is open"
        words = f"There is no {kind} {name!r}: it has to begin with the name of its server ({known})"
        raise ToolError(words) if kind == "tool" else SetupError(words)


def _check_auth(auth: Any) -> None:
    """Raises SetupError if options for all servers hold a secret that is meant for one of them."""
    if auth is None:
        return
    if not callable(getattr(auth, "for_server", None)):
        advice = "write it into the headers of its server, or give it by options_for="
        raise SetupError(f"Clients: a token as auth= would be shown to every server; {advice}")
    if getattr(auth, "bound_to_issuer", False) and auth.issuer is None:
        secret = f"what auth={type(auth).__name__}(…) holds would be shown to whomever a server names"
        advice = "say where it belongs by issuer=, or give it to one server by options_for="
        raise SetupError(f"Clients: {secret}; {advice}")


def _prefixes(names: Iterable[str]) -> dict[str, str]:
    """The prefix of each server's names: letters, digits, `_` and `-`, which models accept."""
    prefixes = {name: f"{_NOT_IN_A_NAME.sub('_', name)}_" for name in names}
    for one, other in combinations(prefixes, 2):
        if prefixes[one] == prefixes[other]:
            raise SetupError(f"Clients: {one!r} and {other!r} are both {prefixes[one]} here; rename one of them")
    return prefixes
