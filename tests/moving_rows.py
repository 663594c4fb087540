"""Runs the spellings of the pages on moving, each as the program that its form asks for, with its library.

    python moving_rows.py fastmcp < spellings.json

A decorator gets a function below it. What is for a call, as it uses `ctx`, becomes the body of a tool, `name: Type` its
parameter, and the tool is called. A command of `dovetail` is read with its options. Everything else is run as it
stands. This is a program of its own, and needs nothing but the library, so that another Python can run it.
"""

import ast
import asyncio
import json
import logging
import os
import re
import shlex
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SHARED = """
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from pydantic import BaseModel

FOLDER, README = Path.cwd(), Path.cwd() / "README.md"
PIXEL = bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de")
ID, SECRET, KEY = "id", "a-secret-of-thirty-two-characters", "a-key-of-more-than-thirty-two-characters"
URL, ISSUER, API = "https://notes.example.com/mcp", "https://login.example.com", "https://api.example.com"
SERVERS = {"mcpServers": {"notes": {"url": URL}, "calendar": {"url": "https://calendar.example.com/mcp"}}}
SPEC = {
    "openapi": "3.1.0", "info": {"title": "Shop", "version": "1"}, "servers": [{"url": API}],
    "paths": {"/orders": {"get": {"operationId": "orders", "responses": {"200": {"description": "All"}}}}},
}

class Trip(BaseModel):
    city: str
    days: int = 1

@asynccontextmanager
async def open_database(server):
    yield {"db": "open"}

def current_user() -> str:
    return "ada"

def search(text: str = "") -> str:
    return "found: " + text

def first() -> str:
    return "Buy milk"

def greet(name: str = "Ada") -> str:
    return f"Hello, {name}!"

def is_admin(*_: Any) -> bool:
    return True
"""
DOVETAIL = """
from fastapi import FastAPI
from mcp_types import CallToolResult, TextContent
from dovetail import *
from dovetail.auth import *
from dovetail.authserver import *
from dovetail.client import *

app = FastAPI()

@app.get("/orders")
def orders() -> list[str]:
    return ["hat"]

class Checked(Server):
    def run(self, transport="stdio", **options):
        "Only checks what it is to run with."
        if transport != "stdio":
            self.http_options(options, running=True)

    async def run_async(self, transport="stdio", **options):
        self.run(transport, **options)

class Measure:
    async def on_call_tool(self, request, call_next):
        return await call_next(request)

server, child = Checked("notes", lifespan=open_database), Server("office")

server.add_tool(greet, tags=["admin", "public"])
server.add_resource("notes://first", first)

def verify(token: str) -> Principal | None:
    return None

def answer(request: ElicitRequest) -> Any:
    if request.mode == "url":
        return True
    return {"city": "Rome"} if "city" in request.fields else {"value": True}

async def call(name: str) -> None:
    for revision in ("2025-11-25", "2026-07-28"):
        handlers = {"elicitation_handler": answer, "sampling_handler": lambda _: "Short.", "roots": []}
        async with Client(server, protocol_version=revision, **handlers) as client:
            await client.call_tool(name)
"""
FASTMCP = """
from inspect import signature
import httpx2
from starlette.applications import Starlette
from fastmcp import Client, Context, FastMCP
from fastmcp.dependencies import Depends
from fastmcp.exceptions import ToolError
from fastmcp.prompts import Message
from fastmcp.resources import DirectoryResource, FileResource
from fastmcp.server import create_proxy
from fastmcp.server.auth import require_scopes
from fastmcp.server.auth.providers.github import GitHubProvider
from fastmcp.server.auth.providers.introspection import IntrospectionTokenVerifier
from fastmcp.server.auth.providers.jwt import JWTVerifier, StaticTokenVerifier
from fastmcp.server.dependencies import get_access_token, get_context, get_http_headers
from fastmcp.server.middleware import Middleware
from fastmcp.server.middleware.caching import ResponseCachingMiddleware
from fastmcp.server.middleware.logging import LoggingMiddleware
from fastmcp.server.middleware.rate_limiting import RateLimitingMiddleware
from fastmcp.server.middleware.response_limiting import ResponseLimitingMiddleware
from fastmcp.server.middleware.timing import TimingMiddleware
from fastmcp.server.providers.skills import SkillsDirectoryProvider
from fastmcp.server.transforms.search import BM25SearchTransform
from fastmcp.tools import Tool
from fastmcp.tools.base import ToolResult
from fastmcp.tools.tool_transform import ArgTransform
from fastmcp.utilities.types import Image

class App(Starlette):
    "FastAPI is not in this environment."
    title = "shop"
    def openapi(self):
        return SPEC

class Checked(FastMCP):
    def run(self, *arguments, **options):
        "Only checks what it is to run with."
        signature(FastMCP.run).bind(self, *arguments, **options)
        signature(getattr(FastMCP, "run_http_async", FastMCP.run)).bind_partial(self, **options)

    async def run_async(self, *arguments, **options):
        self.run(*arguments, **options)

class Measure(Middleware):
    pass

app, mcp, child = App(), Checked("notes", lifespan=open_database), FastMCP("office")
mcp.add_tool(greet)
mcp.resource("notes://first")(first)

async def answer(message, response_type, params, context):
    return response_type(city="Rome") if "city" in str(params) else response_type(value=True)

async def call(name: str) -> None:
    async with Client(mcp, elicitation_handler=answer, mode="legacy") as client:
        await client.call_tool(name)
"""
MCP = """
from inspect import signature
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import CallToolResult, CreateMessageResult, ElicitResult, ListRootsResult
from mcp.types import SamplingMessage, TextContent, ToolAnnotations
from mcp.server.mcpserver import AssistantMessage, Context, Image, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resources import FileResource
from starlette.applications import Starlette

class Tokens(TokenVerifier):
    async def verify_token(self, token):
        return None

class Checked(MCPServer):
    def run(self, transport="stdio", **options):
        method = {"stdio": MCPServer.run_stdio_async, "streamable-http": MCPServer.run_streamable_http_async}
        signature(method[transport]).bind(self, **options)

    async def run_stdio_async(self):
        self.run()

app, mcp = Starlette(), Checked("notes", lifespan=open_database)
mcp.add_tool(greet)
mcp.resource("notes://first")(first)

async def measure(ctx, call_next):
    return await call_next(ctx)

async def answer(context, params):
    return ElicitResult(action="accept", content={"city": "Rome"} if params.mode == "form" else None)

async def sample(context, params):
    return CreateMessageResult(role="assistant", content=TextContent(text="Short."), model="m")

async def roots(context):
    return ListRootsResult(roots=[])

async def call(name: str) -> None:
    options = {"elicitation_callback": answer, "sampling_callback": sample, "list_roots_callback": roots}
    async with Client(mcp, mode="legacy", **options) as client:
        result = await client.call_tool(name)
    if result.is_error:
        raise ToolError(result.content[0].text)
"""
LACKING = """
try:
    from {module} import {name}
except ImportError as problem:
    def {name}(*arguments, told=problem, **options):
        raise told
"""
NATIVE = """
import dovetail

def fill_in(request):
    return {"city": "Rome"} if "city" in request.fields else {"value": True}

async def call(name: str) -> None:
    handlers = {"elicitation_handler": fill_in, "sampling_handler": lambda _: "Short.", "roots": []}
    async with dovetail.Client(mcp, protocol_version="2025-11-25", **handlers) as client:
        await client.call_tool(name)
"""


