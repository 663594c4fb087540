"""Programs that serve MCP, each in a process of its own, listed and called over stdio: one line of JSON in, one out.

    python peer_host.py fastmcp PACKAGES < jobs

A job is {"file": ..., "folder": ..., "calls": [[method, params], ...] or null}.

It runs in the environment of the library that is named, which is imported once; then each program is a fork. Only
Python's own library is used besides. No program reaches the network beyond this machine.
"""

import contextlib
import gc
import importlib
import importlib.util
import inspect
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REVISION = "2025-11-25"
IMPORTED = {  # before the forks; the server's class is the last one
    "mcp": ("mcp.server.mcpserver", "MCPServer"),
    "fastmcp": ("fastmcp", "FastMCP"),
    "dovetail": ("dovetail.server", "Server"),
}
FACTORIES = ("build_server", "create_server", "make_server", "get_server", "build_app")
START_TIMEOUT, CALL_TIMEOUT = 30.0, 15.0  # seconds
LISTS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
CAPABILITIES = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {"listChanged": True}}
TEXTS = {
    "date": "2026-01-02", "date-time": "2026-01-02T03:04:05Z", "time": "03:04:05Z", "email": "ann@example.com",
    "uri": "https://example.com/", "uuid": "00000000-0000-4000-8000-000000000001", "duration": "PT1H",
}  # fmt: skip
Call = tuple[str, dict[str, Any]]


# ── the program ──


def find_server(module: Any, kind: type) -> Any:
    """The server of a module: a global of it by a usual name, any other one, or what a factory makes."""
    names = vars(module)
    usual = [names[name] for name in ("mcp", "server", "app", "main_mcp", "main") if name in names]
    found = [each for each in (*usual, *names.values()) if isinstance(each, kind)]
    if found:
        return found[0]
    for name in FACTORIES:
        make = names.get(name)
        if callable(make) and not inspect.signature(make).parameters:
            made = make()
            if inspect.iscoroutine(made):
                made.close()
            found = [made] if isinstance(made, kind) else [each for each in gc.get_objects() if isinstance(each, kind)]
            if found:
                return found[0]
    raise LookupError("no server in this module")


def refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook."""
    if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] not in ("127.0.0.1", "::1"):
        raise OSError(f"no network: {arguments[1][0]}")
    if event == "socket.getaddrinfo" and arguments[0] not in ("127.0.0.1", "::1", "localhost", None, ""):
        raise OSError(f"no network: {arguments[0]}")


def serve(job: dict[str, Any], library: str, status: int) -> None:
    """Load the program and serve it on file descriptors 0 and 1."""
    stdout = os.dup(1)
    os.dup2(2, 1)  # what a program prints when it is loaded
    path, folder = Path(job["file"]), Path(job["folder"])
    os.chdir(path.parent)
    sys.path[:0] = [str(path.parent), *(str(folder / each) for each in job.get("paths", ("",)))]
    sys.argv = [path.name]
    sys.addaudithook(refuse_network)
    try:
        name, kind = IMPORTED[library]
        spec = importlib.util.spec_from_file_location("example", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["example"] = module
        spec.loader.exec_module(module)
        server = find_server(module, getattr(importlib.import_module(name), kind))
    except BaseException as failure:
        lines = traceback.format_exception_only(failure)
        os.write(status, json.dumps({"error": "".join(lines).strip()[:2000]}).encode())
        return
    os.write(status, b"{}")
    os.dup2(stdout, 1)
    server.run("stdio") if library == "dovetail" else server.run(transport="stdio")


@contextlib.contextmanager
def forked(job: dict[str, Any], library: str, log: Any) -> Iterator[tuple[int, int, int]]:
    """The program in a fork: where to write to it, to read from it, and to read how it started."""
    (theirs_in, ours_out), (ours_in, theirs_out), (status_in, status_out) = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            for number, given in ((0, theirs_in), (1, theirs_out), (2, log.fileno())):
                os.dup2(given, number)
            os.closerange(3, status_out)
            serve(job, library, status_out)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    for each in (theirs_in, theirs_out, status_out):
        os.close(each)
    try:
        yield ours_out, ours_in, status_in
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for each in (ours_out, ours_in, status_in):
            os.close(each)


# ── the client ──


class Ended(Exception):
    pass


class Talk:
    """JSON-RPC with a program; the requests that it makes are answered in one way."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._id = 0

    def send(self, message: dict[str, Any]) -> None:
        try:
            os.write(self._write, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        except OSError:
            raise Ended("the program has ended") from None

    def request(self, method: str, params: dict[str, Any] | None = None, timeout: float = CALL_TIMEOUT) -> Any:
        """The result, or {"error": ...}."""
        self._id += 1
        self.send({"id": self._id, "method": method, "params": params or {}})
        deadline = time.monotonic() + timeout
        while True:
            message = self._receive(deadline)
            if "method" in message:
                if "id" in message:
                    self.send({"id": message["id"], "result": answer(message["method"], message.get("params", {}))})
            elif message.get("id") == self._id:
                return message.get("result", {"error": message.get("error")})

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise Ended("no answer in time")
            chunk = os.read(self._read, 65536)
            if not chunk:
                raise Ended("the program has ended")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message: dict[str, Any] = json.loads(line)
        except ValueError:
            return {}  # what it prints besides
        return message


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "elicitation/create":
        schema = params.get("requestedSchema")
        return {"action": "accept", **({"content": value(schema, schema)} if schema else {})}
    if method == "sampling/createMessage":
        return {"role": "assistant", "content": {"type": "text", "text": "sampled"}, "model": "a-model"}
    if method == "roots/list":
        return {"roots": [{"uri": "file:///tmp/root", "name": "root"}]}
    return {}


def value(schema: Any, root: Any, *, required_only: bool = False, depth: int = 0) -> Any:
    """A value for a schema, by one rule."""
    if not isinstance(schema, dict) or depth > 6:
        return "text"
    if "$ref" in schema:
        found = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found.get(part, {})
        return value(found, root, required_only=required_only, depth=depth + 1)
    for known in ("const", "default"):
        if known in schema and schema[known] is not None:
            return schema[known]
    for known in ("enum", "examples"):
        if schema.get(known):
            return schema[known][0]
    for known in ("anyOf", "oneOf", "allOf"):
        if schema.get(known):
            options = [each for each in schema[known] if each.get("type") != "null"] or schema[known]
            return value(options[0], root, required_only=required_only, depth=depth + 1)
    kind = schema.get("type")
    kind = next((each for each in kind if each != "null"), "null") if isinstance(kind, list) else kind
    if kind == "object" or (kind is None and "properties" in schema):
        needed = schema.get("required", ())
        properties = schema.get("properties", {})
        return {
            name: value(each, root, depth=depth + 1)
            for name, each in properties.items()
            if not required_only or name in needed
        }
    if kind == "array":
        count = max(schema.get("minItems", 1), 1)
        return [value(schema.get("items", {}), root, depth=depth + 1) for _ in range(count)]
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", 1) + 1)
        return max(min(3, schema.get("maximum", 3)), low)
    plain: dict[Any, Any] = {"boolean": True, "null": None}
    text = TEXTS.get(schema.get("format", ""), "text")
    return plain.get(kind, text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", 10_000)])


def calls_of(lists: dict[str, Any]) -> list[Call]:
    """What is called: each tool with all arguments and with the required ones, each resource, template and prompt."""
    calls: list[Call] = []
    for tool in lists["tools/list"]:
        schema = tool.get("inputSchema", {})
        for required_only in (False, True):
            arguments = value(schema, schema, required_only=required_only)
            call = ("tools/call", {"name": tool["name"], "arguments": arguments})
            calls += [call] if call not in calls else []
    calls += [("resources/read", {"uri": each["uri"]}) for each in lists["resources/list"]]
    for template in lists["resources/templates/list"]:
        uri, rest = "", template["uriTemplate"]
        while "{" in rest:
            before, _, rest = rest.partition("{")
            name, _, rest = rest.partition("}")
            uri += before + ("" if name[0] in "?&" else "3")
        calls.append(("resources/read", {"uri": uri + rest}))
    for prompt in lists["prompts/list"]:
        arguments = {each["name"]: "3" for each in prompt.get("arguments", ())}
        calls.append(("prompts/get", {"name": prompt["name"], "arguments": arguments}))
        for name in arguments:
            reference = {"type": "ref/prompt", "name": prompt["name"]}
            params = {"ref": reference, "argument": {"name": name, "value": ""}}
            calls.append(("completion/complete", params))
    return calls


def listed(talk: Talk, method: str, key: str) -> list[Any]:
    found: list[Any] = []
    params: dict[str, Any] = {}
    for _ in range(50):
        page = talk.request(method, params)
        found += page.get(key, [])
        if not page.get("nextCursor"):
            break
        params = {"cursor": page["nextCursor"]}
    return found


def explore(talk: Talk, calls: list[Call] | None) -> dict[str, Any]:
    report: dict[str, Any] = {"lists": {}, "calls": []}
    client = {
        "protocolVersion": REVISION,
        "capabilities": CAPABILITIES,
        "clientInfo": {"name": "probe", "version": "1"},
    }
    begun = talk.request("initialize", client, START_TIMEOUT)
    report["instructions"] = begun.get("instructions")
    talk.send({"method": "notifications/initialized"})
    offered = begun.get("capabilities", {})
    for method, key in LISTS.items():
        report["lists"][method] = listed(talk, method, key) if key[:8].rstrip("sT") in str(offered) else []
    for method, params in calls if calls is not None else calls_of(report["lists"]):
        if method == "completion/complete" and calls is None and "completions" not in offered:
            continue
        try:
            result = talk.request(method, params)
        except Ended as failure:
            report["calls"].append([method, params, {"ended": str(failure)}])
            break
        report["calls"].append([method, params, result])
    return report


def run(job: dict[str, Any], library: str) -> dict[str, Any]:
    with tempfile.TemporaryFile("w+") as log, forked(job, library, log) as (write, read, status):
        ready, _, _ = select.select([status], [], [], START_TIMEOUT)
        begun = (
            json.loads(os.read(status, 65536) or b'{"error": "the program has ended"}') if ready else {"error": "hangs"}
        )
        if "error" in begun:
            return {"failure": begun["error"]}
        try:
            return explore(Talk(write, read), job.get("calls"))
        except Ended as failure:
            log.seek(0)
            return {"failure": f"{failure}: {log.read()[-600:]}"}


def main() -> None:
    library, packages = sys.argv[1:3]
    if packages not in sys.path:
        sys.path.append(packages)  # what the programs import besides
    importlib.import_module(IMPORTED[library][0])
    out = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for line in sys.stdin:
        report = run(json.loads(line), library)
        os.write(out, json.dumps(report).encode() + b"\n")


if __name__ == "__main__":
    main()
