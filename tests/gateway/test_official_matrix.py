"""Official clients of both eras, over HTTP and stdio, in front of a gateway to official servers and ours, of both eras.

Every client does all `THINGS` with every server; what a server can't do stands in `IMPOSSIBLE`, with its reason. Both
clients know both eras, each in one version. The everything-server has a handshake only. FastMCP runs in an environment
of its own, which scripts/fastmcp_environment.py makes.
"""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import fastmcp_environment
import matrix_servers
import node_tools
import pytest
from mcp import Client, types
from server_process import serving

import missing
import nodejs
from http_serving import until
from official import COMPLAINT
from sdk import HANDSHAKE, MODERN, HttpTalk, Talk

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]
HERE = Path(__file__).parent
GATEWAY, SERVERS = str(HERE / "gateway_program.py"), str(HERE / "matrix_servers.py")
EVERYTHING = node_tools.TARGET / "node_modules" / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
ERAS = {"old": HANDSHAKE, "new": MODERN}
THINGS = ["list", "call", "progress", "cancel", "log", "subscribe", "complete", "elicit", "url", "sample", "roots"]

Plan = dict[str, dict[str, Any]]


def common_plan(name: str, client: str) -> Plan:
    """Of the servers of matrix_servers.py."""
    tools = ["add", "report", "work", "linger", "touch", "ask", "visit", "sample", "roots"]
    long = {"mark": f"{client}-{name}"}
    return {
        "list": {"act": "list", "names": [f"{name}_{tool}" for tool in tools]},
        "call": {"act": "call", "tool": f"{name}_add", "given": {"a": 2, "b": 3}},
        "progress": {"act": "progress", "tool": f"{name}_report", "given": long, "enough": 2, "go": f"{name}_go_on"},
        "cancel": {"act": "cancel", "tool": f"{name}_linger", "given": long, "was": f"{name}_was_cancelled"},
        "log": {"act": "log", "tool": f"{name}_work", "given": {}},
        "subscribe": {"act": "subscribe", "uri": f"notes://{name}/all", "tool": f"{name}_touch"},
        "complete": {"act": "complete", "prompt": f"{name}_review", "argument": "language", "value": "p"},
        "elicit": {"act": "call", "tool": f"{name}_ask", "given": {}},
        "url": {"act": "call", "tool": f"{name}_visit", "given": {}},
        "sample": {"act": "call", "tool": f"{name}_sample", "given": {}},
        "roots": {"act": "call", "tool": f"{name}_roots", "given": {}},
    }


def common_results(name: str) -> dict[str, Any]:
    return {
        "list": [],
        "call": "5",
        "progress": [[1, 2], [2, 2]],
        "cancel": "yes",
        "log": r'\{"msg": ?"working".*\}' if name.startswith("fastmcp") else "working",  # an object, and passed as one
        "subscribe": f"notes://{name}/all",
        "complete": ["python", "perl"],
        "elicit": rf"accept Ada to \[{name}\] Who\?",
        "url": "accept",
        "sample": "sampled",
        "roots": "file:///srv",
    }


def everything_plan() -> Plan:
    tools = {
        "call": ("get-sum", {"a": 2, "b": 3}),
        "elicit": ("trigger-elicitation-request", {}),
        "url": ("trigger-url-elicitation", {"url": matrix_servers.PAGE}),
        "sample": ("trigger-sampling-request", {"prompt": "Hello"}),
        "roots": ("get-roots-list", {}),
    }
    calls = {
        thing: {"act": "call", "tool": f"everything_{tool}", "given": given} for thing, (tool, given) in tools.items()
    }
    long = {"tool": "everything_trigger-long-running-operation", "given": {"duration": 0.4, "steps": 2}}
    prompt = {"prompt": "everything_completable-prompt", "argument": "department", "value": "S"}
    return {
        "list": {"act": "list", "names": [call["tool"] for call in calls.values()]},
        **calls,
        "progress": {"act": "progress", **long, "enough": 1, "go": None},  # the other one comes with the response
        "log": {"act": "log", "tool": "everything_toggle-simulated-logging", "given": {}},
        "complete": {"act": "complete", **prompt},
    }