def on_compat(library: str, prelude: str) -> str:
    """The same on dovetail.compat, with a client of Dovetail; a name that it lacks fails when it is used."""
    lines = []
    for line in prelude.replace("import httpx2", "import httpx as httpx2").splitlines():
        found = re.fullmatch(rf"from {library}\b(\S*) import (.+)", line)
        names = found[2].split(", ") if found else []
        lines += [LACKING.format(module=f"dovetail.compat.{library}{found[1]}", name=name) for name in names]
        lines += [] if found else [line]
    return "\n".join(lines) + NATIVE


PRELUDES = {"dovetail": DOVETAIL, "fastmcp": FASTMCP, "mcp": MCP}
PRELUDES |= {"compat.fastmcp": on_compat("fastmcp", FASTMCP), "compat.mcp": on_compat("mcp", MCP)}
TOOL = {"dovetail": "@server.tool", "fastmcp": "@mcp.tool", "mcp": "@mcp.tool()"}
TOOL |= {"compat.fastmcp": TOOL["fastmcp"], "compat.mcp": TOOL["mcp"]}
FUNCTIONS = {  # what stands below a decorator
    "tool": "async def search(text: str = '') -> str: return 'found: ' + text",
    "prompt": "def plan(city: str = 'Rome') -> str: return 'Plan ' + city",
    "completion": "async def complete(ref, argument, context): return None",
    "middleware": "async def measure(request, call_next): return await call_next(request)",
    "custom_route": "async def status(request): return 'well'",
}


