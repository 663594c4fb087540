"""The functions that every server under test offers.

BENCH_TOOL names the tool that is called, BENCH_TOOLS says how many there are in all: the rest is there to be listed.
Neither imports a framework; what needs one (progress, images) each server adds itself.
"""

import os
from collections.abc import Awaitable, Callable
from typing import Any, Literal

TOOL = os.environ.get("BENCH_TOOL", "add")
TOOLS = int(os.environ.get("BENCH_TOOLS", "1"))
PLAIN = TOOL in ("text", "image")  # no structured copy of a megabyte
SESSIONS = "BENCH_SESSIONS" in os.environ  # 2025-11-25; else 2026-07-28

STEPS = 10
TEXT = ('A line of plain prose, with a "quoted" word in it, then a new line.\n' * 15_500)[: 1024 * 1024]
IMAGE = bytes(range(256)) * 3072  # 768 KiB, which are 1 MiB in base64

REST = [f"tool_{number:04}" for number in range(1, TOOLS)]


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def add_in_thread(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def greet(name: str) -> str:
    """Greet a person."""
    return f"Hello, {name}!"


async def text() -> str:
    """A text of 1 MiB."""
    return TEXT


async def count(report: Callable[..., Awaitable[Any]]) -> int:
    """Count, and report every step; each server gives this its own way to report."""
    for step in range(1, STEPS + 1):
        await report(step, total=STEPS)
    return STEPS


async def search(query: str, limit: int = 10, order: Literal["newest", "oldest"] = "newest") -> list[str]:
    """Search the archive for documents, and list the titles of those that fit best."""
    return [query, order][:limit]


def called(**own: Callable[..., Any]) -> Callable[..., Any]:
    """The tool that is called: one of these, or of the server's own."""
    tools: dict[str, Callable[..., Any]] = {
        "add": add,
        "add_in_thread": add_in_thread,
        "text": text,
        "greet": greet,
        **own,
    }
    return tools[TOOL]