EVERYTHING_RESULTS = {
    "list": [],
    "call": "The sum of 2 and 3 is 5.",
    "progress": [[1, 2]],
    "log": r".* ?level.message",
    "complete": ["Sales", "Support"],
    "elicit": r".*- Name: Ada to \[everything\] Please provide inputs.*",
    "url": ".*User completed the URL elicitation flow.*",
    "sample": '.*"text": "sampled".*',
    "roots": ".*URI: file:///srv.*",
}
IMPOSSIBLE = {  # server, thing: why no client can
    ("everything", "cancel"): "none of its tools tells that a call was cancelled",
    ("everything", "subscribe"): "it updates only the session that toggles this, which is not the one that subscribes",
    ("fastmcp_new", "subscribe"): "FastMCP has no subscriptions/listen",
    ("fastmcp_old", "subscribe"): "FastMCP has no resources/subscribe",
    ("sdk_old", "subscribe"): "MCPServer has no resources/subscribe; what it publishes reaches listeners alone",
}


class Backends(NamedTuple):
    mounts: dict[str, dict[str, Any]]
    url: str  # of the gateway over HTTP

    @property
    def command(self) -> tuple[str, str]:
        """The gateway over stdio."""
        return GATEWAY, json.dumps(self.mounts)

    def plan(self, client: str) -> dict[str, Plan]:
        plans = {name: everything_plan() if name == "everything" else common_plan(name, client) for name in self.mounts}
        return {
            name: {thing: step for thing, step in plan.items() if (name, thing) not in IMPOSSIBLE}
            for name, plan in plans.items()
        }

    def check(self, outcomes: dict[str, dict[str, Any]]) -> None:
        """All that can be done was done, by each server."""
        wrong = {}
        for name in self.mounts:
            expected = EVERYTHING_RESULTS if name == "everything" else common_results(name)
            for thing in THINGS:
                found = outcomes[name].get(thing)
                if (name, thing) not in IMPOSSIBLE and not fits(expected[thing], found):
                    wrong[name, thing] = found
        assert not wrong
        assert not {(name, thing) for name, things in outcomes.items() for thing in things} & IMPOSSIBLE.keys()


def fits(expected: Any, found: Any) -> bool:
    if isinstance(expected, str):
        return isinstance(found, str) and re.fullmatch(expected, found, re.DOTALL) is not None
    return bool(expected == found)


def both_ways(*short: tuple[str, str]) -> pytest.MarkDecorator:
    """These few in `make test`: each transport and each era once for a client. In `make soak` all others."""
    cases = [(transport, revision) for transport in ("http", "stdio") for revision in (HANDSHAKE, MODERN)]
    params = [pytest.param(*case, marks=[] if case in short else pytest.mark.soak) for case in cases]
    return pytest.mark.parametrize(("transport", "revision"), params)


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backends]:
    nodejs.demand()
    missing.demand(fastmcp_environment.why_missing())
    folder = tmp_path_factory.mktemp("matrix")
    pythons = {"own": sys.executable, "sdk": sys.executable, "fastmcp": fastmcp_environment.environment().python}
    with ExitStack() as stack:
        started = {
            make: stack.enter_context(serving([SERVERS, make], folder / f"{make}.log", python))
            for make, python in pythons.items()
        }
        mounts: dict[str, dict[str, Any]] = {
            f"{make}_{era}": {"target": f"{server.origin}/mcp", "revision": revision}
            for make, server in started.items()
            for era, revision in ERAS.items()
        }
        mounts["everything"] = {"target": [str(node_tools.node()), str(EVERYTHING), "stdio"]}
        with serving([GATEWAY, json.dumps(mounts)], folder / "gateway.log") as gateway:
            yield Backends(mounts, f"{gateway.origin}/mcp")
    assert not [*gateway.complaints, *started["own"].complaints], (folder / "gateway.log").read_text()


@both_ways(("http", HANDSHAKE), ("stdio", MODERN))
def test_the_typescript_client(backends: Backends, transport: str, revision: str) -> None:
    where = backends.url if transport == "http" else json.dumps([sys.executable, *backends.command])
    said = nodejs.run("gateway.mjs", where, revision, json.dumps(backends.plan(f"ts-{transport}-{revision}")))
    assert said["negotiated"] == revision
    assert COMPLAINT not in said["stderr"]
    backends.check(said["outcomes"])


@both_ways(("http", MODERN), ("stdio", HANDSHAKE))
async def test_the_python_client(backends: Backends, tmp_path: Path, transport: str, revision: str) -> None:
    user = User(revision)
    options = {"mode": "legacy" if revision == HANDSHAKE else revision, "cache": None, **user.callbacks}
    if transport == "http":
        client = HttpTalk(backends.url.removesuffix("/mcp")).client(**options)
    else:
        client = Talk(tmp_path).client(backends.command, **options)
    async with client:
        assert client.protocol_version == revision
        await user.begin(client)
        plan = backends.plan(f"py-{transport}-{revision}")
        outcomes = {
            name: {thing: await user.do(**step) for thing, step in steps.items()} for name, steps in plan.items()
        }
    backends.check(outcomes)