def program(library: str, spellings: Sequence[str]) -> str:
    """The source for the spellings of one cell, which follow each other."""
    text = "\n".join(spellings)
    if text.startswith("@"):
        return f"{text}\n{_below(text)}"
    tree = ast.parse(text)
    body = textwrap.indent(text, "    ")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if isinstance(tree.body[0], ast.AnnAssign):
        return f"{TOOL[library]}\ndef row({text}) -> str: return 'done'\nto_await = call('row')"
    if isinstance(tree.body[0], ast.Return | ast.Raise) or any(re.match(r"ctx$|get_", name) for name in names):
        return f"{TOOL[library]}\nasync def row(ctx: Context) -> Any:\n{body}\nto_await = call('row')"
    if any(isinstance(node, ast.AsyncWith | ast.Await) for node in ast.walk(tree)):
        return f"async def row() -> None:\n{body}\nto_await = row()"
    return text


def _below(decorator: str) -> str:
    kind = re.match(r"@\w+\.(\w+)", decorator)[1]
    if "argument=" in decorator:
        return "async def complete(value: str) -> list[str]: return ['Rome']"
    if kind == "resource":
        variables = re.findall(r"\{(\w+)\*?\}", decorator)
        return f"def read({', '.join(f'{name}: str' for name in variables)}) -> str: return 'a note'"
    return FUNCTIONS[kind]


async def run(library: str, spellings: Sequence[str]) -> str | None:
    """What goes wrong, in words."""
    if spellings[0].startswith("dovetail "):
        return _command(spellings[0])
    try:
        names: dict[str, Any] = {"__name__": "row"}
        exec(compile(SHARED + PRELUDES[library], f"<{library}>", "exec"), names)
        exec(compile(program(library, spellings), "<row>", "exec"), names)
        if "to_await" in names:
            await names["to_await"]
    except Exception as problem:
        if spellings[-1].startswith("raise ") and type(problem).__name__ in spellings[-1]:
            return None
        return f"{type(problem).__name__}: {problem}"
    return "nothing was raised" if spellings[-1].startswith("raise ") else None


def _command(line: str) -> str | None:
    import click

    from dovetail.cli.main import main

    name, *arguments = shlex.split(line)[1:]
    context = click.Context(main)
    command = main.get_command(context, name)
    if command is None:
        return f"dovetail has no command {name}"
    try:
        command.make_context(name, arguments, parent=context)
    except click.ClickException as problem:
        return problem.format_message()
    return None


def write_files() -> None:
    """What the spellings name."""
    Path("README.md").write_text("# Notes\n")
    Path("skill").mkdir()
    Path("skill/SKILL.md").write_text("---\nname: skill\ndescription: How to write notes.\n---\nShort.\n")
    Path("server.py").write_text("from dovetail import Server\n\nserver = Server('notes')\n")


async def run_all(library: str, cells: Sequence[Sequence[str]]) -> list[str | None]:
    return [await run(library, cell) for cell in cells]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_files()
        sys.stdout.write(json.dumps(asyncio.run(run_all(sys.argv[1], json.load(sys.stdin)))))
        os.chdir("/")