def test_without_fastmcp_a_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = fastmcp_environment.why_missing(tmp_path)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="NO FASTMCP"):
        missing.demand(reason)
    monkeypatch.setenv("CI", "false")
    with pytest.raises(pytest.skip.Exception, match="NO FASTMCP"):
        missing.demand(reason)


class User:
    """Does the steps of a plan with the official Python client, and answers what it is asked."""

    def __init__(self, revision: str) -> None:
        self._is_modern = revision == MODERN
        self._logged: list[str] = []
        self._updated: list[str] = []

    @property
    def callbacks(self) -> dict[str, Any]:
        return {
            "elicitation_callback": self._fill_in,
            "sampling_callback": self._sample,
            "list_roots_callback": self._list_roots,
            "logging_callback": self._log,
            "message_handler": self._note,
        }

    async def begin(self, client: Client) -> None:
        self._client = client
        if not self._is_modern:
            await client.set_logging_level("debug")
        self._names = {tool.name for tool in (await client.list_tools()).tools}

    async def do(self, act: str, **how: Any) -> Any:
        with anyio.fail_after(15):
            return await getattr(self, f"_do_{act}")(**how)

    # ── what is asked and told ──

    async def _fill_in(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        if isinstance(params, types.ElicitRequestURLParams):
            return types.ElicitResult(action="accept")
        field = "value" if "value" in params.requested_schema["properties"] else "name"
        return types.ElicitResult(action="accept", content={field: f"Ada to {params.message}"})

    async def _sample(self, context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        text = types.TextContent(type="text", text="sampled")
        return types.CreateMessageResult(role="assistant", content=text, model="none")

    async def _list_roots(self, context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///srv", name="srv")])

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        self._logged.append(params.data if isinstance(params.data, str) else json.dumps(params.data))

    async def _note(self, message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            self._updated.append(str(message.params.uri))

    # ── the steps ──

    async def _do_list(self, names: list[str]) -> list[str]:
        return [name for name in names if name not in self._names]

    async def _do_call(self, tool: str, given: Any, **options: Any) -> str:
        result = await self._client.call_tool(tool, given, **options)
        return "\n".join(block.text for block in result.content if isinstance(block, types.TextContent))

    async def _do_progress(self, tool: str, given: Any, enough: int, go: str | None) -> list[list[float | None]]:
        heard: list[list[float | None]] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            heard.append([progress, total])
            if len(heard) == enough and go is not None:
                await self._do_call(go, given)

        await self._do_call(tool, given, progress_callback=hear)
        return heard[:enough]

    async def _do_cancel(self, tool: str, given: Any, was: str) -> str:
        scope = anyio.CancelScope()

        async def lose(progress: float, total: float | None, message: str | None) -> None:
            scope.cancel()

        with scope:
            await self._do_call(tool, given, progress_callback=lose)
            return "not given up"
        while await self._do_call(was, given) != "yes":
            pass
        return "yes"

    async def _do_log(self, tool: str, given: Any) -> str:
        before = len(self._logged)
        meta: Any = {types.LOG_LEVEL_META_KEY: "debug"} if self._is_modern else None
        await self._do_call(tool, given, meta=meta)
        await until(lambda: len(self._logged) > before)
        return self._logged[before]

    async def _do_subscribe(self, uri: str, tool: str) -> str:
        if not self._is_modern:
            await self._client.subscribe_resource(uri)
            while uri not in self._updated:
                await self._do_call(tool, {})  # the backend may not be subscribed to yet
                await anyio.sleep(0.02)
            return uri
        async with self._client.listen(resource_subscriptions=[uri]) as changes, anyio.create_task_group() as tasks:
            tasks.start_soon(self._touch, tool)
            change = await anext(changes)
            tasks.cancel_scope.cancel()
        return str(getattr(change, "uri", change))

    async def _touch(self, tool: str) -> None:
        while True:
            await self._do_call(tool, {})
            await anyio.sleep(0.02)

    async def _do_complete(self, prompt: str, argument: str, value: str) -> list[str]:
        ref = types.PromptReference(type="ref/prompt", name=prompt)
        return (await self._client.complete(ref, {"name": argument, "value": value})).completion.values
